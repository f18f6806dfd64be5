//! The sweep: once a second it inspects every connection's deadlines, so that they cost no call.
//!
//! Thousands of connections may be due at once, and each costs a reply and a close. So a sweep
//! spreads over turns, a few connections at a time, and calls are served in between.

use std::io;
use std::time::{Duration, Instant};

use ucall_engine::Engine;
use ucall_proto::Limits;

use crate::connections::Entry;

/// Deadlines are in whole seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Places inspected in one turn.
const INSPECTED_PER_TURN: usize = 256;
/// Connections that one turn of a sweep answers or closes: a reply and the end of a stream take
/// some 10 microseconds.
const CLOSED_PER_TURN: usize = 4;

/// How far the sweep has come.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// When a sweep begins or goes on: in the past while one is under way.
    due: Instant,
    /// When the next sweep begins.
    next: Instant,
    /// The next place to inspect; `None` between sweeps.
    place: Option<usize>,
    /// In this turn.
    inspected: usize,
    ended: usize,
}

impl Sweep {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now, next: now, place: None, inspected: 0, ended: 0 }
    }

    /// When the sweep has something to do.
    #[inline]
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Begins a turn of the sweep; `true` if a new sweep begins with it.
    pub(crate) fn begin_turn(&mut self, now: Instant) -> bool {
        (self.inspected, self.ended) = (0, 0);
        let is_new = self.place.is_none();
        if is_new {
            (self.place, self.next) = (Some(0), now + SWEEP_INTERVAL);
        }
        is_new
    }

    /// The next of `places` places that this turn inspects.
    pub(crate) fn next_place(&mut self, places: usize) -> Option<usize> {
        let place = self.place?;
        if place >= places {
            (self.place, self.due) = (None, self.next);
            return None;
        }
        if self.inspected == INSPECTED_PER_TURN || self.ended == CLOSED_PER_TURN {
            return None;
        }
        self.inspected += 1;
        self.place = Some(place + 1);
        Some(place)
    }

    /// Counts a connection that this turn has answered or closed.
    pub(crate) fn count_ended(&mut self) {
        self.ended += 1;
    }
}

/// What is due on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Due {
    Nothing,
    /// The peer has not sent in time what it should have.
    Expiry,
    /// The peer is gone, or has taken nothing of a send for too long.
    Close,
}

/// Inspects a connection.
pub(crate) fn inspect(
    entry: &mut Entry,
    engine: &mut impl Engine,
    limits: &Limits,
    now: Instant,
) -> Due {
    let taken = engine.sent_bytes(entry.id());
    let is_send_stalled = entry.outgoing.is_send_stalled(taken, now, limits.send_timeout);
    if is_send_stalled || has_peer_left(entry, engine) {
        return Due::Close;
    }
    match entry.proto.deadline(limits) {
        Some(deadline) if deadline <= now => Due::Expiry,
        _ => Due::Nothing,
    }
}

/// Whether the peer has reset a connection after it had ended its side. Engines report that end,
/// and nothing after it.
fn has_peer_left(entry: &Entry, engine: &mut impl Engine) -> bool {
    let is_lost = |error: io::Error| error.kind() == io::ErrorKind::NotConnected;
    entry.proto.is_half_closed() && engine.peer(entry.id()).is_err_and(is_lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(sweep: &mut Sweep, places: usize, now: Instant) -> (bool, Vec<usize>) {
        let is_new = sweep.begin_turn(now);
        (is_new, std::iter::from_fn(|| sweep.next_place(places)).collect())
    }

    #[test]
    fn a_sweep_inspects_all_places_a_few_a_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let (mut all, mut begun) = (Vec::new(), 0);
        while sweep.due() <= now {
            let (is_new, places) = turn(&mut sweep, 1000, now);
            assert!(places.len() <= INSPECTED_PER_TURN);
            begun += usize::from(is_new);
            all.extend(places);
        }
        assert_eq!((all, begun), ((0..1000).collect(), 1));
        assert_eq!(sweep.due(), now + SWEEP_INTERVAL);
    }

    #[test]
    fn connections_that_end_use_up_the_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        sweep.begin_turn(now);
        while sweep.next_place(100).is_some() {
            sweep.count_ended();
        }
        assert!(sweep.due() <= now, "the sweep goes on");
        let (is_new, places) = turn(&mut sweep, 100, now);
        assert!(!is_new && places.first() == Some(&CLOSED_PER_TURN));
    }

    #[test]
    fn a_sweep_without_connections_ends_in_its_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        assert_eq!(turn(&mut sweep, 0, now), (true, Vec::new()));
        assert_eq!(sweep.due(), now + SWEEP_INTERVAL);
    }
}
