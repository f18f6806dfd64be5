//! Messages that were put and not sent yet, a queue for each session.
//!
//! Short messages are encoded once, as frames that follow one another in a batch, which is sent and
//! kept as one part. Long messages keep their parts where they are. The session's thread takes a
//! batch when it sends it, so every message in a queue can still be cancelled or dropped.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use hashbrown::HashMap;
use ucall_engine::{EventCount, WakeFlag};

use crate::accepted_names::AcceptedNames;
use crate::batch::Batch;
use crate::delivery_state::DeliveryState;
use crate::failure::Failure;
use crate::frame::{self, HEADER_BYTES};
use crate::identity::Identity;
use crate::message::{COPIED_BYTES_MAX, MESSAGE_WEIGHT, Outgoing};
use crate::options::FullPolicy;

/// A batch takes no more messages at this many bytes. With a batch for each message, a sender takes
/// 2,540 instructions in place of 378 for 64 bytes, and 2,680 in place of 1,500 for 4 KiB; at 1 MiB
/// there is no difference (pipelined over a Unix socket, counted by callgrind). Either way a short
/// message is copied once.
const BATCH_BYTES: usize = 64 * 1024;

/// The numbers of a message in its sessions, by which its delivery is polled.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// Put for one peer.
    One(Arc<DeliveryState>, u64),
    /// Put for several peers.
    Many(Arc<[(Arc<DeliveryState>, u64)]>),
    /// Not put: the peer, if one was named, and the reason.
    None(Option<Identity>, Failure),
}

/// Why a message was not put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PutError {
    /// The queue of this peer is full.
    Full(Option<Identity>),
    /// The message is longer than this limit.
    TooLong(usize),
    /// This peer does not accept the name at this position in the message's.
    NotAccepted(Option<Identity>, usize),
}

/// The queues of all sessions.
#[derive(Debug)]
pub struct Outbox {
    queues: Mutex<SendQueues>,
    room: EventCount,
    wake_flag: Arc<WakeFlag>,
    queue_bytes_max: usize,
    message_bytes_max: usize,
    full: FullPolicy,
}

#[derive(Debug, Default)]
struct SendQueues {
    queues: Vec<Option<SendQueue>>,
    by_peer: HashMap<Identity, u32>,
    /// Queues with new messages.
    changed: Vec<u32>,
    /// Why no message may be put any more, and the only peer of a client.
    closed: Option<(Option<Identity>, Failure)>,
}

#[derive(Debug)]
struct SendQueue {
    delivery: Arc<DeliveryState>,
    /// Dropped messages before the batches.
    gap: Option<(u64, u64)>,
    batches: VecDeque<Batch>,
    next: u64,
    /// The weight of all messages that are here, or sent and not acknowledged.
    total_weight: usize,
    is_changed: bool,
    /// No message may be put any more.
    ended: bool,
    /// The names that the peer accepts; `None` until it has announced them.
    accepted: Option<Arc<AcceptedNames>>,
    /// Messages that were put before, with their names.
    unchecked: VecDeque<(u64, Vec<String>)>,
}

impl Outbox {
    pub(crate) fn new(
        wake_flag: Arc<WakeFlag>,
        queue_bytes_max: usize,
        message_bytes_max: usize,
        full: FullPolicy,
    ) -> Self {
        let queues = Mutex::default();
        Self {
            queues,
            room: EventCount::default(),
            wake_flag,
            queue_bytes_max,
            message_bytes_max,
            full,
        }
    }

    /// Enqueues a message for these peers, or for all if none are named. Never waits.
    pub fn put(&self, peers: &[Identity], message: &Outgoing<'_>) -> Result<Receipt, PutError> {
        let length = message.len();
        if length > self.message_bytes_max {
            return Err(PutError::TooLong(self.message_bytes_max));
        }
        let mut queues = self.lock();
        let receipt = queues.put(peers, message, self.queue_bytes_max, self.full)?;
        drop(queues);
        self.wake_flag.notify();
        Ok(receipt)
    }

    /// Waits until the queues of these peers have room for this weight, or a peer is gone.
    pub fn wait_for_room(
        &self,
        peers: &[Identity],
        weight: usize,
        deadline: Option<Instant>,
    ) -> bool {
        let fits = || {
            let queues = self.lock();
            // A peer that is unknown or gone is not waited for.
            let Ok(chosen) = queues.select(peers) else { return Some(()) };
            let full = chosen.iter().any(|&index| {
                queues.queue(index).is_some_and(|queue| queue.is_full(weight, self.queue_bytes_max))
            });
            (!full).then_some(())
        };
        self.room.wait(deadline, fits).is_some()
    }

