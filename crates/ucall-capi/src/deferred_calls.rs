//! The calls of one worker that are answered later: who runs, who is cancelled, who is late.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::RpcError;
use ucall_server::{CallId, Mailbox, MemoryBudget, Message};

use crate::log::Log;

/// Fewer tickets than this are not worth looking through for those that are over.
const PURGE_MIN: usize = 64;

/// What a deferred call and its worker know of each other.
#[derive(Debug)]
pub(crate) struct CallState {
    /// Nobody will read the reply: the peer or the server has gone, or the deadline has passed.
    cancelled: AtomicBool,
    answered: AtomicBool,
    released: AtomicBool,
    running: Arc<AtomicUsize>,
    pub(crate) log: Arc<Log>,
}

impl CallState {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Acquire)
    }

    fn cancel(&self) {
        self.cancelled.store(true, Release);
    }

    /// The program has let go of the call.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, AcqRel) {
            self.running.fetch_sub(1, AcqRel);
        }
    }

    fn is_released(&self) -> bool {
        self.released.load(Acquire)
    }
}

/// Leads the outcome of a deferred call to its worker, once. The mailbox outlives the worker: what
/// comes after its end is dropped with the mailbox.
#[derive(Debug)]
pub(crate) struct ReplySender {
    mailbox: Mailbox,
    id: CallId,
}

impl ReplySender {
    pub(crate) fn complete(self, state: &CallState, outcome: Result<Vec<u8>, RpcError>) {
        state.answered.store(true, Release);
        if !state.is_cancelled() {
            self.mailbox.send(Message::Complete(self.id, outcome));
        }
    }
}

/// When a call has to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) moment: Instant,
    /// Since the call began.
    timeout: Duration,
}

impl Deadline {
    /// Whether it has passed before the call begins.
    #[inline]
    pub(crate) fn has_passed(&self) -> bool {
        self.timeout.is_zero()
    }

    /// What a caller is told who gets no other reply.
    pub(crate) fn error(&self) -> RpcError {
        let timeout_ms = self.timeout.as_millis();
        RpcError::new(RpcError::DEADLINE_PASSED, "The deadline passed")
            .expected(&format!("expected a reply within {timeout_ms} ms"))
    }
}

/// All deferred calls of one worker.
#[derive(Debug)]
pub(crate) struct DeferredCalls {
    pub(crate) log: Arc<Log>,
    /// Of the worker; there once it is made.
    pub(crate) mailbox: Option<Mailbox>,
    /// How long a call may take.
    timeout: Option<Duration>,
    deferred_max: usize,
    running: Arc<AtomicUsize>,
    /// What the worker and those calls hold.
    pub(crate) budget: MemoryBudget,
    calls: HashMap<Id, Vec<Arc<CallState>>>,
    calls_len: usize,
    purge_at: usize,
    deadlines: Deadlines,
}

/// The deadlines of calls, the nearest first.
#[derive(Debug, Default)]
struct Deadlines {
    due: BinaryHeap<Reverse<DueCall>>,
    purge_at: usize,
}

/// A call that has a deadline. Ordered by it, and nothing else.
#[derive(Debug)]
struct DueCall {
    deadline: Deadline,
    id: CallId,
    state: Arc<CallState>,
}

impl Ord for DueCall {
    fn cmp(&self, other: &Self) -> Ordering {
        self.deadline.moment.cmp(&other.deadline.moment)
    }
}

impl PartialOrd for DueCall {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for DueCall {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for DueCall {}

impl DeferredCalls {
    pub(crate) fn new(log: Arc<Log>, timeout: Option<Duration>, deferred_max: usize) -> Self {
        Self {
            log,
            mailbox: None,
            timeout,
            deferred_max,
            running: Arc::default(),
            budget: MemoryBudget::default(),
            calls: HashMap::new(),
            calls_len: 0,
            purge_at: PURGE_MIN,
            deadlines: Deadlines::default(),
        }
    }

    /// The deadline of a call that begins now: by its caller's wish or the server's, whichever is
    /// sooner.
    #[inline]
    pub(crate) fn deadline_of(&self, requested: Option<Duration>) -> Option<Deadline> {
        let timeout = [requested, self.timeout].into_iter().flatten().min()?;
        let moment = Instant::now().checked_add(timeout)?;
        Some(Deadline { moment, timeout })
    }

