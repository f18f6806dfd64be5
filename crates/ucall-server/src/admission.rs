//! Per-turn limits for accepted sockets, hang-ups and TLS handshakes.
//!
//! A turn handles a few of each after its calls are answered, and queues the rest for later turns,
//! so that a flood delays no other connection. An otherwise idle turn costs little more than its
//! one wait, so small limits hardly slow a flood down.
//!
//! Workers that share a socket also take turns. One that has accepted a connection accepts no other
//! before it has waited for events, for at most [`YIELD_TIME`], because a worker that the kernel
//! wakes meanwhile needs a moment. Otherwise all connections of a burst could go to one worker. If
//! none takes those that wait, it accepts more each time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ucall_engine::Id;

/// Sockets accepted in a turn, at a few microseconds each.
const ACCEPTED_PER_TURN: usize = 16;
/// Hang-ups handled in a turn. Each closes a connection, in up to 10 microseconds.
const HANGUPS_PER_TURN: usize = 8;
/// Handshake steps in a turn. One may cost a signature: a millisecond with an RSA key.
const HANDSHAKES_PER_TURN: usize = 1;
/// Connections of a shared socket accepted at once, after no other worker has taken them.
const ACCEPTED_FOR_OTHERS: usize = 4;
/// For how long a worker leaves the connections of a shared socket to the others.
const YIELD_TIME: Duration = Duration::from_millis(1);

/// Accepted sockets, hang-ups and handshakes that wait for a later turn.
#[derive(Debug)]
pub(crate) struct AdmissionQueues {
    accepted: TurnQueue<Id>,
    hangups: TurnQueue<Hangup>,
    handshakes: TurnQueue<Id>,
    /// The bytes that the peers of `handshakes` have sent.
    input: BTreeMap<Id, HandshakeInput>,
    yielding: Option<Yield>,
    /// Those that wait in all queues, and one while it yields: read twice a turn.
    waiting: usize,
}

/// A shared socket is left to other workers.
#[derive(Clone, Copy, Debug)]
struct Yield {
    until: Instant,
    /// Of this turn, which has waited before.
    is_new: bool,
    /// How many connections to accept at its end, if none of them was taken.
    accepts: usize,
}

/// How a [`Yield`] ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum YieldEnd {
    /// Events have come: accept the next connection.
    Resume,
    /// Nothing has come: accept up to so many of the connections that still wait.
    Accept(usize),
}

/// A connection whose peer has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hangup {
    /// The peer has ended its side of the stream.
    Ended(Id),
    /// The connection has failed.
    Failed(Id),
}

/// Bytes of a handshake that waits for its turn.
#[derive(Debug, Default)]
pub(crate) struct HandshakeInput {
    pub(crate) bytes: Vec<u8>,
    /// Whether the peer ended its side of the stream after them.
    pub(crate) has_ended: bool,
}

/// A queue of which each turn takes up to `max` items.
#[derive(Debug)]
struct TurnQueue<T> {
    waiting: VecDeque<T>,
    /// In this turn.
    taken: usize,
    max: usize,
}

impl<T> TurnQueue<T> {
    fn new(max: usize) -> Self {
        Self { waiting: VecDeque::new(), taken: 0, max }
    }

    /// Returns an item that may be handled now; queues one that may not.
    fn enqueue(&mut self, item: T) -> Option<T> {
        self.waiting.push_back(item);
        if self.waiting.len() == 1 { self.next() } else { None }
    }

    fn next(&mut self) -> Option<T> {
        if self.taken < self.max { self.next_over_limit() } else { None }
    }

    fn next_over_limit(&mut self) -> Option<T> {
        self.waiting.pop_front().inspect(|_| self.taken += 1)
    }
}

impl Default for AdmissionQueues {
    fn default() -> Self {
        Self {
            accepted: TurnQueue::new(ACCEPTED_PER_TURN),
            hangups: TurnQueue::new(HANGUPS_PER_TURN),
            handshakes: TurnQueue::new(HANDSHAKES_PER_TURN),
            input: BTreeMap::new(),
            yielding: None,
            waiting: 0,
        }
    }
}

impl AdmissionQueues {
    /// Whether anything waits for a later turn.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// Whether anything waits for the next turn.
    pub(crate) fn is_due(&self) -> bool {
        self.waiting > usize::from(self.yielding.is_some())
    }

