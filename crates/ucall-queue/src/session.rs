//! One session: the messages it sent and keeps, and how far it has received.
//!
//! Each direction numbers its messages from 1. Sent messages stay in `store` until they are
//! acknowledged in the way that this side asked for. When a link begins, the peer reports whether
//! it knows this session. If it does, sending continues after the last message it received. If it
//! does not, because it was restarted or had given the session up, it gets all kept messages;
//! those that were sent before are marked as possible repeats.
//!
//! | | we know the peer | we do not |
//! |---|---|---|
//! | the peer knows us | continue both ways | receive what it keeps; send after what it received |
//! | it does not | continue to receive; send all kept messages | begin both ways |
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use crate::batch::Batch;
use crate::delivery_state::{DeliveryState, DeliveryStatus, ReceiveCredit};
use crate::failure::Failure;
use crate::frame::{self, Header, Hello, Kind, Progress, ProtocolError, Sharing};
use crate::identity::{Identity, Incarnation};
use crate::link_key::LinkKey;
use crate::message::COPIED_BYTES_MAX;
use crate::options::Acknowledge;
use crate::outbox::Outbox;

/// Bytes that a peer may send beyond its window, which it checks only before each batch.
const WINDOW_SLACK: u64 = 1 << 20;

pub(crate) struct Session {
    pub(crate) delivery: Arc<DeliveryState>,
    /// That of this side.
    pub(crate) incarnation: Incarnation,
    pub(crate) peer: Option<Identity>,
    pub(crate) peer_incarnation: Incarnation,
    /// The name in the peer's certificate when the session began, if one was required.
    pub(crate) certificate_name: Option<Box<[u8]>>,
    pub(crate) link: Option<LinkKey>,
    /// When the last link ended.
    pub(crate) disconnected_at: Instant,
    /// Its start was reported as an event.
    pub(crate) start_reported: bool,
    /// The peer knows [`Kind::Accepts`] and [`Kind::Rejected`].
    pub(crate) peer_takes_names: bool,
    /// The names that the peer accepts are to arrive on this link.
    pub(crate) awaits_names: bool,
    /// It took the place of a client's session that expired, and waits for the server without a
    /// limit.
    pub(crate) awaits_server: bool,
    pub(crate) ending: Ending,
    /// Our end says that this side will not be started again.
    pub(crate) end_is_final: bool,
    outgoing: SendHalf,
    incoming: ReceiveHalf,
}

/// The state of our own end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// Messages may be put.
    Open,
    /// Messages that were put are sent, then the end.
    Flushing,
    /// The end was sent under this number.
    Sent(u64),
}

#[derive(Default)]
struct SendHalf {
    acknowledge: Acknowledge,
    store: VecDeque<SentBatch>,
    /// The first batch in `store` that was not sent on this link.
    next: usize,
    /// The last number that was sent on any link.
    sent: u64,
    received: u64,
    taken: u64,
    window: u64,
    /// The longest message that the peer accepts.
    message_bytes_max: u64,
    /// Batches that were sent and not taken: their last numbers and weights.
    untaken: VecDeque<(u64, u64)>,
    untaken_weight: u64,
    /// `Blocked` was sent and not answered yet.
    has_sent_blocked: bool,
}

/// A batch that was sent and may have to be sent again.
struct SentBatch {
    first: u64,
    last: u64,
    weight: usize,
    parts: Vec<Bytes>,
}

struct ReceiveHalf {
    credit: Arc<ReceiveCredit>,
    received: u64,
    /// The number of the last message that was neither cancelled nor dropped.
    last_message: u64,
    weight: u64,
    /// The largest window that was advertised on this link, which the peer must not exceed.
    window: u64,
    advertised: Advertised,
    has_ended: bool,
    /// The peer has said that it will not be started again.
    end_is_final: bool,
    /// The peer waits for room, so that any taken message is reported.
    is_peer_blocked: bool,
    is_due: bool,
}

/// What the last acknowledgement or handshake reported to the peer.
#[derive(Clone, Copy, Default)]
struct Advertised {
    taken: u64,
    acknowledged: u64,
    /// Bytes of messages that `get` had returned by then.
    freed_bytes: u64,
    /// Bytes that the peer may have in flight and untaken, which it keeps to.
    window: u64,
}

