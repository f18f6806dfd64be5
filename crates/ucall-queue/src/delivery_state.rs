//! How far a session's messages are acknowledged and taken, readable from any thread.
//!
//! The delivery of a message takes no memory of its own: its number is compared with that of the
//! last acknowledged message.
#![forbid(unsafe_code)]

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::failure::Failure;
use crate::identity::Identity;
use crate::options::Acknowledge;
use crate::unacknowledged::Unacknowledged;

/// Rejected messages of one session that wait to be reported to the peer. Further ones are not
/// reported, and count as taken.
const REJECTED_MAX: usize = 1024;
/// Ranges of messages that are not sent or were rejected. A peer cannot add to this many.
const RANGES_MAX: usize = 16 * 1024;

/// The delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryStatus {
    /// It is not acknowledged yet.
    Pending,
    /// It is acknowledged.
    Done,
    /// It will not be acknowledged, for this reason.
    Failed(Failure),
}

/// How far the peer of one session has acknowledged.
#[derive(Debug)]
pub struct DeliveryState {
    /// The index of the session.
    pub index: u32,
    peer: Mutex<Option<Identity>>,
    acknowledged: AtomicU64,
    /// The last number that was sent to any incarnation of the peer.
    sent: AtomicU64,
    failure: OnceLock<Failure>,
    /// How often a message was added to `unsent`.
    unsent_changes: AtomicU64,
    /// Messages that are not sent, as ranges, because a peer may accept none at all.
    unsent: Mutex<Vec<UnsentRange>>,
}

/// A range of messages that are not sent, and the reason.
#[derive(Debug)]
struct UnsentRange {
    first: u64,
    last: u64,
    failure: Failure,
    /// They were sent before.
    was_sent: bool,
}

/// How many messages and bytes of one incarnation of a peer were taken.
#[derive(Debug)]
pub struct ReceiveCredit {
    /// The index of the session.
    pub index: u32,
    taken: AtomicU64,
    freed: AtomicU64,
    /// The number of freed bytes at which the session's thread is woken.
    notify_at: AtomicU64,
    /// What the peer wants acknowledged.
    wants: Acknowledge,
    /// For a peer that wants takes or the program's own acknowledgements: threads take messages
    /// in any order.
    unacknowledged: Option<Unacknowledged>,
    /// Messages that the program could not read, and why. The peer does not know yet.
    rejected: Mutex<Vec<(u64, String)>>,
    has_rejected: AtomicBool,
}

impl DeliveryState {
    /// The state of a new session.
    pub fn new(index: u32, peer: Option<Identity>) -> Self {
        Self {
            index,
            peer: Mutex::new(peer),
            acknowledged: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failure: OnceLock::new(),
            unsent_changes: AtomicU64::new(0),
            unsent: Mutex::new(Vec::new()),
        }
    }

