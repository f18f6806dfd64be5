//! Messages of all sessions that were received and are not taken yet.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ucall_engine::EventCount;

use crate::failure::Failure;
use crate::identity::Identity;
use crate::message::Incoming;
use crate::turns::Turns;

/// Messages that are taken before those that have arrived meanwhile get their turns.
const TAKEN_MAX: usize = 64;

/// The messages of all sessions, whose peers take turns.
#[derive(Default)]
pub struct Inbox {
    /// Messages that the session's thread added. Locked briefly, so that it never waits for `take`.
    added: Mutex<VecDeque<Incoming>>,
    /// Messages that `take` moved here from `added`, many at a time.
    batch: Mutex<Batch>,
    /// The weight of all messages that are not taken, also of peers whose session is over.
    weight: AtomicUsize,
    /// Why no message will arrive any more, and the only peer of a client.
    closed: OnceLock<(Option<Identity>, Failure)>,
    /// Notified of messages and of the close.
    arrived: EventCount,
}

#[derive(Default)]
struct Batch {
    turns: Turns,
    /// What is moved, so that `added` is not locked meanwhile.
    moved: VecDeque<Incoming>,
    /// Messages that were taken since the last move.
    taken: usize,
}

/// The result of [`Inbox::take`].
#[derive(Debug)]
pub enum TakeResult {
    /// The next message.
    Message(Incoming),
    /// No message has arrived yet.
    Empty,
    /// No message will arrive any more. Has the server of a client.
    Closed(Option<Identity>, Failure),
}

impl Inbox {
    /// Takes the next message, or the next one of `peers` unless that is empty.
    #[inline]
    pub fn take(&self, peers: &[Identity]) -> TakeResult {
        // Read before the messages, so that those that arrived before the close are found.
        let closed = self.closed.get();
        let mut batch = lock(&self.batch);
        if batch.turns.is_empty() || !peers.is_empty() || batch.taken >= TAKEN_MAX {
            let Batch { turns, moved, taken } = &mut *batch;
            std::mem::swap(&mut *lock(&self.added), moved);
            turns.append(moved);
            *taken = 0;
        }
        let found = batch.turns.pop(peers);
        batch.taken += 1;
        let has_more = !batch.turns.is_empty();
        drop(batch);
        match found {
            Some(message) => {
                self.weight.fetch_sub(message.weight, Ordering::Relaxed);
                if has_more {
                    // Other threads may wait after they found both queues empty.
                    self.arrived.notify();
                }
                TakeResult::Message(message)
            }
            None => closed.map_or(TakeResult::Empty, |(peer, failure)| {
                TakeResult::Closed(*peer, failure.clone())
            }),
        }
    }

    /// Takes as [`Inbox::take`] does, and waits for a message until the deadline.
    pub fn wait(&self, peers: &[Identity], deadline: Option<Instant>) -> TakeResult {
        let received = || match self.take(peers) {
            TakeResult::Empty => None,
            found => Some(found),
        };
        self.arrived.wait(deadline, received).unwrap_or(TakeResult::Empty)
    }

    /// Whether there is no message to take.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
    }

    /// Why no message will arrive any more; `None` while more may.
    pub fn closed(&self) -> Option<&Failure> {
        self.closed.get().map(|(_, failure)| failure)
    }

    /// The weight of all messages that are not taken.
    pub(crate) fn weight(&self) -> usize {
        self.weight.load(Ordering::Relaxed)
    }

    /// Moves all of `messages` in; `false` if there are none.
    pub(crate) fn push(&self, messages: &mut VecDeque<Incoming>) -> bool {
        if messages.is_empty() {
            return false;
        }
        let weight = messages.iter().map(|message| message.weight).sum();
        self.weight.fetch_add(weight, Ordering::Relaxed);
        lock(&self.added).append(messages);
        self.arrived.notify();
        true
    }

    /// Accepts no message after this. The first reason stands.
    pub(crate) fn close(&self, peer: Option<Identity>, failure: Failure) {
        let _ = self.closed.set((peer, failure));
        self.arrived.notify();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Inbox {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Inbox")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::delivery_state::ReceiveCredit;
    use crate::frame::Encoding;
    use crate::message::{Body, Segment};
    use crate::options::Acknowledge;

    const LOUD: Identity = Identity([1; 16]);
    const QUIET: Identity = Identity([2; 16]);

    fn messages(peer: Identity, sequences: std::ops::Range<u64>) -> VecDeque<Incoming> {
        let credit = Arc::new(ReceiveCredit::new(0, 0, Acknowledge::Received));
        let message = |sequence| Incoming {
            peer,
            credit: credit.clone(),
            sequence,
            weight: 1,
            encoding: Encoding::Bytes,
            redelivered: false,
            body: Body::One(Segment::Shared(bytes::Bytes::new())),
        };
        sequences.map(message).collect()
    }

    fn take(inbox: &Inbox, peers: &[Identity]) -> Option<(Identity, u64)> {
        match inbox.take(peers) {
            TakeResult::Message(message) => Some((message.peer, message.sequence)),
            _ => None,
        }
    }

    #[test]
    fn a_quiet_peer_does_not_wait_behind_the_messages_of_a_loud_one() {
        let inbox = Inbox::default();
        inbox.push(&mut messages(LOUD, 0..10_000));
        assert_eq!(take(&inbox, &[]), Some((LOUD, 0)));
        inbox.push(&mut messages(QUIET, 0..3));
        inbox.push(&mut messages(LOUD, 10_000..10_010));
        let taken: Vec<_> = std::iter::from_fn(|| take(&inbox, &[])).collect();
        let quiet: Vec<_> = (0..taken.len()).filter(|at| taken[*at].0 == QUIET).collect();
        assert!(quiet.len() == 3 && quiet[2] < TAKEN_MAX + 6, "taken at {quiet:?}");
        // Each peer's are in order, and none is lost.
        for (peer, sequences) in [(LOUD, 1..10_010), (QUIET, 0..3)] {
            let of_peer = taken.iter().filter(|(sender, _)| *sender == peer).map(|(_, it)| *it);
            assert!(of_peer.eq(sequences), "{peer}");
        }
        assert!(taken.len() == 10_012 && inbox.is_empty());
    }

    #[test]
    fn the_named_peers_take_turns_alone() {
        let inbox = Inbox::default();
        let other = Identity([3; 16]);
        inbox.push(&mut messages(LOUD, 0..3));
        inbox.push(&mut messages(QUIET, 0..1));
        inbox.push(&mut messages(other, 0..1));
        let named = [QUIET, LOUD];
        let taken: Vec<_> = std::iter::from_fn(|| take(&inbox, &named)).collect();
        assert_eq!(taken, [(LOUD, 0), (QUIET, 0), (LOUD, 1), (LOUD, 2)]);
        assert_eq!(take(&inbox, &[]), Some((other, 0)));
    }
}