    /// Counts what waits, and returns what was taken.
    fn counted<T>(&mut self, taken: T) -> T {
        let queued = self.accepted.waiting.len()
            + self.hangups.waiting.len()
            + self.handshakes.waiting.len();
        self.waiting = queued + usize::from(self.yielding.is_some());
        taken
    }

    /// Leaves the next connections of a shared socket to other workers.
    pub(crate) fn begin_yield(&mut self, now: Instant) {
        self.yield_for(now, 1);
    }

    fn yield_for(&mut self, now: Instant, accepts: usize) {
        self.yielding = Some(Yield { until: now + YIELD_TIME, is_new: true, accepts });
        self.counted(());
    }

    /// When it ends at the latest.
    pub(crate) fn yields_until(&self) -> Option<Instant> {
        self.yielding.map(|it| it.until)
    }

    /// Ends it, after the wait of a turn.
    pub(crate) fn end_yield(&mut self, now: Instant) -> Option<YieldEnd> {
        let yielding = self.yielding.as_mut()?;
        if std::mem::take(&mut yielding.is_new) {
            return None;
        }
        let ended = match now < yielding.until {
            true => YieldEnd::Resume,
            false => YieldEnd::Accept(yielding.accepts),
        };
        self.yielding = None;
        self.counted(Some(ended))
    }

    /// Yields again after it has accepted all that [`YieldEnd::Accept`] allows.
    pub(crate) fn yield_again(&mut self, now: Instant, accepted: usize) {
        self.yield_for(now, (2 * accepted).min(ACCEPTED_FOR_OTHERS));
    }

