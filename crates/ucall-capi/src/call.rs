//! One call, which `ucall_call_t` names.

use std::ffi::c_void;
use std::hint::unreachable_unchecked;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Peer;
use ucall_proto::arrays::Tensor;
use ucall_proto::http1::Head;
use ucall_proto::json::{self, JsonError, Text};
use ucall_proto::{
    Call as Request, CallOutcome, Limits, Meta, Parts, Reply, ResultPart, RpcError, inline_results,
};
use ucall_server::{Caller, Deadline, Overflow, Reservation, Transport};

use crate::auth::User;
use crate::boundary::{ErrorCode, clear_last_error, set_last_error};
use crate::buffers::Buffer;
use crate::call_handle::CallHandle;
use crate::callback_handler::CallbackHandler;
use crate::channel::Channel;
use crate::deferred::{DeferredHandle, Outcome};
use crate::params::{Lookup, ParamBuffers, ParamKey, Params};
use crate::parted_params::PartedParams;
use crate::stream::{ItemState, RoomCallback, Stream};

/// A live call borrows from its worker (`'a`) and its reply (`'r`), and ends with its callback. A
/// deferred call owns its data, and ends when the program releases it.
pub struct Call<'a, 'r> {
    reply_path: ReplyPath<'a, 'r>,
    data: CallData<'a>,
    deadline: Option<Deadline>,
}

/// Where the reply goes.
enum ReplyPath<'a, 'r> {
    /// Straight to the output.
    Output(&'a mut Reply<'r>),
    /// Through the worker's queue of outcomes.
    Outcomes,
    /// The call is answered.
    Replied,
    /// The call is answered, and a reply of the program was refused: the thread's last error says
    /// why.
    Refused,
    /// The deferred call replies.
    Deferred(CallOutcome),
}

/// The params of the call, and its worker or its handle.
enum CallData<'a> {
    Live {
        procedure: &'a Arc<str>,
        request: &'a Request<'a>,
        caller: &'a Caller,
        handler: &'a mut CallbackHandler,
    },
    /// Boxed, so that little memory is written for a live call.
    Deferred(Box<DeferredData>),
}

/// What a deferred call owns.
struct DeferredData {
    handle: DeferredHandle,
    channel: Option<Channel>,
    procedure: Arc<str>,
    params: Vec<u8>,
    context: Context,
    /// The text of `_meta`; empty if there is none.
    meta: Vec<u8>,
    buffers: ParamBuffers,
    parted: Option<Box<PartedParams>>,
    takes_parts: bool,
    /// For the params and `_meta`.
    _reserved: Reservation,
}

/// What a deferred call knows of its caller.
struct Context {
    is_notification: bool,
    peer: Option<Peer>,
    user: User,
}

impl CallData<'_> {
    /// The params, and the buffers to search them with.
    #[inline]
    fn params(&mut self) -> (Params<'_>, &mut ParamBuffers) {
        match self {
            CallData::Live { request, handler, .. } => {
                let text = request.params.unwrap_or_default();
                let CallbackHandler { buffers, parted, .. } = &mut **handler;
                match parted {
                    Some(parted) => (parted.inlined(text), buffers),
                    None => (Params { text, members: request.members }, buffers),
                }
            }
            CallData::Deferred(data) => {
                let DeferredData { params, buffers, parted, .. } = &mut **data;
                match parted {
                    Some(parted) => (parted.inlined(params), buffers),
                    None => (Params { text: params, members: None }, buffers),
                }
            }
        }
    }

    /// The params as they were received, the buffers to search them with, and the parts.
    fn received_params(&mut self) -> (Params<'_>, &mut ParamBuffers, Option<&Parts>) {
        let (params, buffers, parted) = match self {
            CallData::Live { request, handler, .. } => {
                let CallbackHandler { buffers, parted, .. } = &mut **handler;
                let text = request.params.unwrap_or_default();
                (Params { text, members: request.members }, buffers, parted)
            }
            CallData::Deferred(data) => {
                let DeferredData { params, buffers, parted, .. } = &mut **data;
                (Params { text: params, members: None }, buffers, parted)
            }
        };
        let Some(parted) = parted else { return (params, buffers, None) };
        parted.select(params.text);
        let PartedParams { parts, buffers, .. } = &mut **parted;
        (params, buffers, Some(parts))
    }
}

