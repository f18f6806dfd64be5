//! Sources that may hold something which no event will announce again.
//!
//! Nearly always a source is announced, read until nothing is left, and off the list before the
//! next turn. So the list only counts who has left it, and is walked when somebody has not.

use std::mem;

use super::Source;
use crate::Id;
use crate::table::Table;

/// What is known about the incoming side of a source.
#[derive(Default)]
pub(super) struct Intake {
    /// The kernel may hold something that no event will announce again.
    pub(super) readable: bool,
    pub(super) paused: bool,
    /// On the list.
    listed: bool,
}

/// The list.
#[derive(Default)]
pub(super) struct Ready {
    /// Each at most once, those included that have left.
    ids: Vec<Id>,
    /// How many have not left; those included that were closed.
    left: usize,
}

impl Ready {
    /// Puts a source on the list; `false` when it is there already.
    #[inline(always)]
    pub(super) fn add(&mut self, id: Id, intake: &mut Intake) -> bool {
        let is_new = !mem::replace(&mut intake.listed, true);
        if is_new {
            self.ids.push(id);
            self.left += 1;
        }
        is_new
    }

    /// Lets a source leave of which nothing is left to read.
    #[inline(always)]
    pub(super) fn leave(&mut self, intake: &mut Intake) {
        if mem::take(&mut intake.listed) {
            self.left -= 1;
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether all have left, which makes it empty.
    #[inline(always)]
    pub(super) fn have_all_left(&mut self) -> bool {
        if self.left == 0 {
            self.ids.clear();
        }
        self.left == 0
    }

    /// Drops those that have nothing more; gives the others.
    pub(super) fn prune(&mut self, sources: &mut Table<Source>) -> Vec<Id> {
        self.ids.retain(|&id| {
            let Some(source) = sources.get_mut(id) else { return false };
            source.intake.listed &= source.wants_a_look();
            source.intake.listed
        });
        self.left = self.ids.len();
        self.ids.clone()
    }
}