    /// Starts the limits of a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self) {
        (self.accepted.taken, self.hangups.taken, self.handshakes.taken) = (0, 0, 0);
    }

    /// Whether this turn has accepted sockets.
    #[inline]
    pub(crate) fn has_accepted(&self) -> bool {
        self.accepted.taken > 0
    }

    /// Returns an accepted socket if this turn may take it in, and queues it otherwise.
    pub(crate) fn enqueue_accepted(&mut self, id: Id) -> Option<Id> {
        let taken = self.accepted.enqueue(id);
        self.counted(taken)
    }

    /// The next accepted socket that this turn may take in.
    pub(crate) fn next_accepted(&mut self) -> Option<Id> {
        let taken = self.accepted.next();
        self.counted(taken)
    }

    /// Returns a hang-up if this turn may handle it, and queues it otherwise. The end of a stream
    /// waits for the handshake that is queued before it.
    #[cold]
    pub(crate) fn enqueue_hangup(&mut self, hangup: Hangup) -> Option<Hangup> {
        if let Hangup::Ended(id) = hangup
            && let Some(input) = self.input.get_mut(&id)
        {
            input.has_ended = true;
            return None;
        }
        let taken = self.hangups.enqueue(hangup);
        self.counted(taken)
    }

    /// The next hang-up that this turn may handle.
    pub(crate) fn next_hangup(&mut self) -> Option<Hangup> {
        let taken = self.hangups.next();
        self.counted(taken)
    }

    /// The next hang-up, regardless of the limit: closing it makes room for a new connection.
    pub(crate) fn next_hangup_over_limit(&mut self) -> Option<Hangup> {
        let taken = self.hangups.next_over_limit();
        self.counted(taken)
    }

    /// Whether a handshake step has to wait; if so, its bytes are queued.
    #[cold]
    pub(crate) fn defer_handshake(&mut self, id: Id, bytes: &[u8]) -> bool {
        if !self.input.contains_key(&id) {
            let taken = self.handshakes.enqueue(id);
            if self.counted(taken).is_some() {
                return false;
            }
        }
        self.input.entry(id).or_default().bytes.extend_from_slice(bytes);
        true
    }

    /// The next handshake step that this turn may take. Closed connections do not count towards the
    /// limit.
    pub(crate) fn next_handshake(
        &mut self,
        mut is_open: impl FnMut(Id) -> bool,
    ) -> Option<(Id, HandshakeInput)> {
        while let Some(id) = self.handshakes.next() {
            self.counted(());
            let input = self.input.remove(&id).unwrap_or_default();
            if is_open(id) {
                return Some((id, input));
            }
            self.handshakes.taken -= 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> Id {
        Id { index, generation: 1 }
    }

    #[test]
    fn a_turn_takes_its_limit_and_keeps_the_order() {
        let mut queues = AdmissionQueues::default();
        let at_once = (0..40).filter_map(|index| queues.enqueue_accepted(id(index))).count();
        assert_eq!(at_once, ACCEPTED_PER_TURN);
        assert!(queues.has_accepted() && queues.is_waiting());
        assert_eq!(queues.next_accepted(), None);
        for first in [16, 32] {
            queues.begin_turn();
            assert!(!queues.has_accepted());
            let taken: Vec<_> = std::iter::from_fn(|| queues.next_accepted()).collect();
            let expected: Vec<_> = (first..40.min(first + 16)).map(id).collect();
            assert_eq!(taken, expected);
        }
        assert!(!queues.is_waiting());
    }

    #[test]
    fn one_that_comes_after_others_that_wait_waits_too() {
        let mut queues = AdmissionQueues::default();
        for index in 0..=ACCEPTED_PER_TURN as u32 {
            queues.enqueue_accepted(id(index));
        }
        queues.begin_turn();
        assert_eq!(queues.enqueue_accepted(id(99)), None);
        assert_eq!(queues.next_accepted(), Some(id(ACCEPTED_PER_TURN as u32)));
    }

    #[test]
    fn hangups_may_be_taken_past_the_limit_to_make_room() {
        let mut queues = AdmissionQueues::default();
        for index in 0..20 {
            queues.enqueue_hangup(Hangup::Failed(id(index)));
        }
        assert_eq!(queues.next_hangup(), None);
        assert_eq!(queues.next_hangup_over_limit(), Some(Hangup::Failed(id(8))));
    }

    #[test]
    fn a_handshake_keeps_its_bytes_and_its_end_until_its_turn() {
        let mut queues = AdmissionQueues::default();
        assert!(!queues.defer_handshake(id(1), b"first"));
        assert!(queues.defer_handshake(id(2), b"sec"));
        assert!(queues.defer_handshake(id(2), b"ond"));
        assert_eq!(queues.enqueue_hangup(Hangup::Ended(id(2))), None);
        assert!(queues.next_handshake(|_| true).is_none());
        queues.begin_turn();
        let (next, input) = queues.next_handshake(|_| true).expect("one waits");
        assert_eq!((next, input.bytes.as_slice(), input.has_ended), (id(2), &b"second"[..], true));
        assert_eq!(queues.enqueue_hangup(Hangup::Ended(id(2))), Some(Hangup::Ended(id(2))));
    }

    #[test]
    fn a_worker_yields_for_a_wait_and_accepts_more_if_no_other_does() {
        let (mut queues, mut now) = (AdmissionQueues::default(), Instant::now());
        assert_eq!(queues.end_yield(now), None);
        queues.begin_yield(now);
        assert!(queues.is_waiting() && !queues.is_due());
        // The turn in which it has begun, and the next one, whose wait an event has ended.
        assert_eq!([queues.end_yield(now), queues.end_yield(now)], [None, Some(YieldEnd::Resume)]);
        assert!(!queues.is_waiting() && queues.yields_until().is_none());
        queues.begin_yield(now);
        let accepted = [1, 2, 4, 4].map(|expected| {
            assert_eq!(queues.end_yield(now), None);
            now += YIELD_TIME;
            assert_eq!(queues.yields_until(), Some(now));
            let ended = queues.end_yield(now);
            queues.yield_again(now, expected);
            ended == Some(YieldEnd::Accept(expected))
        });
        assert_eq!(accepted, [true; 4]);
    }

    #[test]
    fn closed_connections_use_up_no_handshake_of_a_turn() {
        let mut queues = AdmissionQueues::default();
        let deferred = [1, 2, 3, 4].map(|index| queues.defer_handshake(id(index), b"x"));
        assert_eq!(deferred, [false, true, true, true]);
        queues.begin_turn();
        let next = queues.next_handshake(|it| it == id(4)).map(|(next, _)| next);
        assert_eq!(next, Some(id(4)));
        assert!(!queues.is_waiting());
    }
}
