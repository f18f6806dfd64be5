//! The sweep: inspects the deadlines of all connections once a second, so that no call pays for a
//! timer.
//!
//! Thousands of connections may be due at once, and each costs a reply and a close. So a sweep
//! takes many turns, a few connections in each, and calls are served in between.

use std::time::{Duration, Instant};

use ucall_engine::Engine;
use ucall_proto::{ConnectionProtocol, Limits};

use crate::connections::Entry;
use crate::counters::ProtocolCounts;

/// Deadlines are in whole seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Slots inspected in one turn.
const INSPECTED_PER_TURN: usize = 256;
/// Connections that one turn of a sweep answers or closes: a reply and the end of a stream take
/// some 10 microseconds.
const CLOSED_PER_TURN: usize = 4;

/// The progress of the sweep.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// When a sweep begins or continues; in the past while one is in progress.
    due: Instant,
    /// When the next sweep begins.
    next: Instant,
    /// The next slot to inspect; `None` between sweeps.
    slot: Option<usize>,
    /// Slots inspected, and connections answered or closed, in this turn.
    inspected: usize,
    ended: usize,
    /// The protocols of the connections that this sweep has inspected.
    protocols: ProtocolCounts,
}

impl Sweep {
    pub(crate) fn new(now: Instant) -> Self {
        let protocols = ProtocolCounts::default();
        Self { due: now, next: now, slot: None, inspected: 0, ended: 0, protocols }
    }

    /// When the sweep has something to do.
    #[inline]
    pub(crate) fn due(&self) -> Instant {
        self.due
    }

    /// Begins a turn of the sweep; `true` if it is the first of a sweep.
    pub(crate) fn begin_turn(&mut self, now: Instant) -> bool {
        (self.inspected, self.ended) = (0, 0);
        let is_new = self.slot.is_none();
        if is_new {
            (self.slot, self.next) = (Some(0), now + SWEEP_INTERVAL);
        }
        is_new
    }

    /// The next slot that this turn inspects, of `slots` slots.
    pub(crate) fn next_slot(&mut self, slots: usize) -> Option<usize> {
        let slot = self.slot?;
        if slot >= slots {
            (self.slot, self.due) = (None, self.next);
            return None;
        }
        if self.inspected == INSPECTED_PER_TURN || self.ended == CLOSED_PER_TURN {
            return None;
        }
        self.inspected += 1;
        self.slot = Some(slot + 1);
        Some(slot)
    }

    /// Counts an open connection.
    pub(crate) fn count_protocol(&mut self, protocol: Option<ConnectionProtocol>) {
        self.protocols.add(protocol);
    }

    /// The protocols of all connections, once after each sweep.
    pub(crate) fn take_protocols(&mut self) -> Option<ProtocolCounts> {
        self.slot.is_none().then(|| std::mem::take(&mut self.protocols))
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
    /// A request, a handshake or the connection itself is past its deadline.
    Expiry,
    /// The peer has left, or has not taken any byte of a send for too long.
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

/// Whether the peer has left after it had shut down its side. Engines report the shutdown, but no
/// event after it.
fn has_peer_left(entry: &Entry, engine: &mut impl Engine) -> bool {
    entry.proto.is_half_closed() && engine.has_peer_left(entry.id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(sweep: &mut Sweep, slots: usize, now: Instant) -> (bool, Vec<usize>) {
        let is_new = sweep.begin_turn(now);
        (is_new, std::iter::from_fn(|| sweep.next_slot(slots)).collect())
    }

    #[test]
    fn a_sweep_inspects_all_slots_a_few_a_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        let (mut all, mut begun) = (Vec::new(), 0);
        while sweep.due() <= now {
            let (is_new, slots) = turn(&mut sweep, 1000, now);
            assert!(slots.len() <= INSPECTED_PER_TURN);
            begun += usize::from(is_new);
            all.extend(slots);
        }
        assert_eq!((all, begun), ((0..1000).collect(), 1));
        assert_eq!(sweep.due(), now + SWEEP_INTERVAL);
    }

    #[test]
    fn connections_that_end_use_up_the_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        sweep.begin_turn(now);
        while sweep.next_slot(100).is_some() {
            sweep.count_ended();
        }
        assert!(sweep.due() <= now, "the sweep goes on");
        let (is_new, slots) = turn(&mut sweep, 100, now);
        assert!(!is_new && slots.first() == Some(&CLOSED_PER_TURN));
    }

    #[test]
    fn a_sweep_without_connections_ends_in_its_turn() {
        let now = Instant::now();
        let mut sweep = Sweep::new(now);
        assert_eq!(turn(&mut sweep, 0, now), (true, Vec::new()));
        assert_eq!(sweep.due(), now + SWEEP_INTERVAL);
    }
}
