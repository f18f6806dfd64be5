//! The alarm of [`Until`]: one operation in the ring that completes at a deadline.

use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Timespec;

use super::Uring;
use super::memory::Stable;
use super::token::Operation;
use crate::until::Until;

pub(super) struct Alarm {
    /// `None` when the operation is not under way.
    pub(super) rings_at: Option<Instant>,
    /// Read by the kernel while the operation is submitted.
    timeout: Stable<Timespec>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { rings_at: None, timeout: Stable::new(Box::new(Timespec::new())) }
    }
}

impl Uring {
    /// Until when a wait with this deadline lasts; sets the alarm if that pays.
    #[inline]
    pub(super) fn until(&mut self, deadline: Option<Instant>) -> Until {
        let until = Until::of(deadline, self.alarm.rings_at);
        if let Until::NewAlarm(left) = until {
            self.set_alarm(left);
            self.alarm.rings_at = deadline;
        }
        until
    }

    #[cold]
    fn set_alarm(&mut self, left: Duration) {
        *self.alarm.timeout.as_mut() = Timespec::from(left);
        let entry = opcode::Timeout::new(self.alarm.timeout.as_ptr()).build();
        // SAFETY: the time stays in place as long as the engine, which submits nothing after its
        // end, and as it is until the next alarm, which is set when this one has rung.
        unsafe { self.ring.push(entry, Operation::Alarm.at(0)) }
    }
}
