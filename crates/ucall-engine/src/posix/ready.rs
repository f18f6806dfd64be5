//! Sources that may hold more than the last edge announced.
//!
//! Most sources are announced, read until empty and removed before the next turn. So the list only
//! counts removed entries, and is walked only while it has others.

use std::mem;

use super::Source;
use crate::Id;
use crate::slab::Slab;

/// The readiness of a source's incoming side.
#[derive(Default)]
pub(super) struct ReadReadiness {
    /// The kernel may hold something that no event will announce again.
    pub(super) readable: bool,
    pub(super) paused: bool,
    /// On the list.
    listed: bool,
}

/// The list.
#[derive(Default)]
pub(super) struct ReadyList {
    /// Each source at most once, removed ones included.
    ids: Vec<Id>,
    /// The number of sources that are not removed, closed ones included.
    remaining: usize,
}

impl ReadyList {
    /// Puts a source on the list; `false` when it is there already.
    #[inline(always)]
    pub(super) fn add(&mut self, id: Id, readiness: &mut ReadReadiness) -> bool {
        let is_new = !mem::replace(&mut readiness.listed, true);
        if is_new {
            self.ids.push(id);
            self.remaining += 1;
        }
        is_new
    }

    /// Lets a source leave of which nothing is left to read.
    #[inline(always)]
    pub(super) fn remove(&mut self, readiness: &mut ReadReadiness) {
        if mem::take(&mut readiness.listed) {
            self.remaining -= 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether all have left, which makes it empty.
    #[inline(always)]
    pub(super) fn clear_if_done(&mut self) -> bool {
        if self.remaining == 0 {
            self.ids.clear();
        }
        self.remaining == 0
    }

    /// Drops the removed sources; returns the others.
    pub(super) fn prune(&mut self, sources: &mut Slab<Source>) -> Vec<Id> {
        self.ids.retain(|&id| {
            let Some(source) = sources.get_mut(id) else { return false };
            source.readiness.listed &= source.may_have_input();
            source.readiness.listed
        });
        self.remaining = self.ids.len();
        self.ids.clone()
    }
}
