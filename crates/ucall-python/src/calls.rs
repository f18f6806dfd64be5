//! The calls that are under way: what their replies are made from, and when they are due.
//!
//! A call that does not end within its turn gets a [`Token`], which whatever runs it hands in with
//! its outcome. Tokens are never used twice: an outcome that comes after the call was answered
//! otherwise (its deadline, a client that left) finds nobody.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ucall_engine::{Id, OwningProcess};
use ucall_proto::RpcError;
use ucall_server::{CallId, Mailbox, Message, Reservation};

use crate::calls_by_connection::CallsByConnection;
use crate::job_input::JobInput;
use crate::procedure::Procedure;

/// Names an entry among the calls.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Token {
    index: u32,
    /// Counts the entries of that place; 32 bits would be used up within hours.
    generation: u64,
}

/// Something under way.
pub(crate) struct Entry {
    pub(crate) procedure: Arc<Procedure>,
    pub(crate) began: Instant,
    pub(crate) kind: EntryKind,
}

pub(crate) enum EntryKind {
    Call(Deferred),
    /// A batch that runs, for these calls.
    Run(Vec<Token>),
}

/// A call that will be answered later.
pub(crate) struct Deferred {
    pub(crate) id: CallId,
    /// A notification has nobody who reads its reply.
    pub(crate) is_notification: bool,
    pub(crate) deadline: Option<Instant>,
    /// A task or a future, which can be cancelled.
    pub(crate) future: Option<Py<PyAny>>,
    /// Tells code on other threads that nobody waits any more.
    pub(crate) cancelled: Option<Arc<AtomicBool>>,
    pub(crate) retained: RetainedParams,
}

/// What a call keeps of its request, and lets go of as soon as nobody waits for it.
pub(crate) enum RetainedParams {
    /// It runs, and its params stay reserved.
    Params { _reserved: Reservation },
    /// What a batch will be run with, until one is.
    Arguments { arguments: Option<Vec<Py<PyAny>>>, _reserved: Reservation },
    /// What a thread will be run with.
    Input(Arc<JobInput>),
}

impl Deferred {
    /// The arguments for a batch, once.
    pub(crate) fn take_arguments(&mut self) -> Option<Vec<Py<PyAny>>> {
        match &mut self.retained {
            RetainedParams::Arguments { arguments, .. } => arguments.take(),
            _ => None,
        }
    }

    /// Nobody waits for it any more.
    pub(crate) fn release(&mut self) {
        if let Some(cancelled) = &self.cancelled {
            cancelled.store(true, Ordering::Relaxed);
        }
        if let RetainedParams::Input(input) = &self.retained {
            drop(input.take());
        }
        self.retained = RetainedParams::Params { _reserved: Reservation::default() };
    }
}

/// How something ended.
pub(crate) enum CallOutcome {
    /// A task or a future that is done.
    Future(Py<PyAny>),
    /// What one caller of a batch gets: a result, or an exception that was returned.
    Item(Py<PyAny>),
    /// The text of a result, written already; or an error.
    Text(Result<Vec<u8>, RpcError>),
}

/// Where outcomes are handed in, from any thread.
pub(crate) struct OutcomeQueue {
    list: Mutex<Vec<(Token, CallOutcome)>>,
    /// Looked at without the lock.
    is_nonempty: AtomicBool,
    mailbox: Mutex<Option<Mailbox>>,
    /// Called when there is something, by a loop that would not look by itself.
    wake: Mutex<Option<Py<PyAny>>>,
    process: OwningProcess,
}

impl OutcomeQueue {
    fn new() -> Self {
        Self {
            list: Mutex::default(),
            is_nonempty: AtomicBool::new(false),
            mailbox: Mutex::default(),
            wake: Mutex::default(),
            process: OwningProcess::current(),
        }
    }

    /// The worker to wake for outcomes from other threads.
    pub(crate) fn set_mailbox(&self, mailbox: Mailbox) {
        *self.mailbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(mailbox);
    }

