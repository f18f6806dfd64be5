//! The calls that wait for a slot, and those that have one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pyo3::prelude::*;

use super::super::call::CallKey;
use super::objects::Slots;
use crate::job_input::JobInput;

/// The slots of one function.
pub(in crate::streams) struct SlotTable {
    /// Tells its slots from those of other functions.
    id: u64,
    /// The call in each slot. It may have ended since the last step began.
    pub(super) taken: Vec<Option<CallKey>>,
    /// How many slots are taken.
    pub(super) in_use: usize,
    /// May contain calls that have ended.
    pub(super) queue: VecDeque<QueuedCall>,
    /// Calls in the queue that have not ended.
    pub(super) queued: usize,
    /// Records of calls that are over.
    pub(super) free: Vec<usize>,
    /// Whether the generator runs, or is about to start.
    pub(super) is_running: bool,
    /// Whether the generator ends once it has no calls.
    is_retired: bool,
    /// What the generator has been given.
    pub(super) view: Option<Py<Slots>>,
}

/// A call that waits for a slot. Its input is gone when it is cancelled.
pub(super) struct QueuedCall {
    pub(super) key: CallKey,
    pub(super) input: Arc<JobInput>,
    /// Calls get slots in this order.
    pub(super) rank: Instant,
}

impl SlotTable {
    pub(in crate::streams) fn new(count: usize) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            taken: vec![None; count],
            in_use: 0,
            queue: VecDeque::new(),
            queued: 0,
            free: Vec::new(),
            is_running: false,
            is_retired: false,
            view: None,
        }
    }

    /// Whether the generator has something to do, if `open` calls have slots, of which `full` take
    /// no items. It gives up the slots of calls that have ended, and what they hold, at once.
    #[inline]
    pub(in crate::streams) fn can_step(&self, open: usize, full: usize) -> bool {
        open > full || self.in_use > open || (self.queued > 0 && open < self.taken.len())
    }

    /// Whether the generator ends, if `open` calls have slots.
    #[inline]
    pub(in crate::streams) fn is_over(&self, open: usize) -> bool {
        self.is_retired && open == 0 && self.queued == 0
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn size(&self) -> usize {
        self.taken.len()
    }

    /// How many calls wait beyond those for which a slot is free.
    pub(super) fn waiting(&self) -> usize {
        self.queued.saturating_sub(self.taken.len() - self.in_use)
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_running
    }

    pub(super) fn retire(&mut self) {
        self.is_retired = true;
    }

    pub(super) fn view(&self) -> Option<&Py<Slots>> {
        self.view.as_ref()
    }

    pub(super) fn set_view(&mut self, view: Py<Slots>) {
        self.view = Some(view);
    }

    /// The calls in slots, which may have ended.
    pub(in crate::streams) fn taken(&self) -> impl Iterator<Item = CallKey> + '_ {
        self.taken.iter().copied().flatten()
    }
}
