//! Watching descriptors of others: one poll operation a shot.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::{cqueue, opcode, types};

use super::token::Operation;
use super::{Slot, Uring};
use crate::{Completion, Id, Readiness};

const READABLE: i16 = libc::POLLIN | libc::POLLRDHUP;
const WRITABLE: i16 = libc::POLLOUT;
/// Reported even if not requested; in either case a call will not block.
const ERROR_OR_HANGUP: i16 = libc::POLLERR | libc::POLLHUP;

pub(super) struct Watch {
    descriptor: RawFd,
    interest: Readiness,
    /// The owner waits for a report.
    armed: bool,
    polling: bool,
}

impl Watch {
    pub(super) fn new(descriptor: BorrowedFd<'_>) -> Self {
        let interest = Readiness::default();
        Self { descriptor: descriptor.as_raw_fd(), interest, armed: false, polling: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.polling
    }

    fn events(&self) -> i16 {
        let readable = if self.interest.readable { READABLE } else { 0 };
        let writable = if self.interest.writable { WRITABLE } else { 0 };
        readable | writable
    }

    /// The result of a poll, reduced to the requested interest.
    fn readiness(&self, events: i16) -> Readiness {
        Readiness {
            readable: self.interest.readable && events & (READABLE | ERROR_OR_HANGUP) != 0,
            writable: self.interest.writable && events & (WRITABLE | ERROR_OR_HANGUP) != 0,
        }
    }
}

impl Uring {
    pub(super) fn arm_watch(&mut self, id: Id, interest: Readiness) {
        let Some(Slot::Watch(watch)) = self.slots.get_mut(id) else { return };
        watch.armed = true;
        if watch.interest != interest && watch.polling {
            self.ring.cancel(Operation::Poll.at(id.index));
        }
        watch.interest = interest;
        self.poll_next(id);
    }

    fn poll_next(&mut self, id: Id) {
        let Some(Slot::Watch(watch)) = self.slots.get_mut(id) else { return };
        if watch.polling || !watch.armed {
            return;
        }
        watch.polling = true;
        let events = watch.events() as u32;
        let entry = opcode::PollAdd::new(types::Fd(watch.descriptor), events).build();
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry, Operation::Poll.at(id.index)) }
    }

    pub(super) fn on_poll(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((id, Slot::Watch(watch))) = self.slots.at_mut(index) else { return };
        watch.polling = false;
        let readiness = match entry.result() {
            events @ 0.. => watch.readiness(events as i16),
            errno if errno == -libc::ECANCELED => Readiness::default(),
            // A descriptor that cannot be polled does not block either.
            _ => watch.interest,
        };
        let fires = watch.armed && !retired && readiness != Readiness::default();
        if fires {
            watch.armed = false;
            completions.push(Completion::Ready { watch: id, readiness });
        }
        self.poll_next(id);
        self.free_if_idle(index);
    }

    pub(super) fn close_watch(&mut self, index: u32) {
        if let Some((_, Slot::Watch(watch))) = self.slots.at_mut(index)
            && watch.polling
        {
            self.ring.cancel(Operation::Poll.at(index));
        }
    }
}
