//! One call, as a callback sees it: what `ucall_call_t` points to.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::json::{self, Fault};
use ucall_proto::{Call as Request, Outcome, Reply, RpcError};
use ucall_server::{Caller, Reservation};

use crate::boundary::{clear_last_error, set_last_error};
use crate::config::NESTING_MAX;
use crate::desk::{Callback, Desk};
use crate::ledger::{Deadline, Ticket, Way};
use crate::params::{Look, Memory, Params, Which};

/// A live call borrows from its worker (`'a`) and its reply (`'r`) and ends with its callback. A
/// deferred one owns all that it has, and ends when the program releases it.
pub struct Call<'a, 'r> {
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
    /// It has gone, and a reply of the program was refused: the thread's last error says why.
    Refused,
    /// A deferred call has taken over.
    HandedOver,
}

/// Which side of the mailbox the call is on.
enum Side<'a> {
    Worker {
        callback: &'a Callback,
        request: &'a Request<'a>,
        caller: &'a Caller,
        desk: &'a mut Desk,
    },
    Deferred {
        ticket: Arc<Ticket>,
        procedure: Box<str>,
        params: Vec<u8>,
        memory: Box<Memory>,
        /// Of the params.
        _reserved: Reservation,
    },
}

impl Side<'_> {
    /// The params, and what is needed to look into them.
    #[inline]
    fn params(&mut self) -> (Params<'_>, &mut Memory) {
        match self {
            Side::Worker { request, desk, .. } => {
                let text = request.params.unwrap_or_default();
                (Params { text, members: request.members }, &mut desk.memory)
            }
            Side::Deferred { params, memory, .. } => {
                (Params { text: params, members: None }, memory)
            }
        }
    }
}

impl<'a, 'r> Call<'a, 'r> {
    #[inline]
    pub(crate) fn new(
        callback: &'a Callback,
        request: &'a Request<'a>,
        caller: &'a Caller,
        reply: &'a mut Reply<'r>,
        desk: &'a mut Desk,
        deadline: Option<Deadline>,
    ) -> Self {
        let side = Side::Worker { callback, request, caller, desk };
        Self { answer: Answer::Here(reply), side, deadline }
    }

    /// What became of the call, now that its callback has returned.
    #[inline]
    pub(crate) fn outcome(&self) -> Outcome {
        match &self.answer {
            Answer::HandedOver => {
                clear_last_error();
                Outcome::Deferred
            }
            Answer::Here(reply) => {
                if !reply.is_notification() {
                    self.complain("did not reply");
                }
                Outcome::Done
            }
            Answer::Given | Answer::There(_) => Outcome::Done,
            Answer::Refused => {
                // It is for this callback, and not for the next one on this thread.
                clear_last_error();
                Outcome::Done
            }
        }
    }

    /// What can be told of one of the params at once.
    #[inline(always)]
    pub(crate) fn look(&self, which: Which<'_>) -> Look<'_> {
        let Side::Worker { request, .. } = &self.side else { return Look::Unknown };
        let Some(text) = request.params else { return Look::Absent };
        Params { text, members: request.members }.look(which)
    }

    /// The text of one of the params.
    #[inline]
    pub(crate) fn param(&mut self, which: Which<'_>) -> Option<&[u8]> {
        let (params, memory) = self.side.params();
        memory.find(params, which)
    }

    /// One of the params that is a string: its bytes, which stay as long as the call.
    #[inline]
    pub(crate) fn string(&mut self, which: Which<'_>) -> Option<&[u8]> {
        let (params, memory) = self.side.params();
        let value = memory.find(params, which)?;
        memory.string(value)
    }

    /// Replies with JSON text, which is proven to be that.
    #[inline]
    pub(crate) fn reply_content(&mut self, content: &[u8]) {
        match json::prove(content, NESTING_MAX) {
            Ok(()) => self.reply(|out| out.extend_from_slice(content)),
            Err(Fault::TooDeep) => self.fail("replied with JSON that nests too deep"),
            Err(_) => self.fail("replied with what is no JSON"),
        }
    }

    /// Replies with what `write` appends, which is JSON text.
    ///
    /// The way of the reply is not taken out first: just written, it could not be copied at once.
    #[inline]
    pub(crate) fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        match &mut self.answer {
            Answer::Here(reply) => {
                write(reply.result());
                self.answer = Answer::Given;
            }
            _ => self.reply_late(write),
        }
    }

