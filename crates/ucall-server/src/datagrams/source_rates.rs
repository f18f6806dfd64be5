//! Limits the calls a second of each address.
//!
//! An address has the calls of one second in reserve, which return evenly (the generic cell rate
//! algorithm, ITU-T I.371). An address whose reserve is complete is forgotten. Past [`SOURCES_MAX`]
//! others, an address without a cookie is refused. One with a cookie, which no flood of forged
//! addresses can have, is not limited then.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::source::Source;

/// The time whose calls may come at once.
const RESERVE: Duration = Duration::from_secs(1);
/// Sources whose reserve is not complete. Each takes at most 82 bytes.
const SOURCES_MAX: usize = 65_536;

/// The addresses that have called lately.
#[derive(Debug)]
pub(super) struct SourceRates {
    /// The time in which the reserve regains one call.
    interval: Duration,
    /// When the reserve of each source is complete.
    complete_at: HashMap<Source, Instant>,
    forget_at: Option<Instant>,
}

impl SourceRates {
    pub(super) fn new(calls_per_s_max: u32) -> Self {
        let interval = RESERVE / calls_per_s_max.max(1);
        Self { interval, complete_at: HashMap::new(), forget_at: None }
    }

    /// Counts calls of a source; `false` if they are too many.
    pub(super) fn take(&mut self, source: Source, calls: usize, now: Instant) -> bool {
        let known = self.complete_at.get(&source).copied();
        if known.is_none() && !self.make_room(now) {
            return source.has_cookie;
        }
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let complete_at = known.map_or(now, |it| it.max(now)) + self.interval.saturating_mul(calls);
        let is_allowed = complete_at <= now + RESERVE;
        if is_allowed {
            self.complete_at.insert(source, complete_at);
        }
        is_allowed
    }

    /// Whether there is room for a further address.
    fn make_room(&mut self, now: Instant) -> bool {
        let is_due = self.forget_at.is_none_or(|forget_at| forget_at <= now);
        if self.complete_at.len() >= SOURCES_MAX && is_due {
            self.complete_at.retain(|_, complete_at| *complete_at > now);
            self.forget_at = Some(now + RESERVE);
        }
        self.complete_at.len() < SOURCES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: usize, has_cookie: bool) -> Source {
        Source::new((number as u32).to_be_bytes().into(), has_cookie)
    }

    fn forged(number: usize) -> Source {
        source(number, false)
    }

    #[test]
    fn the_calls_of_a_second_may_come_at_once_and_return_evenly() {
        let (mut rates, now) = (SourceRates::new(10), Instant::now());
        let (one, other) = (forged(1), forged(2));
        for _ in 0..10 {
            assert!(rates.take(one, 1, now));
        }
        assert!(!rates.take(one, 1, now));
        assert!(rates.take(source(1, true), 1, now), "a cookie has calls of its own");
        assert!(rates.take(other, 1, now));
        let later = now + Duration::from_millis(100);
        assert!(!rates.take(one, 1, later - Duration::from_nanos(1)));
        assert!(rates.take(one, 1, later));
        assert!(!rates.take(one, 1, later));
        assert!(rates.take(one, 10, later + RESERVE));
    }

    #[test]
    fn a_batch_counts_each_call() {
        let (mut rates, now) = (SourceRates::new(10), Instant::now());
        assert!(!rates.take(forged(1), 11, now));
        assert!(rates.take(forged(1), 7, now));
        assert!(!rates.take(forged(1), 4, now));
        assert!(rates.take(forged(1), 3, now));
        assert!(!rates.take(forged(1), usize::MAX, now + RESERVE));
    }

    #[test]
    fn memory_is_bounded_and_cookies_are_served_meanwhile() {
        let (mut rates, now) = (SourceRates::new(1), Instant::now());
        for number in 0..SOURCES_MAX {
            assert!(rates.take(forged(number), 1, now));
        }
        assert!(!rates.take(forged(SOURCES_MAX), 1, now));
        assert!(rates.take(source(SOURCES_MAX, true), 1, now));
        assert!(!rates.take(forged(0), 1, now));
        assert_eq!(rates.complete_at.len(), SOURCES_MAX);
        assert!(rates.take(forged(SOURCES_MAX), 1, now + RESERVE));
        assert_eq!(rates.complete_at.len(), 1);
    }
}
