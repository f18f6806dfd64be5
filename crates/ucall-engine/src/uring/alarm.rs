//! How a wait is bounded in time.
//!
//! A wait with a timeout of its own costs a look at our clock, one at the kernel's and a timer set
//! and taken back, each time. Deadlines that are far away stay the same for many waits, so one
//! operation in the ring watches the nearest of those: a wait that has something to do before then
//! pays nothing for it, and asks no clock.

use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Timespec;

use super::Uring;
use super::memory::Stable;
use super::token::Operation;

/// Deadlines nearer than this have their timeout in the wait.
const FAR: Duration = Duration::from_millis(50);

/// The operation that completes at a deadline.
pub(super) struct Alarm {
    /// `None` when none is under way.
    pub(super) rings_at: Option<Instant>,
    /// Read by the kernel while the operation is submitted.
    timeout: Stable<Timespec>,
}

impl Alarm {
    pub(super) fn new() -> Self {
        Self { rings_at: None, timeout: Stable::new(Box::new(Timespec::new())) }
    }
}

/// How long a wait may last.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    /// It only looks.
    Now,
    In(Duration),
    /// Until something completes; a deadline, if there is one, by the alarm.
    ByAlarm,
}

impl Uring {
    /// How a wait until `deadline` is bounded; sets the alarm if that pays.
    #[inline]
    pub(super) fn bound(&mut self, deadline: Option<Instant>) -> Bound {
        match (deadline, self.alarm.rings_at) {
            (None, _) => Bound::ByAlarm,
            (Some(deadline), Some(alarm)) if alarm <= deadline => Bound::ByAlarm,
            (Some(deadline), alarm) => {
                let left = deadline.saturating_duration_since(Instant::now());
                match left {
                    Duration::ZERO => Bound::Now,
                    left if left < FAR || alarm.is_some() => Bound::In(left),
                    left => self.set_alarm(deadline, left),
                }
            }
        }
    }

    fn set_alarm(&mut self, deadline: Instant, left: Duration) -> Bound {
        *self.alarm.timeout.as_mut() = Timespec::from(left);
        self.alarm.rings_at = Some(deadline);
        let entry = opcode::Timeout::new(self.alarm.timeout.as_ptr()).build();
        // SAFETY: the time stays in place as long as the engine, which submits nothing after its
        // end, and as it is until the next alarm, which is set when this one has rung.
        unsafe { self.ring.push(entry, Operation::Alarm.at(0)) }
        Bound::ByAlarm
    }
}
