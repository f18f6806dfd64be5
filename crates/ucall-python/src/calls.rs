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

use crate::job_input::JobInput;
use crate::procedure::Procedure;
use crate::siblings::Siblings;

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
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
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
    pub(crate) keeps: Keeps,
}

/// What a call keeps of its request, and lets go of as soon as nobody waits for it.
pub(crate) enum Keeps {
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
        match &mut self.keeps {
            Keeps::Arguments { arguments, .. } => arguments.take(),
            _ => None,
        }
    }

    /// Nobody waits for it any more.
    pub(crate) fn let_go(&mut self) {
        if let Some(cancelled) = &self.cancelled {
            cancelled.store(true, Ordering::Relaxed);
        }
        if let Keeps::Input(parcel) = &self.keeps {
            drop(parcel.take());
        }
        self.keeps = Keeps::Params { _reserved: Reservation::default() };
    }
}

/// How something ended.
pub(crate) enum Outcome {
    /// A task or a future that is done.
    Future(Py<PyAny>),
    /// What one caller of a batch gets: a result, or an exception that was returned.
    Item(Py<PyAny>),
    /// The text of a result, written already; or an error.
    Text(Result<Vec<u8>, RpcError>),
}

/// Where outcomes are handed in, from any thread.
pub(crate) struct Outcomes {
    list: Mutex<Vec<(Token, Outcome)>>,
    /// Looked at without the lock.
    any: AtomicBool,
    mailbox: Mutex<Option<Mailbox>>,
    /// Called when there is something, by a loop that would not look by itself.
    wake: Mutex<Option<Py<PyAny>>>,
    process: OwningProcess,
}

impl Outcomes {
    fn new() -> Self {
        Self {
            list: Mutex::default(),
            any: AtomicBool::new(false),
            mailbox: Mutex::default(),
            wake: Mutex::default(),
            process: OwningProcess::current(),
        }
    }

    /// The worker to wake for outcomes from other threads.
    pub(crate) fn lead_to(&self, mailbox: Mailbox) {
        *self.mailbox.lock().unwrap_or_else(PoisonError::into_inner) = Some(mailbox);
    }

    /// What to call when there is something from the worker's own thread, unless that looks anyway.
    pub(crate) fn wake_by(&self, wake: Option<Py<PyAny>>) {
        *self.wake.lock().unwrap_or_else(PoisonError::into_inner) = wake;
    }

    /// Hands in from the worker's own thread.
    pub(crate) fn push_here(&self, py: Python<'_>, token: Token, outcome: Outcome) {
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
    pub(crate) fn push_from_afar(&self, token: Token, outcome: Outcome) {
        self.push(token, outcome);
        self.wake();
    }

    /// Hands in many from another thread, and wakes the worker once.
    pub(crate) fn push_all(&self, outcomes: Vec<(Token, Outcome)>) {
        for (token, outcome) in outcomes {
            self.push(token, outcome);
        }
        self.wake();
    }

    fn wake(&self) {
        let mailbox = self.mailbox.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = &*mailbox {
            mailbox.send(Message::Look);
        }
    }

    /// `true` when there was something already. A child that was forked off in a function ends
    /// here: on a thread of a pool it would wait for calls that never come, with its parent's
    /// connections open.
    fn push(&self, token: Token, outcome: Outcome) -> bool {
        self.process.end_child();
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.push((token, outcome));
        self.any.swap(true, Ordering::Relaxed)
    }

    fn take(&self, to: &mut VecDeque<(Token, Outcome)>) {
        if self.any.load(Ordering::Relaxed) {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Relaxed);
            to.extend(list.drain(..));
        }
    }
}

/// All calls of one worker.
pub(crate) struct Calls {
    places: Vec<Place>,
    free: Vec<u32>,
    /// How many calls there are, batches not counted.
    len: usize,
    /// Of those that somebody waits for.
    siblings: Siblings,
    deadlines: BinaryHeap<Reverse<(Instant, Token)>>,
    outcomes: Arc<Outcomes>,
    /// Taken from the outcomes, in order.
    ready: VecDeque<(Token, Outcome)>,
    /// How long calls took lately.
    usual_time: Duration,
}

struct Place {
    generation: u64,
    entry: Option<Entry>,
}

