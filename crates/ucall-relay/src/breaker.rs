//! A circuit breaker: after failures in a row an upstream gets no calls for a while, then one.
//!
//! | state | calls | next |
//! |---|---|---|
//! | closed | all | open, after `failures_max` failures in a row |
//! | open | none until a moment | probing, with the first call after it |
//! | probing | a few, see below | closed if one is answered, open for twice as long if one fails |
//!
//! The first probe may be a slow call, and its caller may even want it to be. So while there is no
//! other upstream for calls, a second one is let through after [`PROBE_TIME`], and after that again
//! twice as many each time: of that many, those of one caller are not all.

use std::time::{Duration, Instant};

use ucall_server::Circuit;

/// How long a breaker is open at first, and at most.
const OPEN_MIN: Duration = Duration::from_millis(500);
const OPEN_MAX: Duration = Duration::from_secs(15);
/// Longer than a connect and a short call take.
const PROBE_TIME: Duration = Duration::from_millis(250);
/// Probes at a time.
const PROBES_MAX: u32 = 64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BreakerState {
    Closed {
        failures: u32,
    },
    Open {
        until: Instant,
    },
    /// Since when, and the probes that have not ended.
    Probing {
        since: Instant,
        probes: u32,
    },
}

/// A change that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BreakerChange {
    Opened { for_ms: u128 },
    Closed,
}

/// The breaker of one upstream.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: BreakerState,
    failures_max: u32,
    open_for: Duration,
}

impl Breaker {
    pub(crate) fn new(failures_max: u32) -> Self {
        Self { state: BreakerState::Closed { failures: 0 }, failures_max, open_for: OPEN_MIN }
    }

    /// Whether a call may begin.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { until } => until <= now,
            BreakerState::Probing { .. } => false,
        }
    }

    /// Whether a call may begin beside a probe, if no other upstream takes it.
    pub(crate) fn admits_another(&self, now: Instant) -> bool {
        let BreakerState::Probing { since, probes } = self.state else { return false };
        let rounds = now.saturating_duration_since(since).as_millis() / PROBE_TIME.as_millis();
        let allowed = u32::try_from(rounds).ok().and_then(|rounds| 1_u32.checked_shl(rounds));
        probes < allowed.unwrap_or(PROBES_MAX).min(PROBES_MAX)
    }

    /// The state, for metrics.
    pub(crate) fn circuit(&self) -> Circuit {
        match self.state {
            BreakerState::Closed { .. } => Circuit::Closed,
            BreakerState::Open { .. } => Circuit::Open,
            BreakerState::Probing { .. } => Circuit::Probing,
        }
    }

    fn is_closed(&self) -> bool {
        self.circuit() == Circuit::Closed
    }

    /// A call begins, which was admitted.
    pub(crate) fn begin(&mut self, now: Instant) {
        match &mut self.state {
            BreakerState::Closed { .. } => {}
            BreakerState::Open { .. } => {
                self.state = BreakerState::Probing { since: now, probes: 1 };
            }
            BreakerState::Probing { probes, .. } => *probes += 1,
        }
    }

    /// A call was answered.
    pub(crate) fn succeed(&mut self) -> Option<BreakerChange> {
        let was_closed = self.is_closed();
        self.state = BreakerState::Closed { failures: 0 };
        self.open_for = OPEN_MIN;
        (!was_closed).then_some(BreakerChange::Closed)
    }

    /// A call, or a connection, has failed.
    pub(crate) fn fail(&mut self, now: Instant) -> Option<BreakerChange> {
        match &mut self.state {
            BreakerState::Closed { failures } => {
                *failures += 1;
                if *failures < self.failures_max {
                    return None;
                }
            }
            BreakerState::Open { .. } => return None,
            BreakerState::Probing { .. } => self.open_for = (self.open_for * 2).min(OPEN_MAX),
        }
        self.state = BreakerState::Open { until: now + self.open_for };
        Some(BreakerChange::Opened { for_ms: self.open_for.as_millis() })
    }

    /// A call has ended without an answer or a failure: if it was a probe, there may be another.
    pub(crate) fn give_up(&mut self, now: Instant) {
        if let BreakerState::Probing { probes, .. } = &mut self.state {
            *probes = probes.saturating_sub(1);
            if *probes == 0 {
                self.state = BreakerState::Open { until: now };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_open_it_and_one_answer_closes_it() {
        let (mut breaker, now) = (Breaker::new(2), Instant::now());
        assert_eq!((breaker.fail(now), breaker.succeed(), breaker.fail(now)), (None, None, None));
        assert_eq!(breaker.fail(now), Some(BreakerChange::Opened { for_ms: 500 }));
        assert!(!breaker.admits(now) && breaker.fail(now).is_none());
        let later = now + OPEN_MIN;
        assert!(breaker.admits(later) && !breaker.is_closed());
        breaker.begin(later);
        assert!(!breaker.admits(later), "one probe at a time");
        breaker.give_up(later);
        assert!(breaker.admits(later), "the probe was given up");
        breaker.begin(later);
        assert_eq!(breaker.fail(later), Some(BreakerChange::Opened { for_ms: 1000 }));
        assert!(!breaker.admits(later + OPEN_MIN) && breaker.admits(later + 2 * OPEN_MIN));
        breaker.begin(later);
        assert_eq!(breaker.succeed(), Some(BreakerChange::Closed));
        assert!(breaker.admits(later) && breaker.is_closed());
        assert_eq!((breaker.fail(now), breaker.fail(now).is_some()), (None, true));
    }

    #[test]
    fn the_time_that_it_is_open_is_bounded() {
        let (mut breaker, now) = (Breaker::new(1), Instant::now());
        let mut opened = breaker.fail(now);
        for _ in 0..20 {
            breaker.begin(now);
            opened = breaker.fail(now);
        }
        assert_eq!(opened, Some(BreakerChange::Opened { for_ms: OPEN_MAX.as_millis() }));
    }

    #[test]
    fn more_probes_follow_while_one_lasts() {
        let (mut breaker, now) = (Breaker::new(1), Instant::now());
        breaker.fail(now);
        let began = now + OPEN_MIN;
        assert!(!breaker.admits_another(began), "it is not probed yet");
        breaker.begin(began);
        let ms = Duration::from_millis(1);
        let mut probes = 1;
        for (rounds, allowed) in [(1, 2), (2, 4), (6, 64), (7, 64), (40, 64), (1 << 20, 64)] {
            let at = began + rounds * PROBE_TIME;
            assert!(rounds > 2 || !breaker.admits_another(at - ms));
            while breaker.admits_another(at) {
                breaker.begin(at);
                probes += 1;
            }
            assert_eq!(probes, allowed, "{rounds}");
        }
        let later = began + PROBE_TIME;
        (0..63).for_each(|_| breaker.give_up(later));
        assert!(!breaker.admits(later) && breaker.admits_another(later), "one is left");
        breaker.give_up(later);
        assert!(breaker.admits(later));
    }
}
