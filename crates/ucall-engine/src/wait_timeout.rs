//! How long a wait lasts, and when it sets the kernel timer of its engine.
//!
//! A timeout per wait costs a read of our clock, one of the kernel's, and a timer that is set and
//! cancelled, each time. Distant deadlines stay the same for many waits, so one timer in the kernel
//! covers the nearest of them: a wait that ends before it pays nothing, and reads no clock.

use std::time::{Duration, Instant};

/// Deadlines nearer than this have their timeout in the wait.
const TIMER_DISTANCE_MIN: Duration = Duration::from_millis(50);

/// How long a wait lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitTimeout {
    /// It polls once.
    Now,
    After(Duration),
    /// Until an event; the timer ends it at its deadline, if it has one.
    Timer,
    /// Without a timeout, after the timer is set to this time.
    NewTimer(Duration),
}

impl WaitTimeout {
    /// For a wait with this deadline, while the timer, if it is set, expires at that moment.
    #[inline]
    pub(crate) fn new(deadline: Option<Instant>, expires_at: Option<Instant>) -> Self {
        match (deadline, expires_at) {
            (None, _) => Self::Timer,
            (Some(deadline), Some(deadline_timer)) if deadline_timer <= deadline => Self::Timer,
            (Some(deadline), deadline_timer) => match deadline
                .saturating_duration_since(Instant::now())
            {
                Duration::ZERO => Self::Now,
                left if left < TIMER_DISTANCE_MIN || deadline_timer.is_some() => Self::After(left),
                left => Self::NewTimer(left),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_far_deadlines_without_an_earlier_timer_set_it() {
        let now = Instant::now();
        let (soon, later) = (now + TIMER_DISTANCE_MIN / 2, now + 1000 * TIMER_DISTANCE_MIN);
        assert_eq!(WaitTimeout::new(None, None), WaitTimeout::Timer);
        assert_eq!(WaitTimeout::new(Some(now), None), WaitTimeout::Now);
        assert!(matches!(
            WaitTimeout::new(Some(soon), None),
            WaitTimeout::After(_) | WaitTimeout::Now
        ));
        let timeout = WaitTimeout::new(Some(later), None);
        assert!(matches!(timeout, WaitTimeout::NewTimer(left) if left > TIMER_DISTANCE_MIN));
        assert_eq!(WaitTimeout::new(Some(later), Some(later)), WaitTimeout::Timer);
        assert_eq!(WaitTimeout::new(Some(later), Some(now)), WaitTimeout::Timer);
        let later_still = Some(later + TIMER_DISTANCE_MIN);
        let timeout = WaitTimeout::new(Some(later), later_still);
        assert!(matches!(timeout, WaitTimeout::After(left) if left > TIMER_DISTANCE_MIN));
    }
}
