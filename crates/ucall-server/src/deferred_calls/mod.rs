//! The deferred calls of one worker: calls whose handler replies after their turn.
//!
//! A handler inserts a call, with what its language keeps for it, and gets a [`Token`]. The code
//! that runs the call enqueues the outcome with that token, on any thread. The worker then polls
//! its handler for replies ([`Handler::poll_reply`](crate::Handler::poll_reply)), and the handler
//! takes the outcomes and finishes their calls.
//!
//! | a call ends by | its entry |
//! |---|---|
//! | an outcome | is finished, and its caller gets the reply |
//! | its deadline | gets the error as its outcome |
//! | the end of its connection | is removed |
//!
//! No token is used twice, so the outcome of a call that has ended already finds no entry.

mod by_connection;
mod outcomes;
mod run_limit;
mod shares;

pub use outcomes::OutcomeQueue;
pub use run_limit::{RunLimit, RunPermit};
pub use shares::{Share, Shares};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::{MemoryBudget, RpcError};

use self::by_connection::CallsByConnection;
use crate::batching::HasSlot;
use crate::caller::CallId;
use crate::deadline::Deadline;

/// Names one entry of a [`DeferredCalls`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    slot: u32,
    /// Counts the entries of the slot; 32 bits would be used up within hours.
    generation: u64,
}

impl Token {
    /// Names no entry.
    pub const NONE: Self = Self { slot: u32::MAX, generation: u64::MAX };

    /// A small number: that of no other entry at the same time.
    #[inline]
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

impl HasSlot for Token {
    #[inline]
    fn slot(self) -> usize {
        Self::slot(self)
    }
}

/// The deferred calls of one worker: a `C` for each, and the outcomes that have come, each an `O`.
#[derive(Debug)]
pub struct DeferredCalls<C, O> {
    slots: Vec<Slot<C>>,
    free_slots: Vec<u32>,
    by_connection: CallsByConnection,
    /// May contain calls that have ended.
    deadlines: BinaryHeap<Reverse<(Deadline, Token)>>,
    outcomes: Arc<OutcomeQueue<O>>,
    /// Outcomes that were taken from the queue, in order.
    ready: VecDeque<(Token, O)>,
    limit: RunLimit,
    /// Those of each connection that have a permit.
    shares: Shares,
    /// A moving average of the microseconds from arrival to outcome, waiting included.
    average_micros: u64,
    budget: MemoryBudget,
}

#[derive(Debug)]
struct Slot<C> {
    generation: u64,
    entry: Option<Entry<C>>,
}

#[derive(Debug)]
struct Entry<C> {
    caller: Option<CallId>,
    started: Instant,
    call: C,
}

impl<C, O> DeferredCalls<C, O> {
    /// No calls, of which `running_max` may run at once by the option `limit_name`.
    pub fn new(running_max: usize, limit_name: &'static str) -> Self {
        Self::with_limit(RunLimit::new(running_max, limit_name), MemoryBudget::default())
    }

    /// No calls. Those of other registries with the same limit count against it, too.
    pub fn with_limit(limit: RunLimit, budget: MemoryBudget) -> Self {
        Self {
            slots: Vec::new(),
            free_slots: Vec::new(),
            by_connection: CallsByConnection::default(),
            deadlines: BinaryHeap::new(),
            outcomes: Arc::new(OutcomeQueue::new()),
            ready: VecDeque::new(),
            limit,
            shares: Shares::default(),
            average_micros: 1000,
            budget,
        }
    }

    /// The queue to put outcomes into.
    pub fn outcomes(&self) -> &Arc<OutcomeQueue<O>> {
        &self.outcomes
    }

    /// The budget to reserve the params of calls from: that of
    /// [`Handler::memory_budget`](crate::Handler::memory_budget).
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The limit on calls that run at once.
    pub fn limit(&self) -> &RunLimit {
        &self.limit
    }

    /// Admits one more running call, of a connection unless others call over it as well.
    ///
    /// # Errors
    /// The reply to a call past the limit, or past the connection's share of what is left, with the
    /// time after which a place is likely to be free.
    pub fn admit(&mut self, caller: Option<Id>) -> Result<RunPermit, RpcError> {
        let calls = || caller.map_or(0, |caller| self.shares.calls(caller));
        match self.limit.admits(calls) {
            true => Ok(self.limit.permit(caller.map(|caller| self.shares.take(caller)))),
            false => Err(self.overloaded()),
        }
    }

    /// Counts one more running call, also past the limit.
    pub fn permit(&self) -> RunPermit {
        self.limit.permit(None)
    }

    #[cold]
    fn overloaded(&self) -> RpcError {
        let (name, max) = self.limit.option();
        overloaded(name, max, self.average_time())
    }

    /// The average time of the last calls from arrival to outcome.
    pub fn average_time(&self) -> Duration {
        Duration::from_micros(self.average_micros)
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Inserts a call that arrived at `started`. It is one of the calls of its `caller`'s
    /// connection, unless it has none because no reply is wanted.
    pub fn insert(
        &mut self,
        caller: Option<CallId>,
        deadline: Option<Deadline>,
        started: Instant,
        call: C,
    ) -> Token {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        let mut token = Token { slot, generation: 0 };
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            token.generation = slot.generation;
            slot.entry = Some(Entry { caller, started, call });
        }
        if let Some(CallId { connection, .. }) = caller {
            self.by_connection.insert(connection.index, slot);
        }
        if let Some(deadline) = deadline {
            self.deadlines.push(Reverse((deadline, token)));
            self.prune_deadlines();
        }
        token
    }

