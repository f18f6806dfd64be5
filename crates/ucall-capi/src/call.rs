//! One call, as a callback sees it: what `ucall_call_t` points to.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::json::{self, JsonError};
use ucall_proto::{Call as Request, CallOutcome, Reply, RpcError};
use ucall_server::{Caller, Reservation};

use crate::boundary::{clear_last_error, set_last_error};
use crate::callback_handler::{Callback, CallbackHandler};
use crate::config::NESTING_MAX;
use crate::deferred_calls::{CallState, Deadline, ReplySender};
use crate::params::{Lookup, ParamBuffers, ParamKey, Params};

/// A live call borrows from its worker (`'a`) and its reply (`'r`) and ends with its callback. A
/// deferred one owns all that it has, and ends when the program releases it.
pub struct Call<'a, 'r> {
    reply_path: ReplyPath<'a, 'r>,
    data: CallData<'a>,
    deadline: Option<Deadline>,
}

/// Where the reply goes.
enum ReplyPath<'a, 'r> {
    /// Straight into the output.
    Output(&'a mut Reply<'r>),
    /// To the worker's mailbox.
    Mailbox(ReplySender),
    /// It has gone.
    Replied,
    /// It has gone, and a reply of the program was refused: the thread's last error says why.
    Refused,
    /// A deferred call has taken over.
    Deferred,
}

/// Which side of the mailbox the call is on.
enum CallData<'a> {
    Live {
        callback: &'a Callback,
        request: &'a Request<'a>,
        caller: &'a Caller,
        handler: &'a mut CallbackHandler,
    },
    Deferred {
        state: Arc<CallState>,
        procedure: Box<str>,
        params: Vec<u8>,
        buffers: Box<ParamBuffers>,
        /// Of the params.
        _reserved: Reservation,
    },
}