    /// Cancels a message; `false` if it was sent.
    pub fn cancel(&self, delivery: &DeliveryState, sequence: u64) -> bool {
        let mut queues = self.lock();
        let Some(queue) = queues.queue_mut(delivery.index) else { return false };
        let is_cancelled = std::ptr::eq(&*queue.delivery, delivery) && queue.cancel(sequence);
        drop(queues);
        if is_cancelled {
            self.room.notify();
        }
        is_cancelled
    }

    /// All peers.
    pub fn peers(&self) -> Vec<Identity> {
        let queues = self.lock();
        queues.queues.iter().flatten().filter_map(|queue| queue.delivery.peer()).collect()
    }

    /// Opens a queue. Another one, whose place it takes, takes no messages from now on.
    pub(crate) fn open(&self, delivery: Arc<DeliveryState>, instead_of: Option<u32>) {
        let mut queues = self.lock();
        if let Some(queue) = instead_of.and_then(|index| queues.queue_mut(index)) {
            queue.ended = true;
        }
        let index = delivery.index;
        let position = index as usize;
        if queues.queues.len() <= position {
            queues.queues.resize_with(position + 1, || None);
        }
        if let Some(peer) = delivery.peer() {
            queues.by_peer.insert(peer, index);
        }
        if let Some(queue) = queues.queues.get_mut(position) {
            *queue = Some(SendQueue::new(delivery));
        }
        drop(queues);
        // The queue that was there before may have been full.
        self.room.notify();
    }

    /// Sets the peer of a queue, which was unknown or another one.
    pub(crate) fn set_peer(&self, index: u32, peer: Identity) {
        let mut queues = self.lock();
        queues.by_peer.retain(|_, other| *other != index);
        queues.by_peer.insert(peer, index);
    }

    /// Removes a queue and its messages.
    pub(crate) fn remove(&self, index: u32) {
        let mut queues = self.lock();
        let queue = queues.queues.get_mut(index as usize).and_then(Option::take);
        // Without a scan of `by_peer`: thousands may end at once.
        if let Some(peer) = queue.and_then(|queue| queue.delivery.peer())
            && queues.by_peer.get(&peer) == Some(&index)
        {
            queues.by_peer.remove(&peer);
        }
        drop(queues);
        self.room.notify();
    }

    /// Refuses messages for all queues from now on.
    pub(crate) fn close(&self, peer: Option<Identity>, failure: Failure) {
        self.lock().closed.get_or_insert((peer, failure));
        self.room.notify();
    }

    /// Refuses messages for this queue from now on.
    pub(crate) fn end(&self, index: u32) {
        if let Some(queue) = self.lock().queue_mut(index) {
            queue.ended = true;
        }
        self.room.notify();
    }

    /// The next number of a queue that has ended, once it is empty.
    pub(crate) fn end_sequence(&self, index: u32) -> Option<u64> {
        let mut queues = self.lock();
        let queue = queues.queue_mut(index)?;
        let is_empty = queue.batches.is_empty() && queue.gap.is_none();
        (queue.ended && is_empty).then(|| {
            queue.next += 1;
            queue.next - 1
        })
    }

    /// Sets the names that the peer of a queue accepts. Messages with others fail.
    pub(crate) fn set_accepted(&self, index: u32, accepted: Arc<AcceptedNames>) {
        if let Some(queue) = self.lock().queue_mut(index) {
            queue.set_accepted(accepted);
        }
        self.room.notify();
    }

    /// Whether a queue has messages whose names the peer may not accept.
    pub(crate) fn has_unchecked(&self, index: u32) -> bool {
        self.lock().queue(index).is_some_and(|queue| !queue.unchecked.is_empty())
    }

    /// How many messages of a queue have such a number.
    pub(crate) fn count_messages(&self, index: u32, is_counted: impl Fn(u64) -> bool) -> usize {
        let queues = self.lock();
        let batches = queues.queue(index).into_iter().flat_map(|queue| &queue.batches);
        batches.map(|batch| frame::count_messages(&batch.frames, &is_counted)).sum()
    }