    /// The peer, once it is known.
    pub fn peer(&self) -> Option<Identity> {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_peer(&self, peer: Identity) {
        *self.peer.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    }

    /// The delivery of the message with this number.
    #[inline]
    pub fn progress(&self, sequence: u64) -> DeliveryStatus {
        if self.unsent_changes() > 0
            && let Some(failure) = self.unsent_reason(sequence)
        {
            return DeliveryStatus::Failed(failure);
        }
        // The failure is read first: messages that were acknowledged before it are done.
        let failure = self.failure.get();
        if self.acknowledged.load(Ordering::Acquire) >= sequence {
            return DeliveryStatus::Done;
        }
        failure.map_or(DeliveryStatus::Pending, |failure| DeliveryStatus::Failed(failure.clone()))
    }

    /// Whether the peer may have a message that has failed.
    pub fn may_have_arrived(&self, sequence: u64) -> bool {
        let ranges = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ranges.partition_point(|range| range.last < sequence);
        match ranges.get(next).filter(|range| range.first <= sequence) {
            Some(range) => range.was_sent,
            None => self.was_sent(sequence),
        }
    }

    fn was_sent(&self, sequence: u64) -> bool {
        sequence <= self.sent.load(Ordering::Acquire)
    }

    pub(crate) fn set_sent(&self, sequence: u64) {
        self.sent.fetch_max(sequence, Ordering::Release);
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

    /// Records that a message is not sent, and the reason.
    pub(crate) fn mark_unsent(&self, sequence: u64, failure: Failure) {
        let was_sent = self.was_sent(sequence);
        let mut ranges = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let position = ranges.partition_point(|range| range.last < sequence);
        let before = position.checked_sub(1).and_then(|before| ranges.get_mut(before));
        match before {
            Some(range)
                if range.last + 1 == sequence
                    && range.failure == failure
                    && range.was_sent == was_sent =>
            {
                range.last = sequence;
            }
            _ => {
                let (first, last) = (sequence, sequence);
                ranges.insert(position, UnsentRange { first, last, failure, was_sent });
            }
        }
        self.unsent_changes.fetch_add(1, Ordering::Release);
    }

    /// Changes with each message that is not sent or was rejected, which ends its delivery before
    /// those in front of it.
    pub fn unsent_changes(&self) -> u64 {
        self.unsent_changes.load(Ordering::Acquire)
    }

    /// The messages that are not sent or were rejected.
    pub fn unsent(&self) -> Vec<RangeInclusive<u64>> {
        let ranges = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        ranges.iter().map(|range| range.first..=range.last).collect()
    }

    /// Records why the peer could not read a message. `false` if its delivery is settled, or too
    /// many were rejected.
    pub(crate) fn reject(&self, sequence: u64, reason: &str) -> bool {
        let is_settled = self.progress(sequence) != DeliveryStatus::Pending;
        let count = self.unsent.lock().unwrap_or_else(PoisonError::into_inner).len();
        if is_settled || count >= RANGES_MAX {
            return false;
        }
        self.mark_unsent(sequence, Failure::Rejected(reason.to_owned()));
        true
    }

    #[cold]
    fn unsent_reason(&self, sequence: u64) -> Option<Failure> {
        let ranges = self.unsent.lock().unwrap_or_else(PoisonError::into_inner);
        let next = ranges.partition_point(|range| range.last < sequence);
        let range = ranges.get(next).filter(|range| range.first <= sequence)?;
        Some(range.failure.clone())
    }
}

impl ReceiveCredit {
    /// The credit of a peer whose messages up to `taken` are settled.
    pub(crate) fn new(index: u32, taken: u64, wants: Acknowledge) -> Self {
        Self {
            index,
            taken: AtomicU64::new(taken),
            freed: AtomicU64::new(0),
            notify_at: AtomicU64::new(u64::MAX),
            wants,
            unacknowledged: (wants != Acknowledge::Received).then(Unacknowledged::default),
            rejected: Mutex::default(),
            has_rejected: AtomicBool::new(false),
        }
    }

    /// Whether the program has to acknowledge each message itself.
    pub fn is_explicit(&self) -> bool {
        self.wants == Acknowledge::Explicit
    }

    /// Acknowledges a message, in any order. Does nothing if it is acknowledged already or the peer
    /// does not want that from the program. Returns whether the session's thread has to be woken.
    ///
    /// # Errors
    /// The session is over, and the message was not acknowledged before.
    pub fn acknowledge(&self, sequence: u64) -> Result<bool, Failure> {
        let unacknowledged = self.unacknowledged.as_ref().filter(|_| self.is_explicit());
        unacknowledged.map_or(Ok(false), |it| it.acknowledge(sequence))
    }

    /// Records that the program could not read a message. Call it before [`ReceiveCredit::take`],
    /// so that the peer learns of it before the message counts as taken.
    pub fn reject(&self, sequence: u64, reason: String) {
        let mut rejected = self.rejected.lock().unwrap_or_else(PoisonError::into_inner);
        if rejected.len() < REJECTED_MAX {
            rejected.push((sequence, reason));
        }
        self.has_rejected.store(true, Ordering::Release);
    }

    /// The messages that were rejected since the last call.
    pub(crate) fn take_rejected(&self) -> Vec<(u64, String)> {
        if !self.has_rejected.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        std::mem::take(&mut *self.rejected.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records that a message was received.
    pub(crate) fn add(&self, sequence: u64) {
        if let Some(unacknowledged) = &self.unacknowledged {
            unacknowledged.add(sequence);
        }
    }

    /// The last number up to which the program has acknowledged all `received` messages; 0 if the
    /// peer does not want that.
    pub(crate) fn acknowledged(&self, received: u64) -> u64 {
        let unacknowledged = self.unacknowledged.as_ref().filter(|_| self.is_explicit());
        unacknowledged.map_or(0, |it| it.settled(received))
    }

    /// Whether there are too many gaps between acknowledged messages to accept another message.
    pub(crate) fn has_too_many_gaps(&self) -> bool {
        self.unacknowledged.as_ref().is_some_and(Unacknowledged::is_full)
    }

    /// The session is over: no other message can be acknowledged.
    pub(crate) fn close(&self, failure: Failure) {
        if let Some(unacknowledged) = &self.unacknowledged {
            unacknowledged.close(failure);
        }
    }

    /// Records that `get` has returned a message. Returns whether the session's thread has to be
    /// woken.
    #[inline]
    pub fn take(&self, sequence: u64, weight: usize) -> bool {
        if let Some(unacknowledged) = self.unacknowledged.as_ref().filter(|_| self.wants_taken()) {
            // The session may be over: then no peer wants to know.
            let _ = unacknowledged.acknowledge(sequence);
        } else {
            self.taken.fetch_max(sequence, Ordering::AcqRel);
        }
        // In one order with `notify_when_freed`: one of the two sees the other.
        let freed = self.freed.fetch_add(weight as u64, Ordering::SeqCst) + weight as u64;
        freed >= self.notify_at.load(Ordering::SeqCst)
            && self.notify_at.swap(u64::MAX, Ordering::SeqCst) != u64::MAX
    }

    /// Whether the peer wants each take acknowledged at once.
    pub(crate) fn wants_taken(&self) -> bool {
        self.wants == Acknowledge::Taken
    }

    /// The last number up to which all `received` messages are taken, of which `last` was the last.
    pub(crate) fn taken(&self, received: u64, last: u64) -> u64 {
        match self.unacknowledged.as_ref().filter(|_| self.wants_taken()) {
            Some(unacknowledged) => unacknowledged.settled(received),
            None => {
                Some(self.taken.load(Ordering::Acquire)).filter(|it| *it < last).unwrap_or(received)
            }
        }
    }

    pub(crate) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// Has [`ReceiveCredit::take`] wake the thread at this number of freed bytes; `false` if it is
    /// reached already.
    pub(crate) fn notify_when_freed(&self, bytes: u64) -> bool {
        self.notify_at.store(bytes, Ordering::SeqCst);
        self.freed.load(Ordering::SeqCst) < bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_settles_no_message_before_it_that_another_thread_still_reads() {
        let credit = ReceiveCredit::new(0, 0, Acknowledge::Taken);
        (1..=3).for_each(|sequence| credit.add(sequence));
        credit.take(2, 1);
        assert_eq!(credit.taken(3, 3), 0);
        credit.take(1, 1);
        assert_eq!(credit.taken(3, 3), 2);
        credit.take(3, 1);
        // The fourth was dropped by its sender.
        assert_eq!(credit.taken(4, 3), 4);
        assert_eq!(credit.acknowledged(4), 0);
    }

    #[test]
    fn dropped_messages_stay_dropped_when_later_ones_arrive() {
        let delivery = DeliveryState::new(0, None);
        for sequence in [2, 3, 5] {
            delivery.mark_unsent(sequence, Failure::Dropped);
        }
        assert_eq!((delivery.unsent(), delivery.unsent_changes()), (vec![2..=3, 5..=5], 3));
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
            delivery.mark_unsent(sequence, Failure::TooLong(0));
        }
        delivery.mark_unsent(2001, Failure::TooLong(9));
        // A message that was put before may be sent again later.
        delivery.mark_unsent(1001, Failure::TooLong(9));
        assert!(delivery.unsent.lock().unwrap().len() <= 4);
        delivery.acknowledge(3000);
        for (sequence, bytes_max) in [(1, 0), (1000, 0), (1001, 9), (1002, 0), (2000, 0), (2001, 9)]
        {
            let failure = Failure::TooLong(bytes_max);
            assert_eq!(delivery.progress(sequence), DeliveryStatus::Failed(failure), "{sequence}");
        }
        assert_eq!(delivery.progress(2002), DeliveryStatus::Done);
    }

    #[test]
    fn only_messages_that_were_sent_may_have_arrived() {
        let delivery = DeliveryState::new(0, None);
        delivery.mark_unsent(1, Failure::Dropped);
        delivery.set_sent(3);
        delivery.mark_unsent(2, Failure::Rejected("of another version".to_owned()));
        delivery.fail(Failure::Expired);
        let arrived: Vec<_> = (1..=4).filter(|&it| delivery.may_have_arrived(it)).collect();
        assert_eq!(arrived, [2, 3]);
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
