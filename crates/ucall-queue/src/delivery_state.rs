//! How far a session is, for everybody to see.
//!
//! A message that was put needs no memory of its own to know whether it arrived: its number is
//! compared with that of the last one acknowledged.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::failure::Failure;
use crate::identity::Identity;
use crate::unacknowledged::Unacknowledged;

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryStatus {
    /// It is not acknowledged yet.
    Pending,
    /// It is.
    Done,
    /// It will not be.
    Failed(Failure),
}

/// How far one session is.
#[derive(Debug)]
pub struct DeliveryState {
    /// Its place among the sessions of this communicator.
    pub index: u32,
    peer: Mutex<Option<Identity>>,
    acknowledged: AtomicU64,
    failure: OnceLock<Failure>,
    has_dropped: AtomicBool,
    dropped: Mutex<Vec<(u64, u64)>>,
    /// Messages that the peer would not take, in ranges: it may refuse all, for as long as it
    /// stays.
    too_long: Mutex<Vec<LeftOut>>,
}

/// Messages from one number to another that are longer than the peer takes, which is so many bytes.
#[derive(Debug)]
struct LeftOut {
    first: u64,
    last: u64,
    bytes_max: u64,
}

/// How much of what one life of a peer has sent was taken.
#[derive(Debug)]
pub struct ReceiveCredit {
    /// The place of the session.
    pub index: u32,
    taken: AtomicU64,
    freed: AtomicU64,
    /// Freed bytes from which on the session's thread wants to be woken.
    notify_at: AtomicU64,
    /// For a peer that waits for the program's own acknowledgements.
    unacknowledged: Option<Unacknowledged>,
}

impl DeliveryState {
    /// That of a session which begins.
    pub fn new(index: u32, peer: Option<Identity>) -> Self {
        Self {
            index,
            peer: Mutex::new(peer),
            acknowledged: AtomicU64::new(0),
            failure: OnceLock::new(),
            has_dropped: AtomicBool::new(false),
            dropped: Mutex::new(Vec::new()),
            too_long: Mutex::new(Vec::new()),
        }
    }

    /// Who is on the other side, once that is known.
    pub fn peer(&self) -> Option<Identity> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_peer(&self, peer: Identity) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    }

    /// What became of the message of this number.
    #[inline]
    pub fn progress(&self, sequence: u64) -> DeliveryStatus {
        if self.has_dropped.load(Ordering::Acquire)
            && let Some(failure) = self.drop_reason(sequence)
        {
            return DeliveryStatus::Failed(failure);
        }
        // The failure first: what was acknowledged before it is done all the same.
        let failure = self.failure.get();
        if self.acknowledged.load(Ordering::Acquire) >= sequence {
            return DeliveryStatus::Done;
        }
        failure.map_or(DeliveryStatus::Pending, |failure| DeliveryStatus::Failed(failure.clone()))
    }

    /// Why the session is over, if it is.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    pub(crate) fn acknowledge(&self, sequence: u64) {
        self.acknowledged.store(sequence, Ordering::Release);
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Acquire)
    }

    pub(crate) fn fail(&self, failure: Failure) {
        // The first reason stands.
        let _ = self.failure.set(failure);
    }

    pub(crate) fn drop_message(&self, sequence: u64) {
        let mut ranges = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == sequence => *last = sequence,
            _ => ranges.push((sequence, sequence)),
        }
        self.has_dropped.store(true, Ordering::Release);
    }

    /// Notes that a message is not sent, because the peer takes none of more than so many bytes.
    pub(crate) fn mark_too_long(&self, sequence: u64, bytes_max: u64) {
        let mut too_long = self.too_long.lock().unwrap_or_else(PoisonError::into_inner);
        let position = too_long.partition_point(|range| range.last < sequence);
        let before = position.checked_sub(1).and_then(|before| too_long.get_mut(before));
        match before {
            Some(range) if range.last + 1 == sequence && range.bytes_max == bytes_max => {
                range.last = sequence;
            }
            _ => too_long.insert(position, LeftOut { first: sequence, last: sequence, bytes_max }),
        }
        self.has_dropped.store(true, Ordering::Release);
    }

    #[cold]
    fn drop_reason(&self, sequence: u64) -> Option<Failure> {
        let ranges = self.dropped.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ranges.partition_point(|&(_, last)| last < sequence);
        if ranges.get(next).is_some_and(|&(first, _)| first <= sequence) {
            return Some(Failure::Dropped);
        }
        let too_long = self.too_long.lock().unwrap_or_else(PoisonError::into_inner);
        let next = too_long.partition_point(|range| range.last < sequence);
        let range = too_long.get(next).filter(|range| range.first <= sequence)?;
        Some(Failure::TooLong(range.bytes_max))
    }
}