    /// Whether a queue has no messages.
    pub(crate) fn is_empty(&self, index: u32) -> bool {
        self.lock().queue(index).is_none_or(|queue| queue.batches.is_empty() && queue.gap.is_none())
    }

    /// Moves the queues with new messages to the end of `changed`.
    pub(crate) fn take_changed(&self, changed: &mut Vec<u32>) {
        let mut queues = self.lock();
        let queues = &mut *queues;
        for index in queues.changed.drain(..) {
            if let Some(queue) = queues.queues.get_mut(index as usize).and_then(Option::as_mut) {
                queue.is_changed = false;
                changed.push(index);
            }
        }
    }

    /// Takes the next batch of a queue.
    pub(crate) fn take(&self, index: u32) -> Option<Batch> {
        self.lock().queue_mut(index)?.take()
    }

    /// Releases the weight of acknowledged messages.
    pub(crate) fn release(&self, index: u32, weight: usize) {
        if let Some(queue) = self.lock().queue_mut(index) {
            queue.total_weight = queue.total_weight.saturating_sub(weight);
        }
        self.room.notify();
    }

    fn lock(&self) -> MutexGuard<'_, SendQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SendQueues {
    fn queue(&self, index: u32) -> Option<&SendQueue> {
        self.queues.get(index as usize)?.as_ref()
    }

    fn queue_mut(&mut self, index: u32) -> Option<&mut SendQueue> {
        self.queues.get_mut(index as usize)?.as_mut()
    }

    /// The queues of these peers, or all.
    fn select(&self, peers: &[Identity]) -> Result<Vec<u32>, Receipt> {
        if let Some((peer, failure)) = &self.closed {
            let peer = peers.first().or(peer.as_ref());
            return Err(Receipt::None(peer.copied(), failure.clone()));
        }
        let mut chosen = Vec::with_capacity(peers.len().max(1));
        if peers.is_empty() {
            let open = self.queues.iter().flatten().filter(|queue| !queue.ended);
            chosen.extend(open.map(|queue| queue.delivery.index));
            if chosen.is_empty() {
                let ended = self.queues.iter().flatten().find_map(|queue| queue.delivery.peer());
                let failure = ended.map_or(Failure::Unknown, |_| Failure::PeerClosed);
                return Err(Receipt::None(ended, failure));
            }
        }
        for peer in peers {
            let known = self.by_peer.get(peer).ok_or(Failure::Unknown);
            let open = known.and_then(|&index| match self.queue(index) {
                Some(queue) if !queue.ended => Ok(index),
                _ => Err(Failure::PeerClosed),
            });
            match open {
                Ok(index) => chosen.push(index),
                Err(failure) => return Err(Receipt::None(Some(*peer), failure)),
            }
        }
        Ok(chosen)
    }

    fn put(
        &mut self,
        peers: &[Identity],
        message: &Outgoing<'_>,
        queue_bytes_max: usize,
        full: FullPolicy,
    ) -> Result<Receipt, PutError> {
        // The only queue, as in a client, needs no list. A client whose server was started again
        // has had another one.
        if let ([], [Some(queue)] | [Some(queue), None] | [None, Some(queue)], None) =
            (peers, &mut self.queues[..], &self.closed)
            && !queue.ended
            && message.names.is_empty()
            && !queue.is_full(message.weight(), queue_bytes_max)
        {
            let receipt = Receipt::One(queue.delivery.clone(), queue.push(message));
            if !queue.is_changed {
                queue.is_changed = true;
                self.changed.push(queue.delivery.index);
            }
            return Ok(receipt);
        }
        let chosen = match self.select(peers) {
            Ok(chosen) => chosen,
            Err(receipt) => return Ok(receipt),
        };
        let weight = message.weight();
        for queue in chosen.iter().filter_map(|&index| self.queue(index)) {
            if let Some(position) = queue.first_not_accepted(message.names) {
                return Err(PutError::NotAccepted(queue.delivery.peer(), position));
            }
            let refuses = matches!(full, FullPolicy::Error | FullPolicy::Block);
            if refuses && queue.is_full(weight, queue_bytes_max) {
                return Err(PutError::Full(queue.delivery.peer()));
            }
        }
        let mut receipts = Vec::with_capacity(chosen.len());
        let mut dropped = None;
        for index in chosen {
            let Some(queue) = self.queue_mut(index) else { continue };
            if full == FullPolicy::DropOldest {
                queue.make_room(weight, queue_bytes_max);
            }
            if queue.is_full(weight, queue_bytes_max) {
                // The other peers get it: one that reads nothing must not stop them.
                dropped = Some(Receipt::None(queue.delivery.peer(), Failure::Dropped));
                continue;
            }
            receipts.push((queue.delivery.clone(), queue.push(message)));
            if !std::mem::replace(&mut queue.is_changed, true) {
                self.changed.push(index);
            }
        }
        if let Some(dropped) = dropped {
            return Ok(dropped);
        }
        Ok(match receipts.pop() {
            Some((delivery, sequence)) if receipts.is_empty() => Receipt::One(delivery, sequence),
            last => {
                receipts.extend(last);
                Receipt::Many(receipts.into())
            }
        })
    }
}