impl CallData<'_> {
    /// The params, and what is needed to look into them.
    #[inline]
    fn params(&mut self) -> (Params<'_>, &mut ParamBuffers) {
        match self {
            CallData::Live { request, handler, .. } => {
                let text = request.params.unwrap_or_default();
                (Params { text, members: request.members }, &mut handler.buffers)
            }
            CallData::Deferred { params, buffers, .. } => {
                (Params { text: params, members: None }, buffers)
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
        handler: &'a mut CallbackHandler,
        deadline: Option<Deadline>,
    ) -> Self {
        let data = CallData::Live { callback, request, caller, handler };
        Self { reply_path: ReplyPath::Output(reply), data, deadline }
    }

    /// What became of the call, now that its callback has returned.
    #[inline]
    pub(crate) fn outcome(&self) -> CallOutcome {
        match &self.reply_path {
            ReplyPath::Deferred => {
                clear_last_error();
                CallOutcome::Deferred
            }
            ReplyPath::Output(reply) => {
                if !reply.is_notification() {
                    self.warn("did not reply");
                }
                CallOutcome::Done
            }
            ReplyPath::Replied | ReplyPath::Mailbox(_) => CallOutcome::Done,
            ReplyPath::Refused => {
                // It is for this callback, and not for the next one on this thread.
                clear_last_error();
                CallOutcome::Done
            }
        }
    }

    /// What can be told of one of the params at once.
    #[inline(always)]
    pub(crate) fn lookup(&self, key: ParamKey<'_>) -> Lookup<'_> {
        let CallData::Live { request, .. } = &self.data else { return Lookup::Unknown };
        let Some(text) = request.params else { return Lookup::Absent };
        Params { text, members: request.members }.lookup(key)
    }

    /// The text of one of the params.
    #[inline]
    pub(crate) fn param(&mut self, key: ParamKey<'_>) -> Option<&[u8]> {
        let (params, buffers) = self.data.params();
        buffers.find(params, key)
    }

    /// One of the params that is a string: its bytes, which stay as long as the call.
    #[inline]
    pub(crate) fn string(&mut self, key: ParamKey<'_>) -> Option<&[u8]> {
        let (params, buffers) = self.data.params();
        let value = buffers.find(params, key)?;
        buffers.string(value)
    }

    /// Replies with JSON text, which is proven to be that.
    #[inline]
    pub(crate) fn reply_content(&mut self, content: &[u8]) {
        match json::validate(content, NESTING_MAX) {
            Ok(()) => self.reply(|out| out.extend_from_slice(content)),
            Err(JsonError::TooDeep) => self.fail("replied with JSON that nests too deep"),
            Err(_) => self.fail("replied with what is no JSON"),
        }
    }

    /// Replies with what `write` appends, which is JSON text.
    ///
    /// The way of the reply is not taken out first: just written, it could not be copied at once.
    #[inline]
    pub(crate) fn reply(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        match &mut self.reply_path {
            ReplyPath::Output(reply) => {
                write(reply.result());
                self.reply_path = ReplyPath::Replied;
            }
            _ => self.reply_late(write),
        }
    }

    #[cold]
    fn reply_late(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        // Written before the way is taken, which is still there then if that panics.
        let mut out = Vec::new();
        if matches!(self.reply_path, ReplyPath::Mailbox(_)) {
            write(&mut out);
        }
        match mem::replace(&mut self.reply_path, ReplyPath::Replied) {
            ReplyPath::Mailbox(sender) => self.complete(sender, Ok(out)),
            late => self.refuse(late),
        }
    }

    pub(crate) fn reply_error(&mut self, error: RpcError) {
        match mem::replace(&mut self.reply_path, ReplyPath::Replied) {
            ReplyPath::Output(reply) => reply.error(&error),
            ReplyPath::Mailbox(sender) => self.complete(sender, Err(error)),
            late => self.refuse(late),
        }
    }

    /// Answers a reply that cannot be sent, and says so in the log.
    #[cold]
    pub(crate) fn fail(&mut self, what: &str) {
        self.warn(what);
        let text = format!("The handler {what}");
        set_last_error(&text);
        self.reply_error(RpcError::new(RpcError::INTERNAL_ERROR, text));
        if matches!(self.reply_path, ReplyPath::Replied) {
            self.reply_path = ReplyPath::Refused;
        }
    }

    fn complete(&self, sender: ReplySender, outcome: Result<Vec<u8>, RpcError>) {
        if let CallData::Deferred { state, .. } = &self.data {
            sender.complete(state, outcome);
        }
    }

    /// The reply comes too late; what was before stays.
    #[cold]
    fn refuse(&mut self, late: ReplyPath<'a, 'r>) {
        let (what, reply_path) = match late {
            ReplyPath::Deferred => ("replied to a call that it had deferred; ignored", late),
            _ => ("replied twice; the second reply is ignored", ReplyPath::Refused),
        };
        self.warn(what);
        set_last_error(&format!("The handler {what}"));
        self.reply_path = reply_path;
    }

    #[cold]
    fn warn(&self, what: &str) {
        let (log, procedure) = match &self.data {
            CallData::Live { handler, callback, .. } => {
                (&handler.deferred_calls.log, &callback.name)
            }
            CallData::Deferred { state, procedure, .. } => (&state.log, procedure),
        };
        log.warn(&format!("procedure {procedure:?} {what}"));
    }

    /// Takes the call out of its callback. `None` when it is answered already, or when too many
    /// are running: then it is answered with that.
    pub(crate) fn defer(&mut self) -> Option<Box<Call<'static, 'static>>> {
        let ReplyPath::Output(_) = &self.reply_path else {
            self.warn("deferred a call that was answered or deferred before; ignored");
            return None;
        };
        let CallData::Live { callback, request, caller, handler } = &mut self.data else {
            return None;
        };
        let deferred_calls = &mut handler.deferred_calls;
        let Some((state, sender)) = deferred_calls.insert(caller.call_id(request), self.deadline)
        else {
            let error = RpcError::new(RpcError::OVERLOADED, "Too many calls at once");
            self.reply_error(error);
            return None;
        };
        self.reply_path = ReplyPath::Deferred;
        let params = request.params.unwrap_or_default().to_vec();
        let (procedure, buffers) = (callback.name.clone(), Box::default());
        let _reserved = deferred_calls.budget.reserve_large(params.len());
        Some(Box::new(Call {
            reply_path: ReplyPath::Mailbox(sender),
            data: CallData::Deferred { state, procedure, params, buffers, _reserved },
            deadline: self.deadline,
        }))
    }

    /// Whether nobody will read the reply. While the callback runs nobody can know.
    pub(crate) fn is_cancelled(&self) -> bool {
        match &self.data {
            CallData::Live { .. } => false,
            CallData::Deferred { state, .. } => state.is_cancelled(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline.moment)
    }

    /// Whether it is the program's to release; complains if it is not.
    pub(crate) fn may_be_released(&self) -> bool {
        let is_deferred = matches!(self.data, CallData::Deferred { .. });
        if !is_deferred {
            self.warn("released a call that it had not deferred; ignored");
        }
        is_deferred
    }

    /// Ends a deferred call, answering it if nobody has and somebody waits.
    pub(crate) fn release(mut self) {
        if matches!(self.reply_path, ReplyPath::Mailbox(_)) && !self.is_cancelled() {
            self.fail("did not reply");
        }
        if let CallData::Deferred { state, .. } = &self.data {
            state.release();
        }
    }
}
