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
pub(crate) struct Ticket {
    /// Nobody will read the reply: the peer or the server has gone, or the deadline has passed.
    cancelled: AtomicBool,
    answered: AtomicBool,
    released: AtomicBool,
    running: Arc<AtomicUsize>,
    pub(crate) log: Arc<Log>,
}

impl Ticket {
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
pub(crate) struct Way {
    mailbox: Mailbox,
    id: CallId,
}

impl Way {
    pub(crate) fn complete(self, ticket: &Ticket, outcome: Result<Vec<u8>, RpcError>) {
        ticket.answered.store(true, Release);
        if !ticket.is_cancelled() {
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
pub(crate) struct Ledger {
    pub(crate) log: Arc<Log>,
    /// Of the worker; there once it is made.
    pub(crate) mailbox: Option<Mailbox>,
    /// How long a call may take.
    timeout: Option<Duration>,
    deferred_max: usize,
    running: Arc<AtomicUsize>,
    /// What the worker and those calls hold.
    pub(crate) budget: MemoryBudget,
    tickets: HashMap<Id, Vec<Arc<Ticket>>>,
    tickets_len: usize,
    purge_at: usize,
    deadlines: Deadlines,
}

/// The deadlines of calls, the nearest first.
#[derive(Debug, Default)]
struct Deadlines {
    due: BinaryHeap<Reverse<Due>>,
    purge_at: usize,
}

/// A call that has a deadline. Ordered by it, and nothing else.
#[derive(Debug)]
struct Due {
    deadline: Deadline,
    id: CallId,
    ticket: Arc<Ticket>,
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.deadline.moment.cmp(&other.deadline.moment)
    }
}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Due {}

impl Ledger {
    pub(crate) fn new(log: Arc<Log>, timeout: Option<Duration>, deferred_max: usize) -> Self {
        Self {
            log,
            mailbox: None,
            timeout,
            deferred_max,
            running: Arc::default(),
            budget: MemoryBudget::default(),
            tickets: HashMap::new(),
            tickets_len: 0,
            purge_at: PURGE_MIN,
            deadlines: Deadlines::default(),
        }
    }

    /// The deadline of a call that begins now: by its caller's wish or the server's, whichever is
    /// sooner.
    #[inline]
    pub(crate) fn deadline_of(&self, wished: Option<Duration>) -> Option<Deadline> {
        let timeout = [wished, self.timeout].into_iter().flatten().min()?;
        let moment = Instant::now().checked_add(timeout)?;
        Some(Deadline { moment, timeout })
    }

    /// Enters a call; `None` when too many are running, or there is no worker.
    pub(crate) fn enter(
        &mut self,
        id: CallId,
        deadline: Option<Deadline>,
    ) -> Option<(Arc<Ticket>, Way)> {
        let mailbox = self.mailbox.clone()?;
        if self.running() >= self.deferred_max {
            return None;
        }
        self.running.fetch_add(1, AcqRel);
        let ticket = Arc::new(Ticket {
            cancelled: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            released: AtomicBool::new(false),
            running: self.running.clone(),
            log: self.log.clone(),
        });
        self.keep(id.connection, ticket.clone());
        if let Some(deadline) = deadline {
            self.deadlines.push(Due { deadline, id, ticket: ticket.clone() });
        }
        Some((ticket, Way { mailbox, id }))
    }

    fn keep(&mut self, connection: Id, ticket: Arc<Ticket>) {
        if self.tickets_len >= self.purge_at {
            self.purge();
        }
        self.tickets.entry(connection).or_default().push(ticket);
        self.tickets_len += 1;
    }

    /// Forgets calls that are over. Done whenever the number has doubled, so that a call costs the
    /// same however many there are.
    fn purge(&mut self) {
        self.tickets.retain(|_, tickets| {
            tickets.retain(|ticket| !ticket.is_released());
            !tickets.is_empty()
        });
        self.tickets_len = self.tickets.values().map(Vec::len).sum();
        self.purge_at = PURGE_MIN.max(2 * self.tickets_len);
    }

    /// Deferred calls that the program has not released.
    pub(crate) fn running(&self) -> usize {
        self.running.load(Acquire)
    }

    /// A connection has closed: nobody waits for its calls any more.
    pub(crate) fn cancel(&mut self, connection: Id) {
        let tickets = self.tickets.remove(&connection).unwrap_or_default();
        self.tickets_len -= tickets.len();
        tickets.iter().for_each(|ticket| ticket.cancel());
    }

    /// When [`Ledger::expire`] is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.nearest().map(|due| due.deadline.moment)
    }

    /// Whether [`Ledger::expire`] may have something to do.
    #[inline]
    pub(crate) fn has_deadlines(&self) -> bool {
        !self.deadlines.due.is_empty()
    }

    /// Answers the calls whose deadline has passed, and cancels them.
    #[inline(never)]
    pub(crate) fn expire(&mut self, now: Instant) {
        let is_due = |due: &Due| due.deadline.moment <= now || is_over(&due.ticket);
        while let Some(due) = self.deadlines.pop_if(is_due) {
            if let Some(mailbox) = self.mailbox.as_ref().filter(|_| !is_over(&due.ticket)) {
                due.ticket.cancel();
                mailbox.send(Message::Complete(due.id, Err(due.deadline.error())));
            }
        }
    }
}

impl Deadlines {
    /// Forgets those of calls that are over whenever their number has doubled: a call that runs for
    /// long, with the nearest deadline of all, would keep the others behind it.
    fn push(&mut self, due: Due) {
        if self.due.len() >= self.purge_at.max(PURGE_MIN) {
            self.due.retain(|Reverse(due)| !is_over(&due.ticket));
            self.purge_at = 2 * self.due.len();
        }
        self.due.push(Reverse(due));
    }

    fn nearest(&self) -> Option<&Due> {
        self.due.peek().map(|Reverse(due)| due)
    }

    fn pop_if(&mut self, wanted: impl FnOnce(&Due) -> bool) -> Option<Due> {
        if !wanted(self.nearest()?) {
            return None;
        }
        self.due.pop().map(|Reverse(due)| due)
    }
}

fn is_over(ticket: &Ticket) -> bool {
    ticket.answered.load(Acquire) || ticket.is_cancelled()
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.tickets.values().flatten().for_each(|ticket| ticket.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Format;
    use ucall_proto::ExchangeId;

    fn due(now: Instant, seconds: u64) -> Due {
        let ticket = Ticket {
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
        Due { deadline, id, ticket: Arc::new(ticket) }
    }

    #[test]
    fn calls_that_are_over_are_forgotten_behind_one_that_runs() {
        let (now, mut deadlines) = (Instant::now(), Deadlines::default());
        deadlines.push(due(now, 1));
        for _ in 0..10_000 {
            let call = due(now, 60);
            call.ticket.answered.store(true, Release);
            deadlines.push(call);
        }
        assert!(deadlines.due.len() <= 2 * PURGE_MIN, "{}", deadlines.due.len());
        assert_eq!(
            deadlines.nearest().map(|due| due.deadline.moment),
            Some(due(now, 1).deadline.moment)
        );
    }
}