impl SendQueue {
    fn new(delivery: Arc<DeliveryState>) -> Self {
        Self {
            delivery,
            gap: None,
            batches: VecDeque::new(),
            next: 1,
            total_weight: 0,
            is_changed: false,
            ended: false,
            accepted: None,
            unchecked: VecDeque::new(),
        }
    }

    /// Whether there is no room for this weight. An empty queue takes any message.
    fn is_full(&self, weight: usize, queue_bytes_max: usize) -> bool {
        self.total_weight > 0 && self.total_weight + weight > queue_bytes_max
    }

    fn push(&mut self, message: &Outgoing<'_>) -> u64 {
        let sequence = self.next;
        let weight = message.weight();
        self.next += 1;
        self.total_weight += weight;
        if !message.names.is_empty() && self.accepted.is_none() {
            self.unchecked.push_back((sequence, message.names.to_vec()));
        }
        if message.parts.is_empty() && message.copied.len() <= COPIED_BYTES_MAX {
            self.append(message, sequence, weight);
        } else {
            let mut frames = Vec::new();
            message.write_head(sequence, &mut frames);
            let parts = if message.parts.is_empty() {
                vec![Bytes::copy_from_slice(message.copied)]
            } else {
                message.parts.clone()
            };
            self.batches.push_back(Batch {
                first: sequence,
                last: sequence,
                weight,
                frames,
                parts,
            });
        }
        sequence
    }

    /// Appends a short message to the last batch.
    #[inline]
    fn append(&mut self, message: &Outgoing<'_>, sequence: u64, weight: usize) {
        let takes_more =
            |batch: &&mut Batch| batch.parts.is_empty() && batch.frames.len() < BATCH_BYTES;
        if let Some(batch) = self.batches.back_mut().filter(takes_more) {
            batch.last = sequence;
            batch.weight += weight;
            message.write_head(sequence, &mut batch.frames);
            batch.frames.extend_from_slice(message.copied);
            return;
        }
        let mut frames = Vec::with_capacity(HEADER_BYTES + message.copied.len());
        message.write_head(sequence, &mut frames);
        frames.extend_from_slice(message.copied);
        let parts = Vec::new();
        self.batches.push_back(Batch { first: sequence, last: sequence, weight, frames, parts });
    }

    /// The first of these names that the peer is known not to accept.
    fn first_not_accepted(&self, names: &[String]) -> Option<usize> {
        let accepted = self.accepted.as_ref().filter(|_| !names.is_empty())?;
        names.iter().position(|name| !accepted.may_accept(name))
    }

    /// Fails the messages that the peer does not accept, and checks those that follow.
    fn set_accepted(&mut self, accepted: Arc<AcceptedNames>) {
        self.accepted = Some(accepted);
        for (sequence, mut names) in std::mem::take(&mut self.unchecked) {
            if let Some(position) = self.first_not_accepted(&names)
                && self.cancel(sequence)
            {
                let name = names.swap_remove(position);
                self.delivery.mark_unsent(sequence, Failure::NotAccepted(name));
            }
        }
    }

    fn cancel(&mut self, sequence: u64) -> bool {
        let next = self.batches.partition_point(|batch| batch.last < sequence);
        let Some(batch) = self.batches.get_mut(next) else { return false };
        if batch.first > sequence {
            return false;
        }
        if batch.parts.is_empty() {
            // A cancelled message keeps the weight of an empty one.
            let Some(freed) = frame::mark_cancelled(&mut batch.frames, sequence) else {
                return false;
            };
            batch.weight -= freed;
            self.total_weight -= freed;
            return true;
        }
        let freed = batch.weight - MESSAGE_WEIGHT;
        *batch = Batch::gap(sequence, sequence);
        batch.weight = MESSAGE_WEIGHT;
        self.total_weight -= freed;
        true
    }