impl<'a, 'r> Call<'a, 'r> {
    #[inline]
    pub(crate) fn new(
        procedure: &'a Arc<str>,
        request: &'a Request<'a>,
        caller: &'a Caller,
        reply: &'a mut Reply<'r>,
        handler: &'a mut CallbackHandler,
        deadline: Option<Deadline>,
    ) -> Self {
        let data = CallData::Live { procedure, request, caller, handler };
        Self { reply_path: ReplyPath::Output(reply), data, deadline }
    }

    /// The outcome of the call after its callback has returned.
    #[inline]
    pub(crate) fn outcome(&self) -> CallOutcome {
        match &self.reply_path {
            ReplyPath::Deferred(outcome) => {
                clear_last_error();
                *outcome
            }
            ReplyPath::Output(reply) => {
                if !reply.is_notification() {
                    self.warn("did not reply");
                }
                CallOutcome::Done
            }
            ReplyPath::Replied | ReplyPath::Outcomes => CallOutcome::Done,
            ReplyPath::Refused => {
                // The error was for this callback, not for the next one on this thread.
                clear_last_error();
                CallOutcome::Done
            }
        }
    }

    /// Looks up one of the params on the fast path.
    ///
    /// # Safety
    /// The call is live.
    #[inline(always)]
    pub(crate) unsafe fn lookup(&self, key: ParamKey<'_>) -> Lookup<'_> {
        let CallData::Live { request, .. } = &self.data else {
            // SAFETY: our caller says that it is live.
            unsafe { unreachable_unchecked() }
        };
        let Some(text) = request.params else { return Lookup::Absent };
        Params { text, members: request.members }.lookup(key)
    }

    /// The text of one of the params.
    #[inline]
    pub(crate) fn param(&mut self, key: ParamKey<'_>) -> Option<&[u8]> {
        let (params, buffers) = self.data.params();
        buffers.find(params, key)
    }

    /// The bytes of one of the params, if it is a string. They live as long as the call.
    #[inline]
    pub(crate) fn string(&mut self, key: ParamKey<'_>) -> Option<&[u8]> {
        let (params, buffers) = self.data.params();
        let value = buffers.find(params, key)?;
        buffers.string(value)
    }

    /// One of the params, if it is an array or bytes. It lives as long as the call.
    pub(crate) fn buffer(&mut self, key: ParamKey<'_>) -> Option<Buffer> {
        let (params, buffers, parts) = self.data.received_params();
        let value = buffers.find(params, key)?;
        Buffer::of_param(value, parts, buffers)
    }

    /// The text of the params; empty without params.
    pub(crate) fn params_text(&mut self) -> &[u8] {
        self.data.params().0.text
    }

    /// The bytes of a value that is a string. They live as long as the call.
    pub(crate) fn unescape<'v>(&'v mut self, value: &'v [u8]) -> Option<&'v [u8]> {
        self.data.params().1.string(value)
    }

    /// The bytes of a key. They live as long as the call.
    pub(crate) fn unescape_text<'v>(&'v mut self, key: Text<'v>) -> &'v [u8] {
        self.data.params().1.key(key)
    }

    /// Replies with JSON text, after validating it.
    #[inline]
    pub(crate) fn reply_content(&mut self, content: &[u8]) {
        match json::validate(content, Limits::NESTING_MAX) {
            Ok(()) => self.reply(|out| out.extend_from_slice(content)),
            Err(JsonError::TooDeep) => self.fail("replied with JSON that is nested too deep"),
            Err(_) => self.fail("replied with invalid JSON"),
        }
    }

    /// Replies with the JSON text that `write` appends.
    ///
    /// The reply path is matched in place: the processor could not forward a copy of it so soon
    /// after it was written.
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
        // Written first: if that panics, the call can still be answered with an error.
        let mut out = Vec::new();
        if matches!(self.reply_path, ReplyPath::Outcomes) {
            write(&mut out);
        }
        match mem::replace(&mut self.reply_path, ReplyPath::Replied) {
            ReplyPath::Outcomes => self.complete(Outcome::Reply(Ok(out))),
            late => self.refuse(late),
        }
    }

