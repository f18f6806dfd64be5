//! The kernel timer of [`WaitTimeout`]: one operation in the ring that completes at a deadline.

use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Timespec;

use super::Uring;
use super::memory::StableBox;
use super::token::Operation;
use crate::wait_timeout::WaitTimeout;

pub(super) struct DeadlineTimer {
    /// `None` when the operation is not submitted.
    pub(super) expires_at: Option<Instant>,
    /// Read by the kernel while the operation is submitted.
    timeout: StableBox<Timespec>,
}

impl DeadlineTimer {
    pub(super) fn new() -> Self {
        Self { expires_at: None, timeout: StableBox::new(Box::new(Timespec::new())) }
    }
}

impl Uring {
    /// Until when a wait with this deadline lasts; sets the timer if that pays.
    #[inline]
    pub(super) fn wait_timeout(&mut self, deadline: Option<Instant>) -> WaitTimeout {
        let timeout = WaitTimeout::new(deadline, self.deadline_timer.expires_at);
        if let WaitTimeout::NewTimer(left) = timeout {
            self.set_deadline_timer(left);
            self.deadline_timer.expires_at = deadline;
        }
        timeout
    }

    #[cold]
    fn set_deadline_timer(&mut self, left: Duration) {
        *self.deadline_timer.timeout.as_mut() = Timespec::from(left);
        let entry = opcode::Timeout::new(self.deadline_timer.timeout.as_ptr()).build();
        // SAFETY: the time keeps its address as long as the engine, which submits nothing after its
        // end, and its value until this timer has expired.
        unsafe { self.ring.push(entry, Operation::Timer.at(0)) }
    }
}