    /// Enters a call; `None` when too many are running, or there is no worker.
    pub(crate) fn insert(
        &mut self,
        id: CallId,
        deadline: Option<Deadline>,
    ) -> Option<(Arc<CallState>, ReplySender)> {
        let mailbox = self.mailbox.clone()?;
        if self.running() >= self.deferred_max {
            return None;
        }
        self.running.fetch_add(1, AcqRel);
        let state = Arc::new(CallState {
            cancelled: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            released: AtomicBool::new(false),
            running: self.running.clone(),
            log: self.log.clone(),
        });
        self.track(id.connection, state.clone());
        if let Some(deadline) = deadline {
            self.deadlines.push(DueCall { deadline, id, state: state.clone() });
        }
        Some((state, ReplySender { mailbox, id }))
    }

    fn track(&mut self, connection: Id, state: Arc<CallState>) {
        if self.calls_len >= self.purge_at {
            self.purge();
        }
        self.calls.entry(connection).or_default().push(state);
        self.calls_len += 1;
    }

    /// Forgets calls that are over. Done whenever the number has doubled, so that a call costs the
    /// same however many there are.
    fn purge(&mut self) {
        self.calls.retain(|_, calls| {
            calls.retain(|state| !state.is_released());
            !calls.is_empty()
        });
        self.calls_len = self.calls.values().map(Vec::len).sum();
        self.purge_at = PURGE_MIN.max(2 * self.calls_len);
    }

    /// Deferred calls that the program has not released.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Acquire)
    }

    /// A connection has closed: nobody waits for its calls any more.
    pub(crate) fn cancel(&mut self, connection: Id) {
        let calls = self.calls.remove(&connection).unwrap_or_default();
        self.calls_len -= calls.len();
        calls.iter().for_each(|state| state.cancel());
    }

    /// When [`DeferredCalls::expire`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.nearest().map(|due| due.deadline.moment)
    }

    /// Whether [`DeferredCalls::expire`] may have something to do.
    #[inline]
    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.due.is_empty()
    }

    /// Answers the calls whose deadline has passed, and cancels them.
    #[inline(never)]
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_due = |due: &DueCall| due.deadline.moment <= now || is_finished(&due.state);
        while let Some(due) = self.deadlines.pop_if(is_due) {
            if let Some(mailbox) = self.mailbox.as_ref().filter(|_| !is_finished(&due.state)) {
                due.state.cancel();
                mailbox.send(Message::Complete(due.id, Err(due.deadline.error())));
            }
        }
    }
}

impl Deadlines {
    /// Forgets those of calls that are over whenever their number has doubled: a call that runs for
    /// long, with the nearest deadline of all, would keep the others behind it.
    fn push(&mut self, due: DueCall) {
        if self.due.len() >= self.purge_at.max(PURGE_MIN) {
            self.due.retain(|Reverse(due)| !is_finished(&due.state));
            self.purge_at = 2 * self.due.len();
        }
        self.due.push(Reverse(due));
    }

    fn nearest(&self) -> Option<&DueCall> {
        self.due.peek().map(|Reverse(due)| due)
    }

    fn pop_if(&mut self, wanted: impl FnOnce(&DueCall) -> bool) -> Option<DueCall> {
        if !wanted(self.nearest()?) {
            return None;
        }
        self.due.pop().map(|Reverse(due)| due)
    }
}

fn is_finished(state: &CallState) -> bool {
    state.answered.load(Acquire) || state.is_cancelled()
}

impl Drop for DeferredCalls {
    fn drop(&mut self) {
        self.calls.values().flatten().for_each(|state| state.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Format;
    use ucall_proto::ExchangeId;

    fn due(now: Instant, seconds: u64) -> DueCall {
        let state = CallState {
            cancelled: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            released: AtomicBool::new(false),
            running: Arc::default(),
            log: Arc::new(Log::new(None, Format::Human)),
        };
        let timeout = Duration::from_secs(seconds);
        let connection = Id { index: 0, generation: 0 };
        let id = CallId { connection, exchange: ExchangeId { request: 0, item: 0 } };
        let deadline = Deadline { moment: now + timeout, timeout };
        DueCall { deadline, id, state: Arc::new(state) }
    }

    #[test]
    fn finished_calls_are_purged_behind_a_running_one() {
        let (now, mut deadlines) = (Instant::now(), Deadlines::default());
        deadlines.push(due(now, 1));
        for _ in 0..10_000 {
            let call = due(now, 60);
            call.state.answered.store(true, Release);
            deadlines.push(call);
        }
        assert!(deadlines.due.len() <= 2 * PURGE_MIN, "{}", deadlines.due.len());
        assert_eq!(
            deadlines.nearest().map(|due| due.deadline.moment),
            Some(due(now, 1).deadline.moment)
        );
    }
}
