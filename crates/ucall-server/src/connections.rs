//! The connections of one worker, found by the engine's small indices.

use std::cmp::Reverse;
use std::mem;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::Connection;

use crate::caller::{Caller, Transport};
use crate::item_queues::ItemQueues;
use crate::outgoing::Outgoing;

/// How many of the longest idle connections are cached.
const IDLE_CACHED_MAX: usize = 256;

/// Bytes that a turn reads of one connection. The rest waits for the next turn, so that a peer that
/// pipelines delays no other. An engine may report many buffers of one connection.
const READ_PER_TURN_BYTES: usize = 64 << 10;

/// One connection, its output, and what the engine was asked to do with it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) proto: Connection,
    pub(crate) caller: Caller,
    pub(crate) outgoing: Outgoing,
    /// What waits for a slow peer; `None` if nothing does.
    pub(crate) items: Option<Box<ItemQueues>>,
    /// Bytes that the connection's target had at the last sweep.
    filled: usize,
    /// Whether the engine has stopped receiving.
    is_paused: bool,
    /// Whether our side of the stream is shut down.
    is_shut_down: bool,
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

    /// Since when the connection has been idle; `None` while it is not.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        self.proto.idle_since().filter(|_| self.outgoing.bytes() == 0)
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
    /// The connections that had been idle for longest at the last scan, and since when; the longest
    /// idle is the last.
    idle: Vec<(Instant, Id)>,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Slots, with or without a connection.
    pub(crate) fn slot_count(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<&mut Entry> {
        self.entries.get_mut(slot)?.as_mut()
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

    pub(crate) fn remove(&mut self, id: Id) -> Option<Entry> {
        self.find(id)?;
        self.len -= 1;
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

    /// The longest idle connection of those that were idle before `bound`.
    ///
    /// A scan of all connections for each new one would let a flood of new connections slow the
    /// others down. So one scan caches many of the longest idle connections: as long as one of them
    /// is still idle, no other can have been idle for longer.
    pub(crate) fn longest_idle(&mut self, bound: Instant) -> Option<Id> {
        self.next_idle().or_else(|| {
            self.find_idle(bound);
            self.next_idle()
        })
    }

    fn next_idle(&mut self) -> Option<Id> {
        while let Some((since, id)) = self.idle.pop() {
            let found = self.find(id).and_then(|entry| entry.idle_since());
            if found == Some(since) {
                return Some(id);
            }
        }
        None
    }

    fn find_idle(&mut self, bound: Instant) {
        let mut idle = mem::take(&mut self.idle);
        let found = self.iter().filter_map(|entry| Some((entry.idle_since()?, entry.id())));
        idle.extend(found.filter(|(since, _)| *since < bound));
        if idle.len() > IDLE_CACHED_MAX {
            idle.select_nth_unstable_by_key(IDLE_CACHED_MAX, |(since, _)| *since);
            idle.truncate(IDLE_CACHED_MAX);
        }
        idle.sort_unstable_by_key(|(since, _)| Reverse(*since));
        self.idle = idle;
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
        while let Some(id) = connections.longest_idle(bound) {
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
        let entry = connections.at_mut(0).expect("the first connection");
        for (turn, may_read) in [(1, true), (1, true), (1, false), (2, true)] {
            assert_eq!(entry.may_read(turn), may_read);
            entry.count_read(READ_PER_TURN_BYTES / 2);
        }
    }
}