    /// Replies with an array or bytes: a part if the caller takes parts, otherwise base64.
    pub(crate) fn reply_buffer(&mut self, tensor: Option<Tensor>, bytes: &[u8]) {
        const PART: &[u8] = br#"{"$part":0}"#;
        let parts = vec![ResultPart { tensor, bytes: bytes.to_vec().into() }];
        match (&mut self.data, &self.reply_path) {
            (CallData::Live { handler, .. }, ReplyPath::Output(_)) if handler.takes_parts => {
                handler.result_parts = parts;
                self.reply(|out| out.extend_from_slice(PART));
            }
            (CallData::Deferred(data), ReplyPath::Outcomes) if data.takes_parts => {
                self.reply_path = ReplyPath::Replied;
                self.complete(Outcome::Parts(PART.to_vec(), parts));
            }
            _ => self.reply(|out| out.extend_from_slice(&inline_results(PART, &parts))),
        }
    }

    pub(crate) fn reply_error(&mut self, error: RpcError) {
        match mem::replace(&mut self.reply_path, ReplyPath::Replied) {
            ReplyPath::Output(reply) => reply.error(&error),
            ReplyPath::Outcomes => self.complete(Outcome::Reply(Err(error))),
            late => self.refuse(late),
        }
    }

    /// Replies with an error in place of a reply that cannot be sent, and logs that.
    #[cold]
    pub(crate) fn fail(&mut self, what: &str) {
        self.warn(what);
        let text = format!("The handler {what}");
        set_last_error(ErrorCode::InvalidReply, &text);
        self.reply_error(RpcError::new(RpcError::INTERNAL_ERROR, text));
        if matches!(self.reply_path, ReplyPath::Replied) {
            self.reply_path = ReplyPath::Refused;
        }
    }

    fn complete(&self, outcome: Outcome) {
        if let CallData::Deferred(data) = &self.data {
            data.handle.complete(outcome);
        }
    }

    /// Ignores a reply after the call was answered or deferred.
    #[cold]
    fn refuse(&mut self, late: ReplyPath<'a, 'r>) {
        let (what, reply_path) = match late {
            ReplyPath::Deferred(_) => ("replied to a call that it had deferred; ignored", late),
            _ => ("replied twice; the second reply is ignored", ReplyPath::Refused),
        };
        self.warn(what);
        set_last_error(ErrorCode::InvalidReply, &format!("The handler {what}"));
        self.reply_path = reply_path;
    }

    /// Logs a warning that begins with the name of the procedure.
    #[cold]
    pub(crate) fn warn(&self, what: &str) {
        let (log, procedure) = match &self.data {
            CallData::Live { handler, procedure, .. } => (&handler.log, *procedure),
            CallData::Deferred(data) => (&data.handle.log, &data.procedure),
        };
        log.warn(&format!("procedure {procedure:?} {what}"));
    }

    /// Defers the call. `None` if it is answered or deferred already, or past the limit on deferred
    /// calls; then its caller gets the error.
    pub(crate) fn defer(&mut self) -> Option<Box<Call<'static, 'static>>> {
        self.defer_as(CallOutcome::Deferred, None)
    }

