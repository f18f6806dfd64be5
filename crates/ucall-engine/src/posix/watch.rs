//! Watches descriptors that the caller owns.
//!
//! mio polls edge-triggered only. A new registration makes the kernel report existing readiness, so
//! a watch that is registered again for each report, and ignored in between, is level-triggered and
//! one-shot in effect.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use crate::{Completion, Id, Readiness};

pub(super) struct Watch {
    descriptor: RawFd,
    interest: Readiness,
    armed: bool,
}

/// A watch without an interest still reports errors, as readable.
pub(super) fn interest(readiness: Readiness) -> Interest {
    match readiness {
        Readiness { readable: true, writable: true } => Interest::READABLE | Interest::WRITABLE,
        Readiness { writable: true, .. } => Interest::WRITABLE,
        Readiness { .. } => Interest::READABLE,
    }
}

impl Watch {
    pub(super) fn new(descriptor: BorrowedFd<'_>, interest: Readiness) -> Self {
        Self { descriptor: descriptor.as_raw_fd(), interest, armed: true }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: `Engine::watch` requires that the descriptor stays open until the watch closes.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Disarms and reports, if the watch waits for this.
    pub(super) fn fire(&mut self, id: Id, readable: bool, writable: bool) -> Option<Completion> {
        let readiness = Readiness {
            readable: readable && self.interest.readable,
            writable: writable && self.interest.writable,
        };
        let fires = self.armed && (readiness.readable || readiness.writable);
        self.armed &= !fires;
        fires.then_some(Completion::Ready { watch: id, readiness })
    }

    pub(super) fn rearm(
        &mut self,
        registry: &Registry,
        token: Token,
        readiness: Readiness,
    ) -> io::Result<()> {
        self.interest = readiness;
        self.armed = true;
        registry.reregister(&mut SourceFd(&self.descriptor), token, interest(readiness))
    }

    pub(super) fn deregister(&self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut SourceFd(&self.descriptor))
    }
}
