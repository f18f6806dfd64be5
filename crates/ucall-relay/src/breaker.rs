//! A circuit breaker: after failures in a row an upstream gets no calls for a while, then one.
//!
//! | state | calls | next |
//! |---|---|---|
//! | closed | all | open, after `failures_max` failures in a row |
//! | open | none until a moment | probing, with the first call after it |
//! | probing | none besides the one | closed if it is answered, else open for twice as long |

use std::time::{Duration, Instant};

use ucall_server::Circuit;

/// How long a breaker is open at first, and at most.
const OPEN_MIN: Duration = Duration::from_millis(500);
const OPEN_MAX: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BreakerState {
    Closed { failures: u32 },
    Open { until: Instant },
    Probing,
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
            BreakerState::Probing => false,
        }
    }

    /// The state, for metrics.
    pub(crate) fn circuit(&self) -> Circuit {
        match self.state {
            BreakerState::Closed { .. } => Circuit::Closed,
            BreakerState::Open { .. } => Circuit::Open,
            BreakerState::Probing => Circuit::Probing,
        }
    }

    fn is_closed(&self) -> bool {
        self.circuit() == Circuit::Closed
    }

    /// A call begins, which was admitted.
    pub(crate) fn begin(&mut self) {
        if !self.is_closed() {
            self.state = BreakerState::Probing;
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
            BreakerState::Probing => self.open_for = (self.open_for * 2).min(OPEN_MAX),
        }
        self.state = BreakerState::Open { until: now + self.open_for };
        Some(BreakerChange::Opened { for_ms: self.open_for.as_millis() })
    }

    /// A call has ended without an answer or a failure: if it was the probe, there may be another.
    pub(crate) fn give_up(&mut self, now: Instant) {
        if self.state == BreakerState::Probing {
            self.state = BreakerState::Open { until: now };
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
        breaker.begin();
        assert!(!breaker.admits(later), "one probe at a time");
        breaker.give_up(later);
        assert!(breaker.admits(later), "the probe was given up");
        breaker.begin();
        assert_eq!(breaker.fail(later), Some(BreakerChange::Opened { for_ms: 1000 }));
        assert!(!breaker.admits(later + OPEN_MIN) && breaker.admits(later + 2 * OPEN_MIN));
        breaker.begin();
        assert_eq!(breaker.succeed(), Some(BreakerChange::Closed));
        assert!(breaker.admits(later) && breaker.is_closed());
        assert_eq!((breaker.fail(now), breaker.fail(now).is_some()), (None, true));
    }

    #[test]
    fn the_time_that_it_is_open_is_bounded() {
        let (mut breaker, now) = (Breaker::new(1), Instant::now());
        let mut opened = breaker.fail(now);
        for _ in 0..20 {
            breaker.begin();
            opened = breaker.fail(now);
        }
        assert_eq!(opened, Some(BreakerChange::Opened { for_ms: OPEN_MAX.as_millis() }));
    }
}