impl ReceiveCredit {
    /// Of somebody whose messages up to `taken` need no answer. With `is_explicit`, the others are
    /// acknowledged by the program.
    pub(crate) fn new(index: u32, taken: u64, is_explicit: bool) -> Self {
        Self {
            index,
            taken: AtomicU64::new(taken),
            freed: AtomicU64::new(0),
            notify_at: AtomicU64::new(u64::MAX),
            unacknowledged: is_explicit.then(Unacknowledged::default),
        }
    }

    /// Whether the program has to acknowledge each message itself.
    pub fn is_explicit(&self) -> bool {
        self.unacknowledged.is_some()
    }

    /// Acknowledges a message, in any order. Again, or where the peer does not wait for it, does
    /// nothing. Returns whether the session's thread has to be woken.
    ///
    /// # Errors
    /// The session is over, and the message was not acknowledged before.
    pub fn acknowledge(&self, sequence: u64) -> Result<bool, Failure> {
        let unacknowledged = self.unacknowledged.as_ref();
        unacknowledged.map_or(Ok(false), |it| it.acknowledge(sequence))
    }

    /// Notes that a message came.
    pub(crate) fn add(&self, sequence: u64) {
        if let Some(unacknowledged) = &self.unacknowledged {
            unacknowledged.add(sequence);
        }
    }

    /// The last number that is acknowledged with all before it, of those that were `received`; 0
    /// where the peer does not wait for that.
    pub(crate) fn acknowledged(&self, received: u64) -> u64 {
        let Some(unacknowledged) = &self.unacknowledged else { return 0 };
        unacknowledged.first().map_or(received, |first| first - 1)
    }

    /// Whether so many gaps are between acknowledged messages that no other is to come.
    pub(crate) fn has_too_many_gaps(&self) -> bool {
        self.unacknowledged.as_ref().is_some_and(Unacknowledged::is_full)
    }

    /// The session is over: what was not acknowledged will not be.
    pub(crate) fn close(&self, failure: Failure) {
        if let Some(unacknowledged) = &self.unacknowledged {
            unacknowledged.close(failure);
        }
    }

    /// Notes that `get` has returned a message; tells whether the session's thread is to be told.
    #[inline]
    pub fn take(&self, sequence: u64, weight: usize) -> bool {
        self.taken.fetch_max(sequence, Ordering::AcqRel);
        // In one order with `notify_when_freed`: one of the two sees the other.
        let freed = self.freed.fetch_add(weight as u64, Ordering::SeqCst) + weight as u64;
        freed >= self.notify_at.load(Ordering::SeqCst)
            && self.notify_at.swap(u64::MAX, Ordering::SeqCst) != u64::MAX
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }

    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// Asks to be told once so much was freed; `false` when it is already.
    pub(crate) fn notify_when_freed(&self, bytes: u64) -> bool {
        self.notify_at.store(bytes, Ordering::SeqCst);
        self.freed.load(Ordering::SeqCst) < bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_messages_stay_dropped_when_later_ones_arrive() {
        let delivery = DeliveryState::new(0, None);
        for sequence in [2, 3, 5] {
            delivery.drop_message(sequence);
        }
        delivery.acknowledge(6);
        let done: Vec<_> =
            (1..=7).filter(|&it| delivery.progress(it) == DeliveryStatus::Done).collect();
        assert_eq!(done, [1, 4, 6]);
        assert_eq!(delivery.progress(7), DeliveryStatus::Pending);
    }

    #[test]
    fn a_peer_that_takes_no_message_at_all_takes_no_memory() {
        let delivery = DeliveryState::new(0, None);
        for sequence in (1..=1000).chain(1002..=2000) {
            delivery.mark_too_long(sequence, 0);
        }
        delivery.mark_too_long(2001, 9);
        // What was put before may be sent again later.
        delivery.mark_too_long(1001, 9);
        assert!(delivery.too_long.lock().unwrap().len() <= 4);
        delivery.acknowledge(3000);
        for (sequence, bytes_max) in [(1, 0), (1000, 0), (1001, 9), (1002, 0), (2000, 0), (2001, 9)]
        {
            let failure = Failure::TooLong(bytes_max);
            assert_eq!(delivery.progress(sequence), DeliveryStatus::Failed(failure), "{sequence}");
        }
        assert_eq!(delivery.progress(2002), DeliveryStatus::Done);
    }

    #[test]
    fn messages_acknowledged_before_a_failure_are_done() {
        let delivery = DeliveryState::new(0, None);
        delivery.acknowledge(1);
        delivery.fail(Failure::Expired);
        assert_eq!(delivery.progress(1), DeliveryStatus::Done);
        assert_eq!(delivery.progress(2), DeliveryStatus::Failed(Failure::Expired));
    }
}