    /// Defers the call as a stream. The caller gets an error if it takes no items.
    pub(crate) fn stream(
        &mut self,
        overflow: Overflow,
        callback: RoomCallback,
    ) -> Option<Box<Call<'static, 'static>>> {
        let CallData::Live { request, handler, .. } = &self.data else { return None };
        if matches!(self.reply_path, ReplyPath::Output(_)) && !request.takes_items() {
            let error = RpcError::new(RpcError::INVALID_REQUEST, "Invalid Request");
            self.reply_error(error.expected(
                "the method is a stream: expected a progressToken in _meta, or over HTTP \
                 Accept: text/event-stream or application/x-ndjson",
            ));
            return None;
        }
        let stream = Stream::new(overflow, handler.stream_bytes_max, callback);
        self.defer_as(CallOutcome::Stream, Some(stream))
    }

    fn defer_as(
        &mut self,
        outcome: CallOutcome,
        stream: Option<Stream>,
    ) -> Option<Box<Call<'static, 'static>>> {
        let ReplyPath::Output(_) = &self.reply_path else {
            self.warn("deferred a call that it had answered or deferred; ignored");
            return None;
        };
        let CallData::Live { procedure, request, caller, handler } = &mut self.data else {
            return None;
        };
        let (id, arrived) = (caller.call_id(request), handler.turn_began);
        let calls = &mut handler.calls;
        let (deadline, log) = (self.deadline, &handler.log);
        let handle = match DeferredHandle::insert(
            calls,
            id,
            caller.own_connection(),
            deadline,
            arrived,
            log,
            stream,
        ) {
            Ok(handle) => handle,
            Err(error) => {
                self.reply_error(error);
                return None;
            }
        };
        handler.last_deferred = Some(handle.token());
        self.reply_path = ReplyPath::Deferred(outcome);
        let channel = live_channel(request, caller, handler);
        let context = Context {
            is_notification: request.id.is_none(),
            peer: caller.peer,
            user: handler.user,
        };
        // The parts of a stream's result would follow its items, which have none.
        let takes_parts = handler.takes_parts && outcome == CallOutcome::Deferred;
        let parted = handler.parted.as_ref();
        let parted = parted.map(|it| Box::new(PartedParams::new(it.parts.clone())));
        let params = request.params.unwrap_or_default().to_vec();
        let meta = request.meta.map_or_else(Vec::new, |Meta(text)| text.to_vec());
        let data = DeferredData {
            handle,
            channel,
            procedure: procedure.clone(),
            context,
            buffers: ParamBuffers::default(),
            parted,
            takes_parts,
            _reserved: handler.calls.budget().reserve_large(params.len() + meta.len()),
            params,
            meta,
        };
        let data = CallData::Deferred(Box::new(data));
        Some(Box::new(Call { reply_path: ReplyPath::Outcomes, data, deadline: self.deadline }))
    }

    /// The name by which the procedure is registered.
    pub(crate) fn procedure(&self) -> &str {
        match &self.data {
            CallData::Live { procedure, .. } => procedure,
            CallData::Deferred(data) => &data.procedure,
        }
    }

    /// Whether the caller gets no reply.
    pub(crate) fn is_notification(&self) -> bool {
        match &self.data {
            CallData::Live { request, .. } => request.id.is_none(),
            CallData::Deferred(data) => data.context.is_notification,
        }
    }

    /// What the program's authentication has said of the caller.
    pub(crate) fn user(&self) -> *mut c_void {
        match &self.data {
            CallData::Live { handler, .. } => handler.user.0,
            CallData::Deferred(data) => data.context.user.0,
        }
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        match &self.data {
            CallData::Live { caller, .. } => caller.peer,
            CallData::Deferred(data) => data.context.peer,
        }
    }