    #[cold]
    fn reply_late(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        // Written before the way is taken, which is still there then if that panics.
        let mut out = Vec::new();
        if matches!(self.answer, Answer::There(_)) {
            write(&mut out);
        }
        match mem::replace(&mut self.answer, Answer::Given) {
            Answer::There(way) => self.complete(way, Ok(out)),
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
        set_last_error(&text);
        self.reply_error(RpcError::new(RpcError::INTERNAL_ERROR, text));
        if matches!(self.answer, Answer::Given) {
            self.answer = Answer::Refused;
        }
    }

    fn complete(&self, way: Way, outcome: Result<Vec<u8>, RpcError>) {
        if let Side::Deferred { ticket, .. } = &self.side {
            way.complete(ticket, outcome);
        }
    }

    /// The reply comes too late; what was before stays.
    #[cold]
    fn refuse(&mut self, late: Answer<'a, 'r>) {
        let (what, answer) = match late {
            Answer::HandedOver => ("replied to a call that it had deferred; ignored", late),
            _ => ("replied twice; the second reply is ignored", Answer::Refused),
        };
        self.complain(what);
        set_last_error(&format!("The handler {what}"));
        self.answer = answer;
    }

    #[cold]
    fn complain(&self, what: &str) {
        let (log, procedure) = match &self.side {
            Side::Worker { desk, callback, .. } => (&desk.ledger.log, &callback.name),
            Side::Deferred { ticket, procedure, .. } => (&ticket.log, procedure),
        };
        log.complain(&format!("procedure {procedure:?} {what}"));
    }

    /// Takes the call out of its callback. `None` when it is answered already, or when too many
    /// are running: then it is answered with that.
    pub(crate) fn defer(&mut self) -> Option<Box<Call<'static, 'static>>> {
        let Answer::Here(_) = &self.answer else {
            self.complain("deferred a call that was answered or deferred before; ignored");
            return None;
        };
        let Side::Worker { callback, request, caller, desk } = &mut self.side else {
            return None;
        };
        let ledger = &mut desk.ledger;
        let Some((ticket, way)) = ledger.enter(caller.call_id(request), self.deadline) else {
            let error = RpcError::new(RpcError::OVERLOADED, "Too many calls at once");
            self.reply_error(error);
            return None;
        };
        self.answer = Answer::HandedOver;
        let params = request.params.unwrap_or_default().to_vec();
        let (procedure, memory) = (callback.name.clone(), Box::default());
        let _reserved = ledger.budget.reserve_large(params.len());
        Some(Box::new(Call {
            answer: Answer::There(way),
            side: Side::Deferred { ticket, procedure, params, memory, _reserved },
            deadline: self.deadline,
        }))
    }

    /// Whether nobody will read the reply. While the callback runs nobody can know.
    pub(crate) fn is_cancelled(&self) -> bool {
        match &self.side {
            Side::Worker { .. } => false,
            Side::Deferred { ticket, .. } => ticket.is_cancelled(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline.moment)
    }

    /// Whether it is the program's to release; complains if it is not.
    pub(crate) fn may_be_released(&self) -> bool {
        let is_deferred = matches!(self.side, Side::Deferred { .. });
        if !is_deferred {
            self.complain("released a call that it had not deferred; ignored");
        }
        is_deferred
    }

    /// Ends a deferred call, answering it if nobody has and somebody waits.
    pub(crate) fn release(mut self) {
        if matches!(self.answer, Answer::There(_)) && !self.is_cancelled() {
            self.fail("did not reply");
        }
        if let Side::Deferred { ticket, .. } = &self.side {
            ticket.release();
        }
    }
}