    /// What to call when there is something from the worker's own thread, unless that looks anyway.
    pub(crate) fn set_waker(&self, wake: Option<Py<PyAny>>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// Hands in from the worker's own thread.
    pub(crate) fn push_local(&self, py: Python<'_>, token: Token, outcome: CallOutcome) {
        if self.push(token, outcome) {
            return;
        }
        let wake = {
            let wake = self.wake.lock().unwrap_or_else(PoisonError::into_inner);
            wake.as_ref().map(|wake| wake.clone_ref(py))
        };
        if let Some(wake) = wake
            && let Err(error) = wake.call0(py)
        {
            error.write_unraisable(py, None);
        }
    }

    /// Hands in from another thread, and wakes the worker.
    pub(crate) fn push_remote(&self, token: Token, outcome: CallOutcome) {
        self.push(token, outcome);
        self.wake();
    }

    /// Hands in many from another thread, and wakes the worker once.
    pub(crate) fn push_all(&self, outcomes: Vec<(Token, CallOutcome)>) {
        for (token, outcome) in outcomes {
            self.push(token, outcome);
        }
        self.wake();
    }

    fn wake(&self) {
        let mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = &*mailbox {
            mailbox.send(Message::PollReplies);
        }
    }

    /// `true` when there was something already. A child that was forked off in a function ends
    /// here: on a thread of a pool it would wait for calls that never come, with its parent's
    /// connections open.
    fn push(&self, token: Token, outcome: CallOutcome) -> bool {
        self.process.end_child();
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push((token, outcome));
        self.is_nonempty.swap(true, Ordering::Relaxed)
    }

    fn take(&self, to: &mut VecDeque<(Token, CallOutcome)>) {
        if self.is_nonempty.load(Ordering::Relaxed) {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            self.is_nonempty.store(false, Ordering::Relaxed);
            to.extend(list.drain(..));
        }
    }
}

/// All calls of one worker.
pub(crate) struct Calls {
    slots: Vec<CallSlot>,
    free: Vec<u32>,
    /// How many calls there are, batches not counted.
    len: usize,
    /// Of those that somebody waits for.
    by_connection: CallsByConnection,
    deadlines: BinaryHeap<Reverse<(Instant, Token)>>,
    outcomes: Arc<OutcomeQueue>,
    /// Taken from the outcomes, in order.
    ready: VecDeque<(Token, CallOutcome)>,
    /// How long calls took lately.
    average_time: Duration,
}

struct CallSlot {
    generation: u64,
    entry: Option<Entry>,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            len: 0,
            by_connection: CallsByConnection::default(),
            deadlines: BinaryHeap::new(),
            outcomes: Arc::new(OutcomeQueue::new()),
            ready: VecDeque::new(),
            average_time: Duration::from_millis(1),
        }
    }

    pub(crate) fn outcomes(&self) -> &Arc<OutcomeQueue> {
        &self.outcomes
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How long the next call will probably have to wait for a place.
    pub(crate) fn average_time(&self) -> Duration {
        self.average_time
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(CallSlot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        let deadline = match &entry.kind {
            EntryKind::Call(call) => {
                self.len += 1;
                if !call.is_notification {
                    self.by_connection.insert(call.id.connection.index, index);
                }
                call.deadline
            }
            EntryKind::Run(_) => None,
        };
        let mut token = Token { index, generation: 0 };
        if let Some(slot) = self.slots.get_mut(index as usize) {
            token.generation = slot.generation;
            slot.entry = Some(entry);
        }
        if let Some(deadline) = deadline {
            self.deadlines.push(Reverse((deadline, token)));
            self.prune_deadlines();
        }
        token
    }

    pub(crate) fn find(&mut self, token: Token) -> Option<&mut Entry> {
        let slot = self.slots.get_mut(token.index as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == token.generation)
    }

    pub(crate) fn has(&self, token: Token) -> bool {
        let slot = self.slots.get(token.index as usize);
        slot.is_some_and(|it| it.generation == token.generation && it.entry.is_some())
    }

    /// The call of that token, if it still waits.
    pub(crate) fn find_call(&mut self, token: Token) -> Option<&mut Deferred> {
        match &mut self.find(token)?.kind {
            EntryKind::Call(call) => Some(call),
            EntryKind::Run(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Entry> {
        self.find(token)?;
        let slot = self.slots.get_mut(token.index as usize)?;
        slot.generation += 1;
        self.free.push(token.index);
        let entry = slot.entry.take()?;
        if let EntryKind::Call(call) = &entry.kind {
            self.len -= 1;
            if !call.is_notification {
                self.by_connection.remove(call.id.connection.index, token.index);
            }
        }
        Some(entry)
    }

    /// Notes how long a call took, a sixteenth of the way to the average.
    pub(crate) fn record_duration(&mut self, elapsed: Duration) {
        self.average_time = (self.average_time * 15 + elapsed) / 16;
    }

    /// The next outcome that was handed in.
    #[inline]
    pub(crate) fn next_outcome(&mut self) -> Option<(Token, CallOutcome)> {
        if self.ready.is_empty() {
            self.outcomes.take(&mut self.ready);
        }
        self.ready.pop_front()
    }

    /// Puts outcomes in front of those that wait.
    pub(crate) fn push_front(
        &mut self,
        outcomes: impl DoubleEndedIterator<Item = (Token, CallOutcome)>,
    ) {
        for outcome in outcomes.rev() {
            self.ready.push_front(outcome);
        }
    }

    /// Whether an outcome waits to be asked for.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.ready.is_empty() || self.outcomes.is_nonempty.load(Ordering::Relaxed)
    }

    /// The nearest deadline, perhaps of a call that is over.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// A call whose deadline has passed.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<Token> {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            let Reverse((_, token)) = self.deadlines.pop()?;
            if self.find_call(token).is_some() {
                return Some(token);
            }
        }
        None
    }

    /// The calls for which somebody on that connection waits.
    pub(crate) fn of_connection(&self, connection: Id) -> Vec<Token> {
        let by_connection = self.by_connection.slots_of(connection.index).into_iter();
        by_connection
            .filter_map(|index| self.call_at(index, |call| call.id.connection == connection))
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<Token> {
        (0..self.slots.len() as u32).filter_map(|index| self.call_at(index, |_| true)).collect()
    }

    /// The token of the call at that place, if there is one that is wanted.
    fn call_at(&self, index: u32, filter: impl Fn(&Deferred) -> bool) -> Option<Token> {
        let slot = self.slots.get(index as usize)?;
        let is_match = matches!(&slot.entry.as_ref()?.kind, EntryKind::Call(call) if filter(call));
        is_match.then_some(Token { index, generation: slot.generation })
    }

    /// Throws away the deadlines of calls that are over, once they are most of them.
    fn prune_deadlines(&mut self) {
        const PRUNE_MIN: usize = 64;
        if self.deadlines.len() <= PRUNE_MIN + 2 * self.len {
            return;
        }
        let deadlines = mem::take(&mut self.deadlines).into_iter();
        self.deadlines = deadlines.filter(|Reverse((_, token))| self.has(*token)).collect();
    }
}

/// Called by a task or a future when it is done: hands it in.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct DoneCallback {
    token: Token,
    outcomes: Arc<OutcomeQueue>,
    /// Whether it is called on the worker's own thread.
    is_local: bool,
}

impl DoneCallback {
    pub(crate) fn new(token: Token, outcomes: Arc<OutcomeQueue>, is_local: bool) -> Self {
        Self { token, outcomes, is_local }
    }
}

#[pymethods]
impl DoneCallback {
    #[pyo3(signature = (future, /))]
    pub(crate) fn __call__(&self, py: Python<'_>, future: Py<PyAny>) {
        match self.is_local {
            true => self.outcomes.push_local(py, self.token, CallOutcome::Future(future)),
            false => self.outcomes.push_remote(self.token, CallOutcome::Future(future)),
        }
    }
}