impl Session {
    pub(crate) fn new(
        delivery: Arc<DeliveryState>,
        incarnation: Incarnation,
        acknowledge: Acknowledge,
        now: Instant,
    ) -> Self {
        let index = delivery.index;
        Self {
            peer: delivery.peer(),
            delivery,
            incarnation,
            peer_incarnation: Incarnation::UNKNOWN,
            certificate_name: None,
            link: None,
            disconnected_at: now,
            start_reported: false,
            awaits_server: false,
            peer_takes_names: false,
            awaits_names: false,
            ending: Ending::Open,
            end_is_final: false,
            outgoing: SendHalf { acknowledge, message_bytes_max: u64::MAX, ..SendHalf::default() },
            incoming: ReceiveHalf {
                credit: Arc::new(ReceiveCredit::new(index, 0, Acknowledge::Received)),
                received: 0,
                last_message: 0,
                weight: 0,
                window: 0,
                advertised: Advertised::default(),
                has_ended: false,
                end_is_final: false,
                is_peer_blocked: false,
                is_due: false,
            },
        }
    }

    /// The handshake of a new link.
    pub(crate) fn hello(&mut self, us: Identity, message_bytes_max: usize, window: u64) -> Hello {
        self.incoming.window = window;
        let oldest = match self.ending {
            // Another incarnation of the peer needs our end, too.
            Ending::Sent(sequence) => sequence.min(self.delivery.acknowledged() + 1),
            Ending::Open | Ending::Flushing => self.delivery.acknowledged() + 1,
        };
        Hello {
            identity: us,
            incarnation: self.incarnation,
            known_incarnation: self.peer_incarnation,
            progress: self.incoming.advertise(window),
            oldest,
            message_bytes_max: message_bytes_max as u64,
            wants: self.outgoing.acknowledge,
            has_finished: self.is_closed(),
            takes_names: true,
            sharing: Sharing::default(),
        }
    }

    /// Resumes the session on a new link, by the peer's handshake.
    pub(crate) fn resume(&mut self, hello: &Hello, outbox: &Outbox) -> Result<(), ProtocolError> {
        let is_known = hello.incarnation.constant_time_eq(self.peer_incarnation);
        if !is_known {
            self.peer_incarnation = hello.incarnation;
            self.incoming.begin(hello.oldest - 1, hello.wants);
        }
        self.peer_takes_names = hello.takes_names;
        self.awaits_names = hello.takes_names;
        if !hello.takes_names {
            outbox.set_accepted(self.delivery.index, Arc::default());
        }
        self.incoming.is_peer_blocked = false;
        self.outgoing.window = hello.progress.window;
        self.outgoing.message_bytes_max = hello.message_bytes_max;
        self.outgoing.has_sent_blocked = false;
        if is_known && hello.known_incarnation == self.incarnation {
            self.progress(&hello.progress, outbox)?;
            self.outgoing.rewind_to(hello.progress.received);
        } else {
            self.outgoing.restore_end(self.ending, self.end_is_final);
            self.outgoing.rewind_to_begin();
        }
        Ok(())
    }

    /// Handles an acknowledgement; `true` if it covers more messages than before.
    pub(crate) fn progress(
        &mut self,
        progress: &Progress,
        outbox: &Outbox,
    ) -> Result<bool, ProtocolError> {
        let outgoing = &mut self.outgoing;
        let Progress { received, taken, acknowledged, .. } = *progress;
        if received > outgoing.sent || taken.max(acknowledged) > received {
            return Err(ProtocolError::OutOfOrder);
        }
        outgoing.window = progress.window;
        outgoing.has_sent_blocked = false;
        outgoing.received = outgoing.received.max(received);
        outgoing.taken = outgoing.taken.max(taken);
        outgoing.count_taken();
        let acknowledged = match outgoing.acknowledge {
            Acknowledge::Received => outgoing.received,
            Acknowledge::Taken => outgoing.taken,
            Acknowledge::Explicit => acknowledged,
        };
        if acknowledged <= self.delivery.acknowledged() {
            return Ok(false);
        }
        // Release their memory first: the program may reuse it once they are acknowledged.
        let freed = outgoing.drop_through(acknowledged);
        self.delivery.acknowledge(acknowledged);
        outbox.release(self.delivery.index, freed);
        Ok(true)
    }

    /// The parts of the next batch, if there is one and room for it.
    pub(crate) fn next_batch(&mut self, outbox: &Outbox) -> Option<Vec<Bytes>> {
        if self.outgoing.untaken_weight >= self.outgoing.window {
            return None;
        }
        if let Some(parts) = self.outgoing.resend(&self.delivery) {
            return Some(parts);
        }
        if self.awaits_names && outbox.has_unchecked(self.delivery.index) {
            return None;
        }
        let batch = outbox.take(self.delivery.index).or_else(|| self.take_end(outbox))?;
        Some(self.outgoing.send(batch, &self.delivery))
    }