    /// Drops the oldest messages until there is room or none are left.
    fn make_room(&mut self, weight: usize, queue_bytes_max: usize) {
        while self.is_full(weight, queue_bytes_max) {
            let Some(batch) = self.batches.front_mut() else { return };
            let dropped = if batch.first == batch.last {
                let batch = self.batches.pop_front();
                batch.map(|batch| (batch.first, batch.weight))
            } else {
                frame::first_frame(&batch.frames).map(|(header, length)| {
                    batch.frames.drain(..length.min(batch.frames.len()));
                    let weight = length - HEADER_BYTES + MESSAGE_WEIGHT;
                    batch.first += 1;
                    batch.weight -= weight;
                    (header.sequence, weight)
                })
            };
            let Some((sequence, freed)) = dropped else { return };
            self.total_weight -= freed;
            while self.unchecked.front().is_some_and(|(first, _)| *first <= sequence) {
                self.unchecked.pop_front();
            }
            self.delivery.mark_unsent(sequence, Failure::Dropped);
            let first = self.gap.map_or(sequence, |(first, _)| first);
            self.gap = Some((first, sequence));
        }
    }

    fn take(&mut self) -> Option<Batch> {
        match self.gap.take() {
            Some((first, last)) => Some(Batch::gap(first, last)),
            None => self.batches.pop_front(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Encoding;

    #[test]
    fn the_names_of_dropped_messages_are_dropped() {
        let full = FullPolicy::DropOldest;
        let outbox = Outbox::new(Arc::new(WakeFlag::new(|| {})), 1000, 1000, full);
        outbox.open(Arc::new(DeliveryState::new(0, None)), None);
        let names = &["app.Job".to_owned()];
        let message = Outgoing { names, ..Outgoing::copied(Encoding::Serialized, &[0; 100]) };
        for _ in 0..100 {
            outbox.put(&[], &message).unwrap();
        }
        let unchecked = outbox.lock().queue(0).unwrap().unchecked.clone();
        assert_eq!(unchecked.iter().map(|it| it.0).collect::<Vec<_>>(), [97, 98, 99, 100]);
    }

    #[test]
    fn a_full_queue_keeps_no_message_from_the_other_peers() {
        for full in [FullPolicy::DropOldest, FullPolicy::DropNewest] {
            let outbox = Outbox::new(Arc::new(WakeFlag::new(|| {})), 1000, 1000, full);
            let peers = [0, 1, 2].map(|index| Identity([index; 16]));
            for (index, peer) in (0..).zip(peers) {
                outbox.open(Arc::new(DeliveryState::new(index, Some(peer))), None);
            }
            let message = Outgoing::copied(Encoding::Bytes, &[0; 500]);
            outbox.put(&peers[1..2], &message).unwrap();
            // It is on the wire.
            outbox.take(1).unwrap();
            let receipt = outbox.put(&[], &message).unwrap();
            assert!(
                matches!(receipt, Receipt::None(Some(peer), Failure::Dropped) if peer == peers[1])
            );
            assert!(outbox.take(1).is_none());
            assert!(outbox.take(0).is_some() && outbox.take(2).is_some());
        }
    }

    #[test]
    fn a_refused_message_drops_none_of_the_other_peers() {
        let full = FullPolicy::DropOldest;
        let outbox = Outbox::new(Arc::new(WakeFlag::new(|| {})), 1000, 1000, full);
        for index in 0..2 {
            let peer = Some(Identity([index as u8; 16]));
            outbox.open(Arc::new(DeliveryState::new(index, peer)), None);
        }
        outbox.set_accepted(1, Arc::new(AcceptedNames::Listed(Default::default())));
        let first = Outgoing::copied(Encoding::Bytes, &[0; 500]);
        outbox.put(&[], &first).unwrap();
        let names = &["app.Job".to_owned()];
        outbox.put(&[], &Outgoing { names, ..first }).unwrap_err();
        assert!(outbox.lock().queue(0).unwrap().gap.is_none());
    }
}
