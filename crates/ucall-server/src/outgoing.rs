//! The output of one connection: what is being sent, and what is queued after it.

use std::mem;
use std::time::{Duration, Instant};

use ucall_buffer::Payload;
use ucall_proto::{MemoryBudget, Reservation};

/// Bytes of short items that the kernel holds unsent.
const UNSENT_BYTES_MAX: u32 = 128 * 1024;

/// The output of one connection.
#[derive(Debug)]
pub(crate) struct Outgoing {
    queued: Payload,
    /// Bytes of the send in flight; 0 when there is none.
    in_flight: usize,
    /// Bytes of both that are items of streams.
    queued_items: usize,
    in_flight_items: usize,
    /// Bytes of it that the peer had taken at the last inspection, and when that last changed.
    taken: usize,
    send_progress_at: Instant,
    /// The limit of [`Engine::limit_unsent`](ucall_engine::Engine::limit_unsent), if it is set.
    unsent_max: Option<u32>,
    reserved: Reservation,
}

impl Outgoing {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            queued: Payload::new(),
            in_flight: 0,
            queued_items: 0,
            in_flight_items: 0,
            unsent_max: None,
            taken: 0,
            send_progress_at: now,
            reserved: Reservation::default(),
        }
    }

    /// Unsent bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        self.in_flight + self.queued.len()
    }

    /// The same without the items of streams, which have a limit of their own.
    #[inline]
    pub(crate) fn reply_bytes(&self) -> usize {
        self.bytes() - self.queued_items - self.in_flight_items
    }

    /// Counts bytes of the queued output as items of streams.
    pub(crate) fn add_item_bytes(&mut self, len: usize) {
        self.queued_items += len;
    }

    /// The limit of bytes that the kernel holds unsent, if an item of this length changes it. Short
    /// items take long to make for their bytes. A long one lifts the limit: it would wait in the
    /// memory that all connections share.
    pub(crate) fn new_unsent_max(&mut self, item_bytes: usize) -> Option<u32> {
        let unsent_max = match self.unsent_max {
            Some(u32::MAX) => return None,
            _ if item_bytes > UNSENT_BYTES_MAX as usize => u32::MAX,
            Some(_) => return None,
            None => UNSENT_BYTES_MAX,
        };
        self.unsent_max = Some(unsent_max);
        self.unsent_max
    }

    /// Whether at least `bytes_max` of items of streams wait for the end of the send in flight.
    pub(crate) fn is_full_of_items(&self, bytes_max: usize) -> bool {
        self.is_sending() && self.queued_items >= bytes_max
    }

    /// Whether a send is in flight.
    #[inline]
    pub(crate) fn is_sending(&self) -> bool {
        self.in_flight > 0
    }

    #[inline]
    pub(crate) fn queued(&self) -> &Payload {
        &self.queued
    }

    #[inline]
    pub(crate) fn queued_mut(&mut self) -> &mut Payload {
        &mut self.queued
    }

    /// Takes the queued output for the next send; `None` while a send is in flight.
    #[inline(always)]
    pub(crate) fn take_next(&mut self) -> Option<Payload> {
        (!self.queued.is_empty() && self.in_flight == 0).then(|| {
            self.in_flight_items = mem::take(&mut self.queued_items);
            mem::take(&mut self.queued)
        })
    }

    /// Records a send of `len` bytes.
    #[inline(always)]
    pub(crate) fn begin_send(&mut self, len: usize, now: Instant) {
        self.in_flight = len;
        (self.taken, self.send_progress_at) = (0, now);
    }

    /// Records the end of the send; `true` if output is queued or memory is reserved.
    #[inline(always)]
    pub(crate) fn end_send(&mut self) -> bool {
        (self.in_flight, self.in_flight_items) = (0, 0);
        !self.queued.is_empty() || self.reserved.bytes() > 0
    }

    /// Updates the reservation to the unsent bytes, if they are more than a few replies.
    #[cold]
    pub(crate) fn reserve(&mut self, budget: &MemoryBudget) {
        self.reserved = budget.reserve_large(self.bytes());
    }

    /// Whether the peer has taken no byte of the send in flight for `timeout`. So far it has taken
    /// `taken` bytes.
    pub(crate) fn is_send_stalled(
        &mut self,
        taken: usize,
        now: Instant,
        timeout: Duration,
    ) -> bool {
        if taken != self.taken {
            (self.taken, self.send_progress_at) = (taken, now);
        }
        self.is_sending() && self.send_progress_at + timeout <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_send_is_in_flight_at_a_time() {
        let now = Instant::now();
        let mut outgoing = Outgoing::new(now);
        assert!(outgoing.take_next().is_none());
        outgoing.queued_mut().extend(b"first");
        let first = outgoing.take_next().expect("one is queued");
        outgoing.begin_send(first.len(), now);
        outgoing.queued_mut().extend(b"second");
        assert!(outgoing.take_next().is_none());
        assert_eq!((outgoing.bytes(), outgoing.is_sending()), (11, true));
        assert!(outgoing.end_send());
        assert_eq!(outgoing.take_next().map(|payload| payload.len()), Some(6));
        assert!(!outgoing.end_send());
    }

    #[test]
    fn a_peer_that_takes_nothing_in_time_is_stuck() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut outgoing = Outgoing::new(start);
        assert!(!outgoing.is_send_stalled(0, start + 9 * second, second), "nothing is sent");
        outgoing.begin_send(100, start);
        for (taken, seconds, is_send_stalled) in [(0, 1, false), (10, 2, false), (10, 3, false)] {
            assert_eq!(
                outgoing.is_send_stalled(taken, start + seconds * second, 2 * second),
                is_send_stalled
            );
        }
        assert!(outgoing.is_send_stalled(10, start + 4 * second, 2 * second));
    }

    #[test]
    fn large_output_is_reserved_until_it_is_sent() {
        let (now, budget) = (Instant::now(), MemoryBudget::default());
        let mut outgoing = Outgoing::new(now);
        outgoing.begin_send(MemoryBudget::UNRESERVED_BYTES, now);
        outgoing.reserve(&budget);
        assert_eq!(budget.bytes(), 0);
        outgoing.queued_mut().extend(b"x");
        outgoing.reserve(&budget);
        assert_eq!(budget.bytes(), outgoing.bytes());
        assert!(outgoing.end_send(), "the reservation is to be updated");
        drop(outgoing);
        assert_eq!(budget.bytes(), 0);
    }
}