    /// Whether `Blocked` is due: a batch waits for room, and the peer does not know yet.
    pub(crate) fn wants_room(&mut self, outbox: &Outbox) -> bool {
        let outgoing = &self.outgoing;
        let is_blocked = outgoing.untaken_weight >= outgoing.window && !outgoing.has_sent_blocked;
        let has_more = || {
            let has_end = self.ending == Ending::Flushing;
            has_end || outgoing.next < outgoing.store.len() || !outbox.is_empty(self.delivery.index)
        };
        let wants_room = is_blocked && has_more();
        self.outgoing.has_sent_blocked |= wants_room;
        wants_room
    }

    /// The peer waits for room.
    pub(crate) fn set_peer_blocked(&mut self) {
        self.incoming.is_peer_blocked = true;
    }

    /// Our end, once all messages before it are settled.
    fn take_end(&mut self, outbox: &Outbox) -> Option<Batch> {
        // A peer that has ended takes no more, but another incarnation may acknowledge the rest.
        let is_empty = self.outgoing.store.is_empty();
        let is_clear = match self.outgoing.acknowledge {
            Acknowledge::Received => true,
            Acknowledge::Taken => is_empty || self.incoming.has_ended,
            Acknowledge::Explicit => is_empty,
        };
        if self.ending != Ending::Flushing || !is_clear {
            return None;
        }
        let sequence = outbox.end_sequence(self.delivery.index)?;
        self.ending = Ending::Sent(sequence);
        Some(Batch::end(sequence, self.end_is_final))
    }

    /// Whether any message of ours is not acknowledged. Our end does not count.
    pub(crate) fn has_unsent(&self, outbox: &Outbox) -> bool {
        let is_end = |sent_batch: &SentBatch| self.ending == Ending::Sent(sent_batch.first);
        self.outgoing.store.front().is_some_and(|sent_batch| !is_end(sent_batch))
            || !outbox.is_empty(self.delivery.index)
    }

    /// How many messages of ours are neither acknowledged nor known to have failed.
    pub(crate) fn count_unacknowledged(&self, outbox: &Outbox) -> usize {
        let is_pending =
            |sequence: u64| self.delivery.progress(sequence) == DeliveryStatus::Pending;
        let sent = self.outgoing.store.iter().filter_map(|sent_batch| sent_batch.parts.first());
        let sent: usize = sent.map(|frames| frame::count_messages(frames, is_pending)).sum();
        sent + outbox.count_messages(self.delivery.index, is_pending)
    }

    /// Whether unacknowledged messages are kept for another incarnation of the peer.
    pub(crate) fn keeps_for_next_incarnation(&self, outbox: &Outbox) -> bool {
        self.outgoing.acknowledge == Acknowledge::Explicit && self.has_unsent(outbox)
    }

    /// Whether the peer has ended.
    pub(crate) fn peer_has_ended(&self) -> bool {
        self.incoming.has_ended
    }

    /// Whether the peer has ended for good.
    pub(crate) fn peer_has_ended_for_good(&self) -> bool {
        self.incoming.has_ended && self.incoming.end_is_final
    }

    /// Whether our side has ended, and the peer knows.
    pub(crate) fn our_end_is_known(&self) -> bool {
        matches!(self.ending, Ending::Sent(sequence) if self.outgoing.received >= sequence)
    }

    /// Whether both sides have ended, and the peer knows of ours.
    pub(crate) fn is_closed(&self) -> bool {
        self.incoming.has_ended && self.our_end_is_known()
    }

    /// Counts a numbered frame. `false` for one that was received before.
    pub(crate) fn accept(&mut self, header: &Header, first: u64) -> Result<bool, ProtocolError> {
        let incoming = &mut self.incoming;
        if header.sequence <= incoming.received {
            return Ok(false);
        }
        // Part of a gap may have been received as messages.
        let begins = if header.kind == Kind::Gap { first } else { header.sequence };
        if begins > incoming.received + 1 || begins == 0 || incoming.has_ended {
            return Err(ProtocolError::OutOfOrder);
        }
        // Checked before it counts as received, because a refused message is sent again.
        let is_too_much = incoming.untaken() > incoming.window + WINDOW_SLACK
            || incoming.credit.has_too_many_gaps();
        if header.kind == Kind::Data && is_too_much {
            return Err(ProtocolError::WindowExceeded);
        }
        incoming.received = header.sequence;
        incoming.has_ended |= header.kind == Kind::End;
        incoming.end_is_final |= header.kind == Kind::End && header.segments > 0;
        incoming.is_due = true;
        Ok(true)
    }

