//! Sends output, and decides whether it goes out now or later.
//!
//! A step of a connection writes its replies to [`SendQueue::output`], and [`SendQueue::flush`]
//! sends them:
//!
//! | output | is sent |
//! |---|---|
//! | while a send of its connection is in flight | after that send |
//! | on posix: up to 16 KiB, of a connection that waits for requests | with up to three others |
//! | up to 16 KiB of items of streams and messages | at the end of the turn |
//! | any other | at once |
//!
//! Each entry into the kernel replaces the contents of caches and branch predictors, so posix sends
//! small replies in batches, at the latest at the end of the turn. io_uring submits all sends with
//! its next wait.

use std::mem;
use std::time::Instant;

use bytes::Bytes;
use ucall_buffer::Payload;
use ucall_engine::{Engine, Id, SendState};
use ucall_proto::{Attachment, MemoryBudget, NextAction};

use crate::connections::{Connections, Entry};

/// Replies in a batch. It is small, because a reply waits for the calls of those after it.
const BATCH_MAX: usize = 4;

/// What [`SendQueue::flush`] did with the output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    /// The output is sent or queued.
    Done,
    /// The output is queued, and [`SendQueue::send_batch`] is due.
    BatchIsFull,
    /// The output is left for [`SendQueue::flush`].
    NotYet,
}

/// The output of a worker's connections.
#[derive(Debug)]
pub(crate) struct SendQueue {
    output: Output,
    /// The connections of the next batch.
    batch: Vec<Id>,
    /// Whether output waits for the end of a send, which an engine may report as late as with the
    /// next event.
    needs_poll: bool,
    bytes_sent: u64,
    budget: MemoryBudget,
}