impl Calls {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
            len: 0,
            siblings: Siblings::default(),
            deadlines: BinaryHeap::new(),
            outcomes: Arc::new(Outcomes::new()),
            ready: VecDeque::new(),
            usual_time: Duration::from_millis(1),
        }
    }

    pub(crate) fn outcomes(&self) -> &Arc<Outcomes> {
        &self.outcomes
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How long the next call will probably have to wait for a place.
    pub(crate) fn usual_time(&self) -> Duration {
        self.usual_time
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, entry: None });
            (self.places.len() - 1) as u32
        });
        let deadline = match &entry.kind {
            Kind::Call(call) => {
                self.len += 1;
                if !call.is_notification {
                    self.siblings.insert(call.id.connection.index, index);
                }
                call.deadline
            }
            Kind::Run(_) => None,
        };
        let mut token = Token { index, generation: 0 };
        if let Some(place) = self.places.get_mut(index as usize) {
            token.generation = place.generation;
            place.entry = Some(entry);
        }
        if let Some(deadline) = deadline {
            self.deadlines.push(Reverse((deadline, token)));
            self.forget_deadlines();
        }
        token
    }

    pub(crate) fn find(&mut self, token: Token) -> Option<&mut Entry> {
        let place = self.places.get_mut(token.index as usize)?;
        place.entry.as_mut().filter(|_| place.generation == token.generation)
    }

    pub(crate) fn has(&self, token: Token) -> bool {
        let place = self.places.get(token.index as usize);
        place.is_some_and(|it| it.generation == token.generation && it.entry.is_some())
    }

    /// The call of that token, if it still waits.
    pub(crate) fn find_call(&mut self, token: Token) -> Option<&mut Deferred> {
        match &mut self.find(token)?.kind {
            Kind::Call(call) => Some(call),
            Kind::Run(_) => None,
        }
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Entry> {
        self.find(token)?;
        let place = self.places.get_mut(token.index as usize)?;
        place.generation += 1;
        self.free.push(token.index);
        let entry = place.entry.take()?;
        if let Kind::Call(call) = &entry.kind {
            self.len -= 1;
            if !call.is_notification {
                self.siblings.remove(call.id.connection.index, token.index);
            }
        }
        Some(entry)
    }

    /// Notes how long a call took, a sixteenth of the way to the average.
    pub(crate) fn note_time(&mut self, took: Duration) {
        self.usual_time = (self.usual_time * 15 + took) / 16;
    }

    /// The next outcome that was handed in.
    #[inline]
    pub(crate) fn next_outcome(&mut self) -> Option<(Token, Outcome)> {
        if self.ready.is_empty() {
            self.outcomes.take(&mut self.ready);
        }
        self.ready.pop_front()
    }

    /// Puts outcomes in front of those that wait.
    pub(crate) fn put_first(
        &mut self,
        outcomes: impl DoubleEndedIterator<Item = (Token, Outcome)>,
    ) {
        for outcome in outcomes.rev() {
            self.ready.push_front(outcome);
        }
    }

    /// Whether an outcome waits to be asked for.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.ready.is_empty() || self.outcomes.any.load(Ordering::Relaxed)
    }

    /// The nearest deadline, perhaps of a call that is over.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// A call whose deadline has passed.
    pub(crate) fn overdue(&mut self, now: Instant) -> Option<Token> {
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
        let siblings = self.siblings.of(connection.index).into_iter();
        siblings
            .filter_map(|index| self.call_at(index, |call| call.id.connection == connection))
            .collect()
    }

    pub(crate) fn all(&self) -> Vec<Token> {
        (0..self.places.len() as u32).filter_map(|index| self.call_at(index, |_| true)).collect()
    }

    /// The token of the call at that place, if there is one that is wanted.
    fn call_at(&self, index: u32, wanted: impl Fn(&Deferred) -> bool) -> Option<Token> {
        let place = self.places.get(index as usize)?;
        let is_wanted = matches!(&place.entry.as_ref()?.kind, Kind::Call(call) if wanted(call));
        is_wanted.then_some(Token { index, generation: place.generation })
    }

    /// Throws away the deadlines of calls that are over, once they are most of them.
    fn forget_deadlines(&mut self) {
        const KEPT: usize = 64;
        if self.deadlines.len() <= KEPT + 2 * self.len {
            return;
        }
        let deadlines = mem::take(&mut self.deadlines).into_iter();
        self.deadlines = deadlines.filter(|Reverse((_, token))| self.has(*token)).collect();
    }
}

/// Called by a task or a future when it is done: hands it in.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Done {
    token: Token,
    outcomes: Arc<Outcomes>,
    /// Whether it is called on the worker's own thread.
    is_here: bool,
}

impl Done {
    pub(crate) fn new(token: Token, outcomes: Arc<Outcomes>, is_here: bool) -> Self {
        Self { token, outcomes, is_here }
    }
}

#[pymethods]
impl Done {
    #[pyo3(signature = (future, /))]
    pub(crate) fn __call__(&self, py: Python<'_>, future: Py<PyAny>) {
        match self.is_here {
            true => self.outcomes.push_here(py, self.token, Outcome::Future(future)),
            false => self.outcomes.push_from_afar(self.token, Outcome::Future(future)),
        }
    }
}