    /// Counts the weight of an accepted message; returns where `get` counts it as taken.
    pub(crate) fn count_message(&mut self, header: &Header, weight: usize) -> Arc<ReceiveCredit> {
        let incoming = &mut self.incoming;
        incoming.weight += weight as u64;
        incoming.last_message = header.sequence;
        incoming.credit.add(header.sequence);
        incoming.credit.clone()
    }

    /// The acknowledgement that is due, if one is. `window` is the number of bytes that the peer
    /// may have in flight from now on.
    pub(crate) fn take_acknowledgement(&mut self, window: u64) -> Option<Progress> {
        let incoming = &mut self.incoming;
        // An advertised window is not reduced at once: more may be in flight.
        incoming.window = incoming.window.max(window);
        let has_update = incoming.credit.wants_taken()
            && incoming.taken() > incoming.advertised.taken
            || incoming.credit.acknowledged(incoming.received) > incoming.advertised.acknowledged;
        let has_room = incoming.freed_since_advertised() >= incoming.advertised.window / 4
            || incoming.is_peer_blocked && incoming.untaken() == 0;
        if !(std::mem::take(&mut incoming.is_due) || has_update || has_room) {
            incoming.notify_when_due();
            return None;
        }
        Some(incoming.advertise(window))
    }

    /// The messages that the program rejected and the peer does not know of. Call it after
    /// [`Session::take_acknowledgement`], so that it has all that are acknowledged.
    pub(crate) fn take_rejected(&self) -> Vec<(u64, String)> {
        let rejected = self.incoming.credit.take_rejected();
        if self.peer_takes_names { rejected } else { Vec::new() }
    }

    /// Handles the peer's report that its program could not read a message.
    pub(crate) fn handle_rejected(
        &mut self,
        sequence: u64,
        reason: &str,
    ) -> Result<bool, ProtocolError> {
        if sequence == 0 || sequence > self.outgoing.sent {
            return Err(ProtocolError::OutOfOrder);
        }
        let is_reported = self.outgoing.acknowledge != Acknowledge::Received;
        Ok(is_reported && self.delivery.reject(sequence, reason))
    }

    /// Whether a message was taken meanwhile.
    pub(crate) fn acknowledgement_is_due(&self) -> bool {
        self.incoming.is_due
    }

    /// Ends the session: releases the kept batches and acknowledges no more.
    pub(crate) fn close(&mut self, failure: &Failure) {
        self.outgoing.store.clear();
        self.incoming.credit.close(failure.clone());
        self.delivery.fail(failure.clone());
    }
}

impl SentBatch {
    /// Drops messages that are longer than the peer accepts: they would end every link.
    fn drop_oversized(&mut self, message_bytes_max: u64, delivery: &DeliveryState) {
        let Some(frames) = self.parts.first() else { return };
        let is_short = self.first < self.last && message_bytes_max >= COPIED_BYTES_MAX as u64;
        let is_too_long = |header: &Header| {
            matches!(header.kind, Kind::Data | Kind::Cancelled) && header.length > message_bytes_max
        };
        let (mut rest, mut fitting) = (&frames[..], Vec::new());
        while !is_short && let Some((header, length)) = frame::first_frame(rest) {
            if is_too_long(&header) {
                if header.kind == Kind::Data {
                    delivery.mark_unsent(header.sequence, Failure::TooLong(message_bytes_max));
                }
                fitting.extend(Batch::gap(header.sequence, header.sequence).frames);
            } else if self.first == self.last {
                return;
            } else {
                fitting.extend_from_slice(rest.get(..length).unwrap_or_default());
            }
            rest = rest.get(length..).unwrap_or_default();
        }
        if !fitting.is_empty() {
            self.parts = vec![Bytes::from(fitting)];
        }
    }
}

impl SendHalf {
    /// The next batch that has to be sent again.
    fn resend(&mut self, delivery: &DeliveryState) -> Option<Vec<Bytes>> {
        let sent_batch = self.store.get_mut(self.next)?;
        sent_batch.drop_oversized(self.message_bytes_max, delivery);
        self.next += 1;
        let (last, weight) = (sent_batch.last, sent_batch.weight as u64);
        if self.untaken.back().is_none_or(|&(before, _)| before < last) {
            self.untaken.push_back((last, weight));
            self.untaken_weight += weight;
        }
        Some(sent_batch.parts.clone())
    }