    /// The head of the HTTP request, while the callback runs.
    pub(crate) fn head(&self) -> Option<&Head<'_>> {
        match &self.data {
            CallData::Live { request, .. } => request.head,
            CallData::Deferred(_) => None,
        }
    }

    /// Whether the caller takes items of a stream.
    pub(crate) fn takes_items(&self) -> bool {
        match &self.data {
            CallData::Live { request, .. } => request.takes_items(),
            CallData::Deferred(data) => data.handle.is_stream(),
        }
    }

    /// Sends an item of a stream: JSON text, after validating it.
    pub(crate) fn send_item(&mut self, json: &[u8]) -> ItemState {
        let (ReplyPath::Outcomes, CallData::Deferred(data)) = (&self.reply_path, &self.data) else {
            return ItemState::Ended;
        };
        if json::validate(json, Limits::NESTING_MAX).is_ok() {
            return data.handle.send_item(json);
        }
        self.fail("sent an item that is invalid JSON");
        ItemState::Ended
    }

    /// A member of `_meta`: the content of a string, or the text of another value.
    pub(crate) fn meta(&mut self, name: &[u8]) -> Option<&[u8]> {
        let (meta, buffers) = match &mut self.data {
            CallData::Live { request, handler, .. } => (request.meta?, &mut handler.buffers),
            CallData::Deferred(data) if data.meta.is_empty() => return None,
            CallData::Deferred(data) => (Meta(&data.meta), &mut data.buffers),
        };
        let value = meta.find(name)?;
        match value.first() {
            Some(b'"') => buffers.string(value),
            _ => Some(value),
        }
    }

    /// The connection of the call.
    pub(crate) fn channel(&self) -> Option<Channel> {
        match &self.data {
            CallData::Live { request, caller, handler, .. } => {
                live_channel(request, caller, handler)
            }
            CallData::Deferred(data) => data.channel.clone(),
        }
    }

    /// Whether a deferred call has been cancelled. No event reaches the worker during a callback.
    pub(crate) fn is_cancelled(&self) -> bool {
        match &self.data {
            CallData::Live { .. } => false,
            CallData::Deferred(data) => data.handle.is_cancelled(),
        }
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.map(|deadline| deadline.at)
    }

    /// Logs that the callback did not return. Such an exception ends the process.
    #[cold]
    pub(crate) fn warn_unwound(&self) {
        self.warn(
            "was left by an exception, pthread_exit or pthread_cancel, which ends the process; \
             catch exceptions in the callback",
        );
    }

    /// Logs that the program has released a live call.
    pub(crate) fn warn_not_deferred(&self) {
        self.warn("released a call that it had not deferred; ignored");
    }

    /// Ends a deferred call. Unless it is answered or cancelled, its caller gets an error.
    pub(crate) fn release(mut self) {
        if matches!(self.reply_path, ReplyPath::Outcomes) && !self.is_cancelled() {
            self.fail("did not reply");
        }
    }
}

fn live_channel(
    request: &Request<'_>,
    caller: &Caller,
    handler: &CallbackHandler,
) -> Option<Channel> {
    let (publisher, connection) = (handler.publisher.clone()?, caller.connection);
    let takes_messages = request.head.is_none() && caller.transport != Transport::Udp;
    Some(Channel { publisher, connection, takes_messages })
}

/// The handle of a deferred call, which the program owns.
pub(crate) fn into_handle(call: Box<Call<'static, 'static>>) -> CallHandle {
    CallHandle::of_deferred(Box::into_raw(call).cast())
}

impl CallHandle {
    /// The call of this handle. Logs the use of one that has ended.
    ///
    /// # Safety
    /// It is NULL, or its callback runs or has returned, or it is deferred and not released.
    #[inline(always)]
    pub(crate) unsafe fn as_ref<'a>(self) -> Option<&'a Call<'static, 'static>> {
        // SAFETY: passed on to our caller.
        unsafe { self.as_mut() }.map(|call| &*call)
    }

    /// The call, for a thread that uses it alone.
    ///
    /// # Safety
    /// As for [`CallHandle::as_ref`].
    #[inline(always)]
    pub(crate) unsafe fn as_mut<'a>(self) -> Option<&'a mut Call<'static, 'static>> {
        let call = self.live().or_else(|| self.deferred_or_ended())?;
        // SAFETY: a live call is in its slot until its callback returns; our caller says that a
        // deferred one is not released.
        Some(unsafe { &mut *call.cast() })
    }
}
