//! Wakes the engine from another thread: an eventfd with a read always pending.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, eventfd};

use super::Uring;
use super::memory::StableBox;
use super::token::Operation;
use crate::{Completion, Waker};

pub(super) struct Wakeups {
    /// Shared with the wakers, which may outlive the engine: a write that is never read is
    /// harmless.
    event: Arc<OwnedFd>,
    count: StableBox<u64>,
    pub(super) reading: bool,
}

impl Wakeups {
    pub(super) fn new() -> io::Result<Self> {
        // Blocking: io_uring fails a read of a non-blocking one at once instead of waiting. A write
        // blocks only if the count overflows, after 2^64 wakes without a read.
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(Self { event, count: StableBox::new(Box::new(0)), reading: false })
    }

    pub(super) fn waker(&self) -> Waker {
        let event = self.event.clone();
        Waker(Arc::new(move || Ok(rustix::io::write(&event, &1u64.to_ne_bytes()).map(drop)?)))
    }
}

impl Uring {
    pub(super) fn await_wake(&mut self) {
        self.wakeups.reading = true;
        let event = types::Fd(self.wakeups.event.as_raw_fd());
        let count = self.wakeups.count.as_ptr().cast();
        let entry = opcode::Read::new(event, count, size_of::<u64>() as u32).build();
        // SAFETY: the count has a stable address and lives until the engine has drained its
        // operations, or for ever; no other code reads it.
        unsafe { self.ring.push(entry, Operation::Wake.at(0)) }
    }

    pub(super) fn on_wake(&mut self, completions: &mut Vec<Completion>) {
        self.wakeups.reading = false;
        if !self.dropping {
            self.await_wake();
            completions.push(Completion::Woken);
        }
    }
}