    fn send(&mut self, batch: Batch, delivery: &DeliveryState) -> Vec<Bytes> {
        let Batch { first, last, weight, frames, parts: body } = batch;
        let mut parts = Vec::with_capacity(1 + body.len());
        parts.push(Bytes::from(frames));
        parts.extend(body);
        self.sent = self.sent.max(last);
        self.untaken.push_back((last, weight as u64));
        self.untaken_weight += weight as u64;
        let mut sent_batch = SentBatch { first, last, weight, parts };
        sent_batch.drop_oversized(self.message_bytes_max, delivery);
        delivery.set_sent(last);
        let parts = sent_batch.parts.clone();
        self.store.push_back(sent_batch);
        self.next = self.store.len();
        parts
    }

    /// Releases acknowledged batches; returns their weight.
    fn drop_through(&mut self, acknowledged: u64) -> usize {
        let mut freed = 0;
        while let Some(sent_batch) =
            self.store.front().filter(|sent_batch| sent_batch.last <= acknowledged)
        {
            freed += sent_batch.weight;
            self.store.pop_front();
            self.next = self.next.saturating_sub(1);
        }
        freed
    }

    fn count_taken(&mut self) {
        while let Some(&(last, weight)) = self.untaken.front() {
            if last > self.taken {
                return;
            }
            self.untaken_weight -= weight;
            self.untaken.pop_front();
        }
    }

    /// Continues after the last message that the peer has received.
    fn rewind_to(&mut self, received: u64) {
        self.next = self.store.partition_point(|sent_batch| sent_batch.last <= received);
        while let Some(&(last, weight)) = self.untaken.back() {
            if last <= received {
                return;
            }
            self.untaken_weight -= weight;
            self.untaken.pop_back();
        }
    }

    /// Keeps our end for another incarnation of the peer, after the last one acknowledged it.
    fn restore_end(&mut self, ending: Ending, is_final: bool) {
        let Ending::Sent(sequence) = ending else { return };
        if self.store.back().is_none_or(|sent_batch| sent_batch.last < sequence) {
            let Batch { first, last, weight, frames, .. } = Batch::end(sequence, is_final);
            self.store.push_back(SentBatch { first, last, weight, parts: vec![frames.into()] });
        }
    }

    /// Sends all kept messages again, to a peer that may have received them before a restart.
    fn rewind_to_begin(&mut self) {
        self.next = 0;
        self.untaken.clear();
        self.untaken_weight = 0;
        let before = self.store.front().map_or(self.sent, |sent_batch| sent_batch.first - 1);
        (self.received, self.taken) = (before, before);
        for sent_batch in &mut self.store {
            if let Some(frames) = sent_batch.parts.first_mut() {
                let mut copy = frames.to_vec();
                frame::mark_repeated(&mut copy, self.sent);
                *frames = Bytes::from(copy);
            }
        }
    }
}

impl ReceiveHalf {
    /// Begins after this number, with a peer that was not known.
    fn begin(&mut self, received: u64, wants: Acknowledge) {
        // Messages of its earlier incarnation can be acknowledged no longer.
        self.credit.close(Failure::PeerClosed);
        self.credit = Arc::new(ReceiveCredit::new(self.credit.index, received, wants));
        self.received = received;
        self.last_message = received;
        self.weight = 0;
        self.has_ended = false;
        self.end_is_final = false;
        self.advertised = Advertised { window: self.advertised.window, ..Advertised::default() };
    }

    /// The last number up to which all messages are taken.
    fn taken(&self) -> u64 {
        self.credit.taken(self.received, self.last_message)
    }

    fn untaken(&self) -> u64 {
        self.weight.saturating_sub(self.credit.freed())
    }

    /// Freed bytes that the peer does not know of.
    fn freed_since_advertised(&self) -> u64 {
        self.credit.freed().saturating_sub(self.advertised.freed_bytes)
    }

    fn advertise(&mut self, window: u64) -> Progress {
        // In this order, because `get` writes them in the other: a take meanwhile wakes us.
        let freed_bytes = self.credit.freed();
        let (received, taken) = (self.received, self.taken());
        let acknowledged = self.credit.acknowledged(received);
        self.advertised = Advertised { taken, acknowledged, freed_bytes, window };
        self.is_peer_blocked &= freed_bytes < self.weight;
        self.notify_when_due();
        Progress { received, taken, acknowledged, window }
    }

    /// Has `get` wake this thread once an acknowledgement is due.
    fn notify_when_due(&mut self) {
        let bytes = if self.credit.wants_taken() { 1 } else { (self.advertised.window / 4).max(1) };
        let mut freed = self.advertised.freed_bytes + bytes;
        if self.is_peer_blocked {
            freed = freed.min(self.weight);
        }
        self.is_due |= !self.credit.notify_when_freed(freed);
    }
}