    /// The call of `token`, unless it has ended.
    pub fn find(&mut self, token: Token) -> Option<&mut C> {
        let slot = self.slots.get_mut(token.slot as usize)?;
        let entry = slot.entry.as_mut().filter(|_| slot.generation == token.generation);
        entry.map(|entry| &mut entry.call)
    }

    /// The caller of a call that has not ended and wants a reply.
    pub fn caller_of(&self, token: Token) -> Option<CallId> {
        let slot = self.slots.get(token.slot as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == token.generation)?.caller
    }

    /// Whether the call of `token` has not ended.
    pub fn contains(&self, token: Token) -> bool {
        let slot = self.slots.get(token.slot as usize);
        slot.is_some_and(|slot| slot.generation == token.generation && slot.entry.is_some())
    }

    /// Removes a call before its outcome.
    pub fn remove(&mut self, token: Token) -> Option<C> {
        self.remove_entry(token).map(|entry| entry.call)
    }

    /// Removes a call whose outcome has come by `now`.
    pub fn finish(&mut self, token: Token, now: Instant) -> Option<(Option<CallId>, C)> {
        let Entry { caller, started, call } = self.remove_entry(token)?;
        let micros = now.saturating_duration_since(started).as_micros() as u64;
        self.average_micros = (self.average_micros * 15 + micros) / 16;
        Some((caller, call))
    }

    fn remove_entry(&mut self, token: Token) -> Option<Entry<C>> {
        let slot = self.slots.get_mut(token.slot as usize)?;
        if slot.generation != token.generation {
            return None;
        }
        let entry = slot.entry.take()?;
        slot.generation += 1;
        self.free_slots.push(token.slot);
        if let Some(CallId { connection, .. }) = entry.caller {
            self.by_connection.remove(connection.index, token.slot);
        }
        Some(entry)
    }

    /// Whether [`DeferredCalls::next_outcome`] has one.
    #[inline]
    pub fn has_outcomes(&self) -> bool {
        !self.ready.is_empty() || !self.outcomes.is_empty()
    }

    /// The next outcome, perhaps of a call that has ended.
    pub fn next_outcome(&mut self) -> Option<(Token, O)> {
        if self.ready.is_empty() {
            self.outcomes.take(&mut self.ready);
        }
        self.ready.pop_front()
    }

    /// Puts outcomes in front of the others, in their order. Does not wake the worker.
    pub fn push_front(&mut self, outcomes: impl DoubleEndedIterator<Item = (Token, O)>) {
        for outcome in outcomes.rev() {
            self.ready.push_front(outcome);
        }
    }

    /// The next deadline, perhaps of a call that has ended.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((deadline, _))| deadline.at)
    }

    /// The next call whose deadline has passed, once. Its handler cancels the code that runs it,
    /// and enqueues [`Deadline::error`] as its outcome.
    pub fn pop_expired(&mut self, now: Instant) -> Option<(Token, Deadline)> {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let Reverse((deadline, token)) = self.deadlines.pop()?;
            if self.contains(token) {
                return Some((token, deadline));
            }
        }
        None
    }

    /// The calls of a connection, the oldest first.
    pub fn of_connection(&self, connection: Id) -> Vec<Token> {
        let is_wanted = |entry: &Entry<C>| entry.caller.map(|id| id.connection) == Some(connection);
        let slots = self.by_connection.slots_of(connection.index).into_iter();
        slots.filter_map(|slot| self.token_at(slot, is_wanted)).collect()
    }

    /// The token of a call that waits.
    pub fn token_of(&self, call: CallId) -> Option<Token> {
        let is_wanted = |entry: &Entry<C>| entry.caller == Some(call);
        let slots = self.by_connection.slots_of(call.connection.index).into_iter();
        slots.filter_map(|slot| self.token_at(slot, is_wanted)).next()
    }

    /// All calls.
    pub fn all(&self) -> Vec<Token> {
        (0..self.slots.len() as u32).filter_map(|slot| self.token_at(slot, |_| true)).collect()
    }

    fn token_at(&self, index: u32, is_wanted: impl Fn(&Entry<C>) -> bool) -> Option<Token> {
        let slot = self.slots.get(index as usize)?;
        slot.entry.as_ref().filter(|entry| is_wanted(entry))?;
        Some(Token { slot: index, generation: slot.generation })
    }

    /// Drops the deadlines of calls that have ended once they are most of all: the nearest may be
    /// that of a call that runs for long, and keep those behind it.
    fn prune_deadlines(&mut self) {
        const PRUNE_MIN: usize = 64;
        if self.deadlines.len() > PRUNE_MIN + 2 * self.count() {
            let mut deadlines = mem::take(&mut self.deadlines);
            deadlines.retain(|Reverse((_, token))| self.contains(*token));
            self.deadlines = deadlines;
        }
    }
}

/// The reply to a call past the limit of an option, with the time after which a place is likely to
/// be free.
#[cold]
pub fn overloaded(option: &str, max: usize, retry_after: Duration) -> RpcError {
    let retry_after_ms = retry_after.as_millis().clamp(1, 10_000);
    let mut error = RpcError::new(RpcError::OVERLOADED, "Overloaded");
    let data = format!(r#"{{"retry_after_ms":{retry_after_ms},"{option}":{max}}}"#);
    error.data = Some(data.into_bytes());
    error
}

// loom has locks of its own, which work in its models alone.
#[cfg(all(test, not(loom)))]
mod tests;