impl SendQueue {
    /// A queue that reserves memory for large output from `budget`.
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        let (output, batch) = (Output::default(), Vec::new());
        Self { output, batch, needs_poll: false, bytes_sent: 0, budget }
    }

    /// The buffer that a step of a connection writes to.
    #[inline(always)]
    pub(crate) fn output(&mut self) -> &mut Vec<u8> {
        self.output.head_mut()
    }

    /// Inserts bytes into the output that are sent from where they lie.
    #[cold]
    pub(crate) fn attach(&mut self, attachments: Vec<Attachment>) {
        let parts = attachments.into_iter().map(|it| (it.at, it.bytes));
        self.output.payload.insert(parts);
    }

    pub(crate) fn output_is_empty(&self) -> bool {
        self.output.is_empty()
    }

    pub(crate) fn clear_output(&mut self) {
        self.output.clear();
    }

    /// Whether memory is kept for a large reply, until [`SendQueue::release_unused`] releases it.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.output.is_large()
    }

    /// Releases memory that no large reply has used since the last call.
    pub(crate) fn release_unused(&mut self) {
        self.output.release_unused();
    }

    /// Bytes handed to the engine.
    #[inline]
    pub(crate) fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Has the next wait poll for the end of a send.
    #[inline]
    pub(crate) fn request_poll(&mut self) {
        self.needs_poll = true;
    }

    /// Whether the next wait has to poll, once.
    #[inline]
    pub(crate) fn take_poll(&mut self) -> bool {
        mem::take(&mut self.needs_poll)
    }

    /// Appends the output to that of its connection, and sends it according to the table above.
    #[inline]
    pub(crate) fn flush<E: Engine>(
        &mut self,
        engine: &mut E,
        entry: &mut Entry,
        now: Instant,
    ) -> Flushed {
        let was_queued = !entry.outgoing.queued().is_empty();
        if was_queued {
            self.output.append_to(entry.outgoing.queued_mut());
        } else if !self.output.is_empty() {
            self.output.move_to(entry.outgoing.queued_mut());
        } else {
            return Flushed::Done;
        }
        let len = entry.outgoing.queued().len();
        if entry.outgoing.is_sending() {
            self.needs_poll |= !was_queued;
            entry.outgoing.reserve(&self.budget);
        } else if E::SENDS_AT_ONCE
            && entry.proto.next_action() == NextAction::Receive
            && len <= MemoryBudget::UNRESERVED_BYTES
        {
            return if was_queued { Flushed::Done } else { self.add_to_batch(entry.id()) };
        } else {
            self.send(engine, entry, now);
        }
        Flushed::Done
    }

    /// Appends the output to that of its connection, which goes out at the end of the turn; `true`
    /// if it is too long for that, and [`SendQueue::send_queued`] is due.
    pub(crate) fn enqueue(&mut self, entry: &mut Entry) -> bool {
        let was_queued = !entry.outgoing.queued().is_empty();
        match was_queued {
            true => self.output.append_to(entry.outgoing.queued_mut()),
            false => self.output.move_to(entry.outgoing.queued_mut()),
        }
        self.batch_queued(entry, was_queued)
    }

    /// The same for a framed message, which is not copied without TLS.
    pub(crate) fn enqueue_message(&mut self, entry: &mut Entry, framed: Bytes) -> bool {
        if entry.proto.is_tls() {
            entry.proto.write_messages(&framed, self.output());
            return self.enqueue(entry);
        }
        let queued = entry.outgoing.queued_mut();
        let was_queued = !queued.is_empty();
        if !queued.has_memory() {
            *queued = self.output.cached.pop().unwrap_or_default();
        }
        queued.push(framed);
        self.batch_queued(entry, was_queued)
    }

    fn batch_queued(&mut self, entry: &mut Entry, was_queued: bool) -> bool {
        if entry.outgoing.is_sending() {
            self.needs_poll |= !was_queued;
            entry.outgoing.reserve(&self.budget);
        } else if !was_queued {
            self.batch.push(entry.id());
        }
        entry.outgoing.queued().len() > MemoryBudget::UNRESERVED_BYTES
    }

    /// Sends the queued output of a connection, unless a send is in flight.
    pub(crate) fn send_queued<E: Engine>(
        &mut self,
        engine: &mut E,
        entry: &mut Entry,
        now: Instant,
    ) {
        self.send(engine, entry, now);
    }

    /// The fast path of [`SendQueue::flush`]: a small reply of a connection that then only waits
    /// for its next request.
    #[inline(always)]
    pub(crate) fn flush_reply<E: Engine>(
        &mut self,
        engine: &mut E,
        entry: &mut Entry,
        now: Instant,
    ) -> Flushed {
        let len = self.output.len();
        let only_receives = entry.outgoing.bytes() == 0
            && !entry.is_paused()
            && entry.proto.next_action() == NextAction::Receive;
        if !only_receives || len == 0 || len > MemoryBudget::UNRESERVED_BYTES {
            return Flushed::NotYet;
        }
        if E::SENDS_AT_ONCE {
            self.output.move_to(entry.outgoing.queued_mut());
            return self.add_to_batch(entry.id());
        }
        self.bytes_sent += len as u64;
        match engine.send_last(entry.id(), self.output.take()) {
            SendState::Done(payload) => self.output.recycle(payload),
            SendState::Pending => entry.outgoing.begin_send(len, now),
        }
        Flushed::Done
    }

    #[inline(always)]
    fn add_to_batch(&mut self, id: Id) -> Flushed {
        self.batch.push(id);
        if self.batch.len() >= BATCH_MAX { Flushed::BatchIsFull } else { Flushed::Done }
    }

    /// Whether the batch has replies.
    #[inline]
    pub(crate) fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Sends the batch. Inlined at the end of a turn: a call would be one more return that the
    /// processor mispredicts after a system call.
    #[inline(always)]
    pub(crate) fn send_batch<E: Engine>(
        &mut self,
        engine: &mut E,
        connections: &mut Connections,
        now: Instant,
    ) {
        let mut next = 0;
        while let Some(&id) = self.batch.get(next) {
            if let Some(entry) = connections.find(id) {
                self.send(engine, entry, now);
            }
            next += 1;
        }
        self.batch.clear();
    }

    /// Sends the queued output of a connection, unless a send is in flight.
    #[inline(always)]
    fn send<E: Engine>(&mut self, engine: &mut E, entry: &mut Entry, now: Instant) {
        let Some(payload) = entry.outgoing.take_next() else { return };
        let (id, len) = (entry.id(), payload.len());
        self.bytes_sent += len as u64;
        let is_last = E::SENDS_AT_ONCE || entry.proto.next_action() == NextAction::Receive;
        let state = match is_last {
            true => engine.send_last(id, payload),
            false => engine.send(id, payload),
        };
        match state {
            SendState::Done(payload) => {
                entry.outgoing.end_send();
                self.output.recycle(payload);
            }
            SendState::Pending => {
                entry.outgoing.begin_send(len, now);
                if len > MemoryBudget::UNRESERVED_BYTES {
                    entry.outgoing.reserve(&self.budget);
                }
            }
        }
    }

    /// Takes back the payload of a send that has ended; `true` if the connection has more output or
    /// an action that waited for the send.
    #[inline(always)]
    pub(crate) fn sent(&mut self, entry: &mut Entry, payload: Payload) -> bool {
        self.output.recycle(payload);
        entry.outgoing.end_send()
            || entry.proto.next_action() != NextAction::Receive
            || entry.items.is_some()
    }

    /// Takes back the payload of a socket that is no connection's.
    #[cold]
    pub(crate) fn recycle(&mut self, payload: Payload) {
        self.output.recycle(payload);
    }

    /// Sends the output that was queued during a send.
    pub(crate) fn send_next<E: Engine>(&mut self, engine: &mut E, entry: &mut Entry, now: Instant) {
        self.send(engine, entry, now);
        entry.outgoing.reserve(&self.budget);
    }

    /// Sends the close_notify of TLS before a connection closes, which cancels the part that does
    /// not go out at once.
    pub(crate) fn send_close_notify<E: Engine>(&mut self, engine: &mut E, entry: &mut Entry) {
        self.output.clear();
        entry.proto.close_notify(self.output.head_mut());
        let payload = self.output.take();
        self.bytes_sent += payload.len() as u64;
        if let SendState::Done(payload) = engine.send(entry.id(), payload) {
            self.output.recycle(payload);
        }
    }
}

