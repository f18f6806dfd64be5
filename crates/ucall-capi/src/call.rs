//! One call, as a callback sees it: what `ucall_call_t` points to.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::{Outcome, Reply, RpcError, json};
use ucall_server::CallId;

use crate::config::NESTING_MAX;
use crate::ledger::{Deadline, Ledger, Ticket, Way};
use crate::log::Log;
use crate::params::{Memory, Which};

/// A live call borrows from its worker (`'a`) and its reply (`'r`) and ends with its callback. A
/// deferred one owns all that it has, and ends when the program releases it.
pub struct Call<'a, 'r> {
    procedure: Cow<'a, str>,
    id: CallId,
    /// The text of the params; empty when there are none.
    params: Cow<'a, [u8]>,
    memory: Box<Memory>,
    answer: Answer<'a, 'r>,
    side: Side<'a>,
    deadline: Option<Deadline>,
}

/// Where the reply goes.
enum Answer<'a, 'r> {
    /// Straight into the output.
    Here(&'a mut Reply<'r>),
    /// To the worker's mailbox.
    There(Way),
    /// It has gone.
    Given,
    /// A deferred call has taken over.
    HandedOver,
}

/// Which side of the mailbox the call is on.
enum Side<'a> {
    Worker(&'a mut Ledger),
    Deferred(Arc<Ticket>),
}

impl<'a, 'r> Call<'a, 'r> {
    #[inline]
    pub(crate) fn new(
        procedure: &'a str,
        id: CallId,
        params: &'a [u8],
        memory: Box<Memory>,
        reply: &'a mut Reply<'r>,
        ledger: &'a mut Ledger,
        deadline: Option<Deadline>,
    ) -> Self {
        Self {
            procedure: Cow::Borrowed(procedure),
            id,
            params: Cow::Borrowed(params),
            memory,
            answer: Answer::Here(reply),
            side: Side::Worker(ledger),
            deadline,
        }
    }

    /// What became of the call, now that its callback has returned.
    #[inline]
    pub(crate) fn outcome(&self) -> Outcome {
        match &self.answer {
            Answer::HandedOver => Outcome::Deferred,
            Answer::Here(reply) => {
                if !reply.is_notification() {
                    self.complain("did not reply");
                }
                Outcome::Done
            }
            Answer::Given | Answer::There(_) => Outcome::Done,
        }
    }

    /// Ends it; gives back the memory that it was lent.
    #[inline]
    pub(crate) fn into_memory(self) -> Box<Memory> {
        self.memory
    }

    /// The text of one of the params.
    #[inline]
    pub(crate) fn param(&mut self, which: Which<'_>) -> Option<&[u8]> {
        self.memory.find(&self.params, which)
    }

    /// One of the params that is a string: its bytes, which stay as long as the call.
    #[inline]
    pub(crate) fn string(&mut self, which: Which<'_>) -> Option<&[u8]> {
        let value = self.memory.find(&self.params, which)?;
        self.memory.string(value)
    }

    /// Replies with JSON text.
    #[inline]
    pub(crate) fn reply_content(&mut self, content: &[u8]) {
        let is_checked = cfg!(debug_assertions);
        if content.is_empty() || is_checked && json::prove(content, NESTING_MAX).is_err() {
            return self.fail("replied with what is no JSON");
        }
        self.reply(|out| out.extend_from_slice(content));
    }

    /// Replies with what `write` appends, which is JSON text.
    #[inline]
    pub(crate) fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        match mem::replace(&mut self.answer, Answer::Given) {
            Answer::Here(reply) => write(reply.result()),
            Answer::There(way) => {
                let mut out = Vec::new();
                write(&mut out);
                self.complete(way, Ok(out));
            }
            late => self.refuse(late),
        }
    }

    pub(crate) fn reply_error(&mut self, error: RpcError) {
        match mem::replace(&mut self.answer, Answer::Given) {
            Answer::Here(reply) => reply.error(&error),
            Answer::There(way) => self.complete(way, Err(error)),
            late => self.refuse(late),
        }
    }

    /// Answers a reply that cannot be sent, and says so in the log.
    #[cold]
    pub(crate) fn fail(&mut self, what: &str) {
        self.complain(what);
        let text = format!("The handler {what}");
        self.reply_error(RpcError::new(RpcError::INTERNAL_ERROR, text));
    }

    fn complete(&self, way: Way, outcome: Result<Vec<u8>, RpcError>) {
        if let Side::Deferred(ticket) = &self.side {
            way.complete(ticket, outcome);
        }
    }

    /// The reply comes too late; what was before stays.
    #[cold]
    fn refuse(&mut self, late: Answer<'a, 'r>) {
        self.complain(match late {
            Answer::HandedOver => "replied to a call that it had deferred; ignored",
            _ => "replied twice; the second reply is ignored",
        });
        self.answer = late;
    }

    #[cold]
    fn complain(&self, what: &str) {
        self.log().complain(&format!("procedure {:?} {what}", self.procedure));
    }

    fn log(&self) -> &Log {
        match &self.side {
            Side::Worker(ledger) => &ledger.log,
            Side::Deferred(ticket) => &ticket.log,
        }
    }

    /// Takes the call out of its callback. `None` when it is answered already, or when too many
    /// are running: then it is answered with that.
    pub(crate) fn defer(&mut self) -> Option<Box<Call<'static, 'static>>> {
        let Answer::Here(_) = &self.answer else {
            self.complain("deferred a call that was answered or deferred before; ignored");
            return None;
        };
        let Side::Worker(ledger) = &mut self.side else { return None };
        let Some((ticket, way)) = ledger.enter(self.id, self.deadline) else {
            let error = RpcError::new(RpcError::OVERLOADED, "Too many calls at once");
            self.reply_error(error);
            return None;
        };
        self.answer = Answer::HandedOver;
        Some(Box::new(Call {
            procedure: Cow::Owned(self.procedure.to_string()),
            id: self.id,
            params: Cow::Owned(self.params.to_vec()),
            memory: Box::default(),
            answer: Answer::There(way),
            side: Side::Deferred(ticket),
            deadline: self.deadline,
        }))
    }

    /// Whether nobody will read the reply. While the callback runs nobody can know.
    pub(crate) fn is_cancelled(&self) -> bool {
        match &self.side {
            Side::Worker(_) => false,
            Side::Deferred(ticket) => ticket.is_cancelled(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline.moment)
    }

    /// Whether it is the program's to release; complains if it is not.
    pub(crate) fn may_be_released(&self) -> bool {
        let is_deferred = matches!(self.side, Side::Deferred(_));
        if !is_deferred {
            self.complain("released a call that it had not deferred; ignored");
        }
        is_deferred
    }

    /// Ends a deferred call, answering it if nobody has.
    pub(crate) fn release(mut self) {
        if matches!(self.answer, Answer::There(_)) {
            self.fail("did not reply");
        }
        if let Side::Deferred(ticket) = &self.side {
            ticket.release();
        }
    }
}
