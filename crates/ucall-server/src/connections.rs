//! The connections of one worker, found by the engine's small indices.

use std::collections::HashMap;
use std::mem;
use std::time::{Duration, Instant};

use ucall_engine::{Id, Peer};
use ucall_proto::{Connection, EvictionClass};

use crate::caller::{Caller, Transport};
use crate::eviction::{Candidate, EvictionOrder};
use crate::item_queues::ItemQueues;
use crate::network::PeerNetwork;
use crate::outgoing::Outgoing;

/// For the first bytes of a new connection: an engine may report them turns after it was accepted.
/// Until then connections that are quiet and no longer new give way before it.
const FIRST_BYTES_TIME: Duration = Duration::from_millis(100);

/// Bytes that a turn reads of one connection. The rest waits for the next turn, so that a peer that
/// pipelines delays no other. An engine may report many buffers of one connection.
const READ_PER_TURN_BYTES: usize = 64 << 10;

/// One connection, its output, and what the engine was asked to do with it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) proto: Connection,
    pub(crate) caller: Caller,
    pub(crate) outgoing: Outgoing,
    /// What waits for a slow peer, and the streams that are paused for it; `None` if nothing does.
    pub(crate) items: Option<Box<ItemQueues>>,
    /// Bytes that the connection's target had at the last sweep.
    filled: usize,
    /// Whether the engine has stopped receiving.
    is_paused: bool,
    /// Whether our side of the stream is shut down.
    is_shut_down: bool,
    /// The network of the peer, once it was looked up.
    network: Option<Option<PeerNetwork>>,
    /// The network that the connection counts for.
    counted: Option<PeerNetwork>,
    /// The last turn that received bytes, and how many.
    turn: u64,
    turn_bytes: usize,
}

