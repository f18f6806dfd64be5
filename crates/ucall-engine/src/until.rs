//! Until when a wait lasts.
//!
//! A wait with a timeout of its own costs a look at our clock, one at the kernel's and a timer set
//! and taken back, each time. Deadlines that are far away stay the same for many waits, so one
//! alarm in the kernel watches the nearest of those: a wait that has something to do before then
//! pays nothing for it, and asks no clock.

use std::time::{Duration, Instant};

/// Deadlines nearer than this have their timeout in the wait.
const FAR: Duration = Duration::from_millis(50);

/// How long a wait lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// It only looks.
    Now,
    After(Duration),
    /// Until something happens; a deadline, if there is one, by the alarm.
    Alarm,
    /// The same, and the alarm is to be set first, to ring after this time.
    NewAlarm(Duration),
}

impl Until {
    /// For a wait with this deadline, when the alarm, if it is set, rings at that moment.
    #[inline]
    pub(crate) fn of(deadline: Option<Instant>, rings_at: Option<Instant>) -> Self {
        match (deadline, rings_at) {
            (None, _) => Self::Alarm,
            (Some(deadline), Some(alarm)) if alarm <= deadline => Self::Alarm,
            (Some(deadline), alarm) => match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Self::Now,
                left if left < FAR || alarm.is_some() => Self::After(left),
                left => Self::NewAlarm(left),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_far_deadlines_that_no_alarm_is_before_set_it() {
        let now = Instant::now();
        let (soon, later) = (now + FAR / 2, now + 1000 * FAR);
        assert_eq!(Until::of(None, None), Until::Alarm);
        assert_eq!(Until::of(Some(now), None), Until::Now);
        assert!(matches!(Until::of(Some(soon), None), Until::After(_) | Until::Now));
        assert!(matches!(Until::of(Some(later), None), Until::NewAlarm(left) if left > FAR));
        assert_eq!(Until::of(Some(later), Some(later)), Until::Alarm);
        assert_eq!(Until::of(Some(later), Some(now)), Until::Alarm);
        let later_still = Some(later + FAR);
        assert!(matches!(Until::of(Some(later), later_still), Until::After(left) if left > FAR));
    }
}
