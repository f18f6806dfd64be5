//! The connections of one worker, found by the engine's small indices.

use std::cmp::Reverse;
use std::time::Instant;

use ucall_buffer::Payload;
use ucall_engine::Id;
use ucall_proto::{Connection, Reservation, Wish};

use crate::Caller;
use crate::floods::Unread;

/// How many of the longest idle connections one look for them remembers.
const IDLE_REMEMBERED: usize = 256;

/// One connection and what is under way on it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) proto: Connection,
    /// Its name, and whose it is.
    pub(crate) caller: Caller,
    /// Output behind the send that is under way.
    pub(crate) queued: Payload,
    /// Bytes of the send that is under way; 0 when there is none.
    pub(crate) sending: usize,
    /// When the peer last took some of it, as far as was looked, and how much it had taken then.
    pub(crate) taken_at: Instant,
    pub(crate) taken: usize,
    /// Memory of large output.
    pub(crate) reserved: Reservation,
    /// How much a target of the connection had when it was last looked at.
    pub(crate) filled: usize,
    /// How much it held when it began to wait for memory; see [`Starved`](crate::starved::Starved).
    pub(crate) starved_with: Option<usize>,
    /// Whether the engine was told to stop receiving.
    pub(crate) paused: bool,
    /// Whether our side of the stream is ended.
    pub(crate) finished: bool,
    /// What has come of a handshake whose turn has not; see [`Floods`](crate::floods::Floods).
    pub(crate) unread: Unread,
    /// The turn in which something came last, and how many bytes in that turn.
    pub(crate) turn: u64,
    pub(crate) turn_bytes: usize,
}

impl Entry {
    #[inline]
    pub(crate) fn id(&self) -> Id {
        self.caller.connection
    }

    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.sending + self.queued.len()
    }

    /// Whether nothing is under way but what comes next, and that may come.
    #[inline(always)]
    pub(crate) fn is_at_ease(&self) -> bool {
        self.queued_bytes() == 0 && !self.paused && self.proto.wish() == Wish::Receive
    }

    /// Notes a send of so many bytes that is under way.
    #[inline(always)]
    pub(crate) fn begin_sending(&mut self, len: usize, now: Instant) {
        self.sending = len;
        (self.taken_at, self.taken) = (now, 0);
    }

    /// Since when nothing has been under way; `None` while something is.
    fn idle_since(&self) -> Option<Instant> {
        self.proto.idle_since().filter(|_| self.queued_bytes() == 0)
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Option<Entry>>,
    len: usize,
    /// The longest idle ones at the last look for them, and since when: the longest idle last.
    idle: Vec<(Instant, Id)>,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Places there are, with or without a connection.
    pub(crate) fn places(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn at_mut(&mut self, place: usize) -> Option<&mut Entry> {
        self.entries.get_mut(place)?.as_mut()
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
        let entry = Entry {
            proto,
            caller: Caller { connection: id, peer: None },
            queued: Payload::new(),
            sending: 0,
            taken_at: now,
            taken: 0,
            reserved: Reservation::default(),
            filled: 0,
            starved_with: None,
            paused: false,
            finished: false,
            unread: Unread::default(),
            turn: 0,
            turn_bytes: 0,
        };
        if let Some(place) = self.entries.get_mut(index)
            && place.replace(entry).is_none()
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    /// The connection without a request for the longest time, since before `bound`.
    ///
    /// Looking at all of them for each newcomer would let a flood of those slow everybody down. So
    /// a look remembers many of the longest idle ones: as long as one of them is still idle, no
    /// other can have been idle for longer.
    pub(crate) fn longest_idle(&mut self, bound: Instant) -> Option<Id> {
        self.next_idle().or_else(|| {
            self.look_for_idle(bound);
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

    fn look_for_idle(&mut self, bound: Instant) {
        let mut idle = std::mem::take(&mut self.idle);
        let looked_at = self.iter().filter_map(|entry| Some((entry.idle_since()?, entry.id())));
        idle.extend(looked_at.filter(|(since, _)| *since < bound));
        if idle.len() > IDLE_REMEMBERED {
            idle.select_nth_unstable_by_key(IDLE_REMEMBERED, |(since, _)| *since);
            idle.truncate(IDLE_REMEMBERED);
        }
        idle.sort_unstable_by_key(|(since, _)| Reverse(*since));
        self.idle = idle;
    }
}