impl Entry {
    fn new(id: Id, proto: Connection, now: Instant) -> Self {
        Self {
            proto,
            caller: Caller { connection: id, peer: None, transport: Transport::Tcp },
            outgoing: Outgoing::new(now),
            items: None,
            filled: 0,
            is_paused: false,
            is_shut_down: false,
            network: None,
            counted: None,
            turn: 0,
            turn_bytes: 0,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> Id {
        self.caller.connection
    }

    /// Whether this turn may read more of the connection.
    #[inline(always)]
    pub(crate) fn may_read(&mut self, turn: u64) -> bool {
        if self.turn != turn {
            (self.turn, self.turn_bytes) = (turn, 0);
        }
        self.turn_bytes < READ_PER_TURN_BYTES
    }

    /// Counts bytes that this turn has read.
    #[inline(always)]
    pub(crate) fn count_read(&mut self, bytes: usize) {
        self.turn_bytes += bytes;
    }

    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Sets whether receiving is paused; `true` if that changes it.
    #[inline]
    pub(crate) fn set_paused(&mut self, is_paused: bool) -> bool {
        mem::replace(&mut self.is_paused, is_paused) != is_paused
    }

    /// Records that our side is shut down; `true` the first time.
    pub(crate) fn shut_down(&mut self) -> bool {
        !mem::replace(&mut self.is_shut_down, true)
    }

    /// Records how many bytes the target has; `true` if that has changed.
    pub(crate) fn set_filled(&mut self, filled: usize) -> bool {
        mem::replace(&mut self.filled, filled) != filled
    }

    /// When the connection gives way to a new one, and since when it has been quiet; `None` if it
    /// does not, or has not been quiet before `bound`.
    fn evictable_since(&self, bound: Instant) -> Option<(EvictionClass, Instant)> {
        let (class, since) = self.proto.evictable_since()?;
        if self.outgoing.bytes() > 0 || since >= bound {
            return None;
        }
        let is_new = class == EvictionClass::Idle
            && self.turn == 0
            && bound.saturating_duration_since(since) < FIRST_BYTES_TIME;
        Some((if is_new { EvictionClass::New } else { class }, since))
    }

    /// The network of the peer, which is looked up once.
    fn network(&mut self, peer_of: &mut dyn FnMut(Id) -> Option<Peer>) -> Option<PeerNetwork> {
        let Caller { connection, peer, .. } = self.caller;
        let network = || PeerNetwork::of(peer.or_else(|| peer_of(connection)));
        *self.network.get_or_insert_with(network)
    }

    /// Since when the connection has been quiet: idle, or an open WebSocket without a call.
    fn quiet_since(&self) -> Option<Instant> {
        self.proto.quiet_since().filter(|_| self.outgoing.bytes() == 0)
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Option<Entry>>,
    len: usize,
    eviction: EvictionOrder,
    /// How many each network has, of those that are counted.
    by_network: HashMap<PeerNetwork, usize>,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Slots, with or without a connection.
    pub(crate) fn slot_count(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn id_at(&self, slot: usize) -> Option<Id> {
        self.entries.get(slot)?.as_ref().map(Entry::id)
    }

    #[inline]
    pub(crate) fn find(&mut self, id: Id) -> Option<&mut Entry> {
        self.entries.get_mut(id.index as usize)?.as_mut().filter(|entry| entry.id() == id)
    }

    pub(crate) fn insert(&mut self, id: Id, proto: Connection, now: Instant) {
        let index = id.index as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        let entry = Entry::new(id, proto, now);
        if let Some(slot) = self.entries.get_mut(index)
            && slot.replace(entry).is_none()
        {
            self.len += 1;
        }
    }

    /// Has the connection count for its network until it is removed.
    pub(crate) fn set_counted(&mut self, id: Id, network: Option<PeerNetwork>) {
        if let Some(entry) = self.find(id) {
            entry.counted = network;
        }
    }

    pub(crate) fn remove(&mut self, id: Id) -> Option<Entry> {
        let counted = self.find(id)?.counted;
        self.len -= 1;
        self.uncount_network(counted);
        self.entries.get_mut(id.index as usize)?.take()
    }

    pub(crate) fn ids(&self) -> Vec<Id> {
        self.iter().map(Entry::id).collect()
    }

    /// Connections, open WebSockets among them, that had been without a call for `time` at
    /// `moment`.
    pub(crate) fn quiet_for(&self, time: Duration, moment: Instant) -> Vec<Id> {
        let is_quiet = |entry: &&Entry| entry.quiet_since().is_some_and(|it| it + time <= moment);
        self.iter().filter(is_quiet).map(Entry::id).collect()
    }

    fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// The connection that gives way next, of those that were quiet before `bound`. See
    /// [`eviction`](crate::eviction).
    pub(crate) fn next_evicted(
        &mut self,
        bound: Instant,
        peer_of: &mut dyn FnMut(Id) -> Option<Peer>,
    ) -> Option<Id> {
        self.next_found(bound).or_else(|| {
            self.scan(bound, peer_of);
            self.next_found(bound)
        })
    }

    fn next_found(&mut self, bound: Instant) -> Option<Id> {
        while let Some((class, candidate)) = self.eviction.next(bound) {
            let quiet = self.find(candidate.id).and_then(|entry| entry.evictable_since(bound));
            if quiet == Some((class, candidate.since)) {
                return Some(candidate.id);
            }
        }
        None
    }

    fn scan(&mut self, bound: Instant, peer_of: &mut dyn FnMut(Id) -> Option<Peer>) {
        let quiet = |entry: &Entry| entry.evictable_since(bound);
        let Some(class) = self.iter().filter_map(|entry| Some(quiet(entry)?.0)).min() else {
            return;
        };
        let mut candidates = Vec::new();
        for entry in self.entries.iter_mut().flatten() {
            if let Some((_, since)) = quiet(entry).filter(|(found, _)| *found == class) {
                let (id, network) = (entry.id(), entry.network(peer_of));
                candidates.push(Candidate { id, network, since });
            }
        }
        self.eviction.set(class, bound, candidates);
    }

    /// Counts a connection towards the limit of its network; `false` if that has `max` already.
    pub(crate) fn count_network(&mut self, network: Option<PeerNetwork>, max: usize) -> bool {
        let Some(network) = network else { return true };
        let count = self.by_network.entry(network).or_default();
        if *count >= max {
            return false;
        }
        *count += 1;
        true
    }

    /// Takes back what [`Connections::count_network`] has counted.
    pub(crate) fn uncount_network(&mut self, network: Option<PeerNetwork>) {
        if let Some(network) = network
            && let Some(count) = self.by_network.get_mut(&network)
        {
            *count -= 1;
            if *count == 0 {
                self.by_network.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ucall_proto::Limits;

    use super::*;

    fn connections(starts: &[u64], now: Instant) -> Connections {
        let mut connections = Connections::default();
        for (index, start) in (0..).zip(starts) {
            let (id, start) = (Id { index, generation: 1 }, now + Duration::from_secs(*start));
            connections.insert(id, Connection::new(start, &Limits::default()), start);
        }
        connections
    }

    #[test]
    fn the_longest_idle_connection_is_found_and_only_before_the_bound() {
        let now = Instant::now();
        let mut connections = connections(&[3, 1, 2, 9], now);
        let bound = now + Duration::from_secs(5);
        let mut order = Vec::new();
        while let Some(id) = connections.next_evicted(bound, &mut |_| None) {
            connections.remove(id);
            order.push(id.index);
        }
        assert_eq!((order.as_slice(), connections.len()), (&[1, 2, 0][..], 1));
    }

    #[test]
    fn an_old_id_finds_no_new_connection() {
        let mut connections = connections(&[0, 0], Instant::now());
        assert!(connections.find(Id { index: 1, generation: 2 }).is_none());
        assert!(connections.remove(Id { index: 1, generation: 2 }).is_none());
        assert!(connections.remove(Id { index: 1, generation: 1 }).is_some());
        assert_eq!((connections.len(), connections.slot_count()), (1, 2));
    }

    #[test]
    fn a_turn_reads_64_kib_of_a_connection() {
        let mut connections = connections(&[0], Instant::now());
        let id = connections.id_at(0).expect("the first connection");
        let entry = connections.find(id).expect("it is open");
        for (turn, may_read) in [(1, true), (1, true), (1, false), (2, true)] {
            assert_eq!(entry.may_read(turn), may_read);
            entry.count_read(READ_PER_TURN_BYTES / 2);
        }
    }
}