/// Payloads that are cached.
const CACHED_PAYLOADS_MAX: usize = 1024;
/// The memory of larger ones is freed when they are sent.
const LARGE_PAYLOAD_BYTES_MAX: usize = 32 << 20;

/// The output of the connection that takes a step, and a cache of payloads.
///
/// Replies are written straight into one payload, which goes to the engine whole and comes back
/// when it is sent. Hundreds of small payloads are cached, but only one large payload: the next
/// reply is written to it. A small reply is copied out of it, so that no connection holds much more
/// memory than it has bytes to send.
#[derive(Debug, Default)]
struct Output {
    payload: Payload,
    cached: Vec<Payload>,
    /// Whether a large payload came back since the last [`Output::release_unused`].
    was_large: bool,
}

impl Output {
    /// The buffer to write to.
    #[inline]
    fn head_mut(&mut self) -> &mut Vec<u8> {
        self.payload.head_mut()
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    #[inline]
    fn len(&self) -> usize {
        self.payload.len()
    }

    /// Discards the output.
    fn clear(&mut self) {
        self.payload.clear_within(LARGE_PAYLOAD_BYTES_MAX);
    }

    /// Appends the output to `queued`.
    fn append_to(&mut self, queued: &mut Payload) {
        match self.payload.is_oversized() {
            true => queued.append(&mut self.copied()),
            false => queued.append(&mut self.payload),
        }
    }

    /// Moves the output to `queued`, which is empty.
    #[inline(always)]
    fn move_to(&mut self, queued: &mut Payload) {
        if self.payload.is_oversized() {
            *queued = self.copied();
            return;
        }
        mem::swap(&mut self.payload, queued);
        if !self.payload.has_memory()
            && let Some(cached) = self.cached.pop()
        {
            // The old payload owns no memory, so there is nothing to drop.
            mem::forget(mem::replace(&mut self.payload, cached));
        }
    }

    /// Takes the output for a send.
    #[inline(always)]
    fn take(&mut self) -> Payload {
        if self.payload.is_oversized() {
            return self.copied();
        }
        let next = self.cached.pop().unwrap_or_default();
        mem::replace(&mut self.payload, next)
    }

    /// Caches a payload that was sent.
    #[inline(always)]
    fn recycle(&mut self, mut payload: Payload) {
        if payload.is_large() {
            payload = self.cache_large(payload);
        }
        payload.clear();
        if self.cached.len() < CACHED_PAYLOADS_MAX {
            self.cached.push(payload);
        }
    }

    /// Keeps a large payload for the next output, if it is the largest; returns the other one.
    #[cold]
    fn cache_large(&mut self, mut payload: Payload) -> Payload {
        if self.is_empty() && payload.capacity() > self.payload.capacity() {
            payload.clear_within(LARGE_PAYLOAD_BYTES_MAX);
            self.was_large = true;
            mem::swap(&mut self.payload, &mut payload);
        }
        payload
    }

    /// Whether [`Output::release_unused`] may have memory to release.
    #[inline]
    fn is_large(&self) -> bool {
        self.payload.is_large()
    }

    /// Releases the large payload if no large reply was sent since the last call. The output must
    /// be empty.
    fn release_unused(&mut self) {
        if !mem::take(&mut self.was_large) {
            self.payload.clear();
        }
    }

    #[cold]
    fn copied(&mut self) -> Payload {
        let mut copy = self.cached.pop().unwrap_or_default();
        copy.append_copied(&mut self.payload);
        copy
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use ucall_engine::Completion;
    use ucall_engine::fake::{Fake, FakePeer, Network, SendMode};
    use ucall_proto::{Connection, Limits};

    use super::*;

    struct Lab {
        queue: SendQueue,
        engine: Fake,
        network: Network,
        connections: Connections,
        budget: MemoryBudget,
        now: Instant,
    }

    impl Lab {
        fn new() -> Self {
            let ((mut engine, network), budget) = (Fake::new(), MemoryBudget::default());
            let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
            engine.listen(socket).expect("the fake engine listens");
            let queue = SendQueue::new(budget.clone());
            let (connections, now) = (Connections::default(), Instant::now());
            Self { queue, engine, network, connections, budget, now }
        }

        fn connect(&mut self) -> (FakePeer, Id) {
            let peer = self.network.connect();
            let id = self.poll().into_iter().find_map(|completion| match completion {
                Completion::Accepted { socket, .. } => Some(socket),
                _ => None,
            });
            let id = id.expect("the peer is accepted");
            self.connections.insert(id, Connection::new(self.now, &Limits::default()), self.now);
            (peer, id)
        }

        fn poll(&mut self) -> Vec<Completion> {
            let mut completions = Vec::new();
            self.engine.wait(Some(self.now), &mut completions).expect("the fake engine waits");
            completions
        }

        fn write(&mut self, id: Id, len: usize) {
            self.queue.output().resize(len, b'x');
            let entry = self.connections.find(id).expect("the connection is open");
            if self.queue.flush(&mut self.engine, entry, self.now) == Flushed::BatchIsFull {
                self.queue.send_batch(&mut self.engine, &mut self.connections, self.now);
            }
        }
    }

    #[test]
    fn small_replies_go_out_four_at_a_time_or_when_the_turn_ends() {
        let mut lab = Lab::new();
        let peers: Vec<_> = (0..6).map(|_| lab.connect()).collect();
        for (_, id) in &peers {
            lab.write(*id, 10);
        }
        let unread = || peers.iter().map(|(peer, _)| peer.read().len()).collect::<Vec<_>>();
        assert_eq!(unread(), [10, 10, 10, 10, 0, 0]);
        lab.queue.send_batch(&mut lab.engine, &mut lab.connections, lab.now);
        assert_eq!(unread(), [0, 0, 0, 0, 10, 10]);
        assert_eq!(lab.queue.bytes_sent(), 60);
    }

    #[test]
    fn large_output_goes_out_at_once_and_is_reserved_while_it_does() {
        let mut lab = Lab::new();
        let (peer, id) = lab.connect();
        peer.set_send_mode(SendMode::Stalled);
        let large = MemoryBudget::UNRESERVED_BYTES + 1;
        lab.write(id, large);
        assert_eq!((lab.queue.bytes_sent(), lab.budget.bytes()), (large as u64, large));
        lab.connections.remove(id);
        assert_eq!(lab.budget.bytes(), 0);
    }

    #[test]
    fn output_waits_for_the_send_in_flight_and_polls_for_its_end() {
        let mut lab = Lab::new();
        let (peer, id) = lab.connect();
        peer.set_send_mode(SendMode::Stalled);
        lab.write(id, 20_000);
        assert!(!lab.queue.take_poll());
        for len in [10, 20] {
            lab.write(id, len);
        }
        assert!(lab.queue.take_poll() && !lab.queue.take_poll());
        assert_eq!(lab.budget.bytes(), 20_030);
        peer.set_send_mode(SendMode::InSteps(usize::MAX));
        let payload = lab.poll().iter_mut().find_map(|completion| completion.sent());
        let (socket, payload) = payload.expect("the send ends");
        assert_eq!(socket, id);
        let entry = lab.connections.find(id).expect("the connection is open");
        assert!(lab.queue.sent(entry, payload), "more is queued");
        lab.queue.send_next(&mut lab.engine, entry, lab.now);
        assert_eq!((lab.queue.bytes_sent(), lab.budget.bytes()), (20_030, 0));
    }
    fn sent(output: &mut Output, len: usize) -> Payload {
        output.head_mut().resize(len, b'x');
        let payload = output.take();
        assert_eq!(payload.len(), len);
        assert!(output.is_empty());
        payload
    }

    #[test]
    fn the_memory_of_a_large_reply_is_reused() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        assert!(!output.is_large());
        output.recycle(payload);
        assert!(output.is_large());
        let again = output.head_mut().as_ptr();
        assert_eq!(sent(&mut output, 1_000_000).head().as_ptr(), again);
    }

    #[test]
    fn a_small_reply_is_copied_out_of_large_memory() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.recycle(payload);
        let capacity = output.head_mut().capacity();
        for len in [1, 100_000, capacity / 4 - 1] {
            let payload = sent(&mut output, len);
            assert!(payload.capacity() <= 2 * len.max(64), "{len}");
            assert!(output.is_large());
        }
        let mut queued = Payload::from(b"first, ".to_vec());
        output.head_mut().extend_from_slice(b"second");
        output.append_to(&mut queued);
        assert_eq!(queued.head(), b"first, second");
        assert!(output.is_empty() && output.is_large());
    }

    #[test]
    fn large_memory_unused_between_two_calls_is_released() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.recycle(payload);
        output.release_unused();
        assert!(output.is_large());
        output.release_unused();
        assert!(!output.is_large());
    }

    #[test]
    fn a_recycled_payload_does_not_disturb_the_current_one() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.head_mut().extend_from_slice(b"begun");
        output.recycle(payload);
        assert_eq!(output.take().head(), b"begun");
    }
}
