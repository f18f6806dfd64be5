//! Slots whose views are gone, until the communicator's thread reports them to the peer.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use ucall_engine::WakeFlag;
use ucall_engine::shared::ReturnSlots;

use crate::link_key::LinkKey;

/// The slots of all links without views.
#[derive(Debug)]
pub(crate) struct ReturnedSlots {
    slots: Mutex<Vec<(LinkKey, usize)>>,
    wake_flag: Arc<WakeFlag>,
}

impl ReturnedSlots {
    pub(crate) fn new(wake_flag: Arc<WakeFlag>) -> Self {
        Self { slots: Mutex::default(), wake_flag }
    }

    /// All slots that were returned since the last call.
    pub(crate) fn take(&self) -> Vec<(LinkKey, usize)> {
        std::mem::take(&mut self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Takes the slots of one link back.
#[derive(Debug)]
pub(super) struct LinkSlots {
    pub(super) link: LinkKey,
    pub(super) returned: Arc<ReturnedSlots>,
}

impl ReturnSlots for LinkSlots {
    fn return_slot(&self, slot: usize, _answers: u32) {
        let slots = &self.returned.slots;
        slots.lock().unwrap_or_else(PoisonError::into_inner).push((self.link, slot));
        self.returned.wake_flag.notify();
    }
}
