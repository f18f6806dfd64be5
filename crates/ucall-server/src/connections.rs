//! The connections of one worker, found by the engine's small indices.

use std::net::SocketAddr;
use std::time::Instant;

use ucall_buffer::Payload;
use ucall_engine::Id;
use ucall_proto::Connection;

/// One connection and what is under way on it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) id: Id,
    pub(crate) proto: Connection,
    /// Output behind the send that is under way.
    pub(crate) queued: Payload,
    /// Bytes of the send that is under way; 0 when there is none.
    pub(crate) sending: usize,
    /// When the peer last took some of it, as far as was looked, and how much it had taken then.
    pub(crate) taken_at: Instant,
    pub(crate) taken: usize,
    /// Whether the engine was told to stop receiving.
    pub(crate) paused: bool,
    /// Whether our side of the stream is ended.
    pub(crate) finished: bool,
    /// The address of the other end, once somebody has asked for it.
    pub(crate) peer: Option<SocketAddr>,
}

impl Entry {
    /// Bytes that wait to be sent.
    #[inline]
    pub(crate) fn queued_bytes(&self) -> usize {
        self.sending + self.queued.len()
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Option<Entry>>,
    len: usize,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn find(&mut self, id: Id) -> Option<&mut Entry> {
        self.entries.get_mut(id.index as usize)?.as_mut().filter(|entry| entry.id == id)
    }

    pub(crate) fn insert(&mut self, id: Id, proto: Connection, now: Instant) {
        let index = id.index as usize;
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        let entry = Entry {
            id,
            proto,
            queued: Payload::new(),
            sending: 0,
            taken_at: now,
            taken: 0,
            paused: false,
            finished: false,
            peer: None,
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

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().flatten()
    }

    /// The connection without a request for the longest time, other than `newcomer`.
    pub(crate) fn longest_idle(&self, newcomer: Id) -> Option<Id> {
        self.iter()
            .filter(|entry| entry.id != newcomer && entry.queued_bytes() == 0)
            .filter_map(|entry| Some((entry.proto.idle_since()?, entry.id)))
            .min_by_key(|(since, _)| *since)
            .map(|(_, id)| id)
    }
}
