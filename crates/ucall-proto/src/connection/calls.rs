//! Runs the calls of one document, and appends their replies to the output.
//!
//! A document of one request that the fast path reads runs at once, with its parts in registers.
//! Any other is scanned from its start.

use std::sync::Arc;

use super::exchange::{BatchReply, ExchangeReply, ReplyPart};
use super::mcp_response::take_response;
use super::{Environment, Scratch};
use crate::Limits;
use crate::http1::Head;
use crate::json::{FirstMembers, JsonError, MEMBERS_MAX, Member, Reader, Text};
use crate::rpc::{
    Batch, Call, CallNumber, CallOutcome, Content, DocumentOutline, ItemToken, Meta, Reply,
    ReplyLimit, Request, RpcError, Service, mcp, scan_document, write_error_reply,
};
use crate::tls::TlsSession;

/// What became of a document.
pub(super) enum DocumentOutcome {
    /// Its reply is written.
    Replied,
    /// It had only notifications; there is no reply.
    NoReply,
    /// Some of its calls are deferred; nothing is written.
    Deferred(Box<ExchangeReply>),
}

/// The connection and the HTTP request that a document belongs to.
#[derive(Clone, Copy)]
pub(super) struct RequestContext<'a> {
    /// The number of the request that it is.
    pub(super) request: u64,
    /// The head of the HTTP request; `None` over raw TCP and WebSocket.
    pub(super) head: Option<&'a Head<'a>>,
    pub(super) session: Option<&'a Arc<TlsSession>>,
}

/// Whether `rest` may follow a document: another one over raw TCP, and only white space in a frame,
/// which is the body of an HTTP request or a message.
#[inline(always)]
fn may_follow<const IS_FRAMED: bool>(rest: &[u8]) -> bool {
    !IS_FRAMED || rest.iter().all(|byte| b" \t\r\n".contains(byte))
}

/// Runs all calls of the document that `text` starts with; returns the document's length, too.
///
/// Inlined, because it has more arguments than there are registers.
#[inline(always)]
pub(super) fn run_document<const IS_FRAMED: bool, S: Service>(
    text: &[u8],
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<(DocumentOutcome, usize), JsonError> {
    let mut members = first_members::<S>(&mut environment.scratch.members);
    match Request::fast_path(text, environment.limits.nesting_max, environment.limits, &mut members)
    {
        Some((request, rest)) if may_follow::<IS_FRAMED>(rest) => {
            let limit = &ReplyLimit::after(environment.out, environment.limits.reply_bytes_max);
            let outcome = DocumentRun::new(context, limit, environment).single(&request);
            Ok((outcome, text.len() - rest.len()))
        }
        _ => run_other::<IS_FRAMED, S>(text, context, environment),
    }
}

/// Runs a document that the fast path does not read as one request: one with its members in
/// another order, or of any form.
#[inline(never)]
pub(super) fn run_other<const IS_FRAMED: bool, S: Service>(
    text: &[u8],
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<(DocumentOutcome, usize), JsonError> {
    let limits = environment.limits;
    let mut members = first_members::<S>(&mut environment.scratch.members);
    match Request::in_any_order(text, limits.nesting_max, limits, &mut members) {
        Some((request, rest)) if may_follow::<IS_FRAMED>(rest) => {
            let limit = &ReplyLimit::after(environment.out, limits.reply_bytes_max);
            let outcome = DocumentRun::new(context, limit, environment).single(&request);
            Ok((outcome, text.len() - rest.len()))
        }
        _ => run_general::<IS_FRAMED, S>(text, context, environment),
    }
}

/// Runs a document of any form.
#[inline(never)]
fn run_general<const IS_FRAMED: bool, S: Service>(
    text: &[u8],
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<(DocumentOutcome, usize), JsonError> {
    let mut members = first_members::<S>(&mut environment.scratch.members);
    let document = scan_document(text, environment.limits, &mut members)?;
    if !may_follow::<IS_FRAMED>(text.get(document.len..).unwrap_or_default()) {
        return Err(JsonError::Invalid);
    }
    if context.head.is_none()
        && matches!(&document.content, Content::Single(request) if request.invalid.is_some())
        && environment.service.takes_responses()
        && let Some(text) = text.get(..document.len)
        && take_response(text, context.request, None, environment)
    {
        return Ok((DocumentOutcome::NoReply, document.len));
    }
    Ok((run_parsed(&document.content, context, environment), document.len))
}

/// Runs a long document, whose requests were found while it arrived.
pub(super) fn run_outlined<S: Service>(
    text: &[u8],
    outline: &DocumentOutline,
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<DocumentOutcome, JsonError> {
    let mut members = FirstMembers::new(&mut environment.scratch.members, 0);
    let content = outline.content(text, environment.limits, &mut members)?;
    Ok(run_parsed(&content, context, environment))
}

/// Parses a whole text; `None` if it is no document.
pub(super) fn parse_framed<'a, S: Service>(
    text: &'a [u8],
    limits: &Limits,
    scratch: &mut Scratch,
) -> Option<Content<'a>> {
    let mut members = first_members::<S>(&mut scratch.members);
    if let Some((request, rest)) =
        Request::fast_path(text, limits.nesting_max, limits, &mut members)
            .or_else(|| Request::in_any_order(text, limits.nesting_max, limits, &mut members))
        && may_follow::<true>(rest)
    {
        return Some(Content::Single(request));
    }
    let document = scan_document(text, limits, &mut members).ok()?;
    let rest = text.get(document.len..).unwrap_or_default();
    may_follow::<true>(rest).then_some(document.content)
}

/// Runs a document of [`parse_framed`], with no other parsed in between.
pub(super) fn run_parsed<S: Service>(
    content: &Content<'_>,
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> DocumentOutcome {
    let limit = &ReplyLimit::after(environment.out, environment.limits.reply_bytes_max);
    let mut run = DocumentRun::new(context, limit, environment);
    match content {
        Content::Single(request) => run.single(request),
        Content::Batch(batch) => run.batch(batch),
    }
}

/// Runs a call whose params came without a document.
///
/// # Errors
/// The params are neither an array nor an object.
pub(super) fn run_params<S: Service>(
    method: &[u8],
    params: &[u8],
    id: Option<&[u8]>,
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<DocumentOutcome, JsonError> {
    let nesting_max = environment.limits.nesting_max;
    let mut members = first_members::<S>(&mut environment.scratch.members);
    let request = Request::of_params(method, params, id, nesting_max, &mut members)
        .ok_or(JsonError::Invalid)?;
    let limit = &ReplyLimit::after(environment.out, environment.limits.reply_bytes_max);
    Ok(DocumentRun::new(context, limit, environment).single(&request))
}

#[inline(always)]
fn first_members<S: Service>(list: &mut Vec<Member>) -> FirstMembers<'_> {
    FirstMembers::new(list, if S::NEEDS_MEMBERS { MEMBERS_MAX } else { 0 })
}

#[cold]
fn refuse(out: &mut Vec<u8>, expected: &str) -> DocumentOutcome {
    write_error_reply(out, None, &RpcError::invalid_request(expected));
    DocumentOutcome::Replied
}

struct DocumentRun<'a, S> {
    context: RequestContext<'a>,
    members: &'a [Member],
    limit: &'a ReplyLimit,
    service: &'a mut S,
    /// The calls to cancel.
    cancel_requests: &'a mut Vec<CancelRequest>,
    out: &'a mut Vec<u8>,
}

/// The number of the call at `index` of a batch.
fn item_number(index: usize) -> u32 {
    index as u32 + 1
}

impl<'a, S: Service> DocumentRun<'a, S> {
    #[inline(always)]
    fn new(
        context: RequestContext<'a>,
        limit: &'a ReplyLimit,
        environment: &'a mut Environment<'_, S>,
    ) -> Self {
        let Scratch { members, cancel_requests, .. } = &mut *environment.scratch;
        let Environment { service, out, .. } = environment;
        Self { context, members, limit, service, cancel_requests, out }
    }

    /// Runs a document that is one call.
    #[inline(always)]
    fn single(&mut self, request: &Request<'_>) -> DocumentOutcome {
        let start = self.out.len();
        match (self.call(0, request), request.id) {
            (CallOutcome::Deferred, Some(id)) => {
                deferred(ExchangeReply::Single(waiting_part(0, id, None, false)))
            }
            (outcome @ (CallOutcome::Stream | CallOutcome::Reporting), Some(id)) => {
                let token = Some(item_token(self.context.head, id, request.meta, request.params));
                let part = waiting_part(0, id, token, outcome == CallOutcome::Reporting);
                deferred(ExchangeReply::Single(part))
            }
            _ if self.out.len() > start => DocumentOutcome::Replied,
            _ => DocumentOutcome::NoReply,
        }
    }

    fn batch(&mut self, batch: &Batch<'_>) -> DocumentOutcome {
        let requests = &batch.requests;
        match requests.len() {
            0 => return refuse(self.out, "expected at least one request in a batch"),
            max if max < batch.count => {
                return refuse(self.out, &format!("expected at most {max} calls in a batch"));
            }
            _ => {}
        }
        let start = self.out.len();
        self.out.push(b'[');
        for (index, request) in requests.iter().enumerate() {
            let before = self.out.len();
            let item = item_number(index);
            let outcome = self.element(item, request);
            if let Some(part) = self.deferred_part(item, request, outcome) {
                let written = self.out.get(start + 1..before).unwrap_or_default();
                let first = written.strip_suffix(b",").unwrap_or(written).to_vec();
                self.out.truncate(start);
                let mut batch = BatchReply::default();
                batch.push(ReplyPart::Written(first));
                batch.push(part);
                self.finish_batch(&mut batch, requests, index + 1);
                return deferred(ExchangeReply::Batch(batch));
            }
            if self.out.len() > before {
                self.out.push(b',');
            }
        }
        if self.out.len() == start + 1 {
            self.out.truncate(start);
            return DocumentOutcome::NoReply;
        }
        self.out.pop();
        self.out.push(b']');
        DocumentOutcome::Replied
    }

    /// Runs the rest of a batch, from `next` on, after its first deferred call.
    fn finish_batch(&mut self, batch: &mut BatchReply, requests: &[Request<'_>], next: usize) {
        for (index, request) in requests.iter().enumerate().skip(next) {
            let (item, mut out) = (item_number(index), Vec::new());
            let mut run = DocumentRun {
                context: self.context,
                members: self.members,
                limit: &batch.part_limit(self.limit),
                service: &mut *self.service,
                cancel_requests: &mut *self.cancel_requests,
                out: &mut out,
            };
            let outcome = run.element(item, request);
            let part = self.deferred_part(item, request, outcome);
            batch.push(part.unwrap_or(ReplyPart::Written(out)));
        }
    }

    /// The part of a call in a batch that gets its reply later; `None` for any other.
    fn deferred_part(
        &self,
        item: u32,
        request: &Request<'_>,
        outcome: CallOutcome,
    ) -> Option<ReplyPart> {
        let id = request.id?;
        match outcome {
            CallOutcome::Deferred => Some(waiting_part(item, id, None, false)),
            CallOutcome::Stream | CallOutcome::Reporting => {
                let token = Some(item_token(self.context.head, id, request.meta, request.params));
                Some(waiting_part(item, id, token, outcome == CallOutcome::Reporting))
            }
            CallOutcome::Done | CallOutcome::CancelRequest => None,
        }
    }

    /// [`DocumentRun::call`], compiled once for all items of batches.
    #[inline(never)]
    fn element(&mut self, index: u32, request: &Request<'_>) -> CallOutcome {
        self.call(index, request)
    }

    /// Inlined, so that a single request stays in registers.
    #[inline(always)]
    fn call(&mut self, item: u32, request: &Request<'_>) -> CallOutcome {
        let id = request.id;
        if let Some(expected) = request.invalid {
            write_error_reply(self.out, id, &RpcError::invalid_request(expected));
            return CallOutcome::Done;
        }
        let call = Call {
            method: request.method,
            params: request.params,
            members: request.members(self.members),
            id,
            meta: request.meta,
            number: CallNumber { request: self.context.request, item },
            head: self.context.head,
            session: self.context.session,
            mcp: None,
        };
        let mut reply = Reply::new(self.out, id, self.limit);
        let outcome = self.service.call(&call, &mut reply);
        reply.end(outcome == CallOutcome::Done);
        // Over HTTP the end of the connection cancels its calls.
        if outcome == CallOutcome::CancelRequest && self.context.head.is_none() {
            self.cancel_requests.extend(CancelRequest::read(request.method.raw(), request.params));
        }
        outcome
    }
}

/// The outcome of a document whose reply comes later. Behind a pointer: every outcome is as large
/// as the largest, and is passed on by each call.
#[inline(never)]
fn deferred(reply: ExchangeReply) -> DocumentOutcome {
    DocumentOutcome::Deferred(Box::new(reply))
}

/// What waits for the reply to the call with this id. `token` is that of its items, if it is a
/// stream, which may have none if `is_reporting`.
#[inline(never)]
fn waiting_part(item: u32, id: &[u8], token: Option<ItemToken>, is_reporting: bool) -> ReplyPart {
    ReplyPart::Waiting { item, id: id.to_vec(), token, is_reporting }
}

/// The token of a call's items: the caller's, or over HTTP the id of the call. MCP has its own.
///
/// It takes parts of the request: a reference would keep each request in memory, not in registers.
#[cold]
fn item_token(
    head: Option<&Head<'_>>,
    id: &[u8],
    meta: Option<Meta<'_>>,
    params: Option<&[u8]>,
) -> ItemToken {
    let token = match head {
        Some(head) => head.is_call().then_some(id),
        None => meta.and_then(Meta::progress_token),
    };
    match token {
        Some(token) => ItemToken::Progress(token.to_vec()),
        None => ItemToken::Mcp(mcp::progress_token(params).unwrap_or_default().to_vec()),
    }
}

/// A call that its caller asks to cancel.
#[derive(Debug)]
pub(super) struct CancelRequest {
    /// The text of its id.
    pub(super) id: Vec<u8>,
    /// Whether the call is answered that it was cancelled. MCP leaves it without a reply.
    pub(super) gets_reply: bool,
}

impl CancelRequest {
    /// What the params of a `$/cancelRequest`, or of MCP's [`CANCELLED`](crate::CANCELLED), ask
    /// for. Of equal keys the last one counts. The method is as it is in the document.
    #[cold]
    pub(super) fn read(method: &[u8], params: Option<&[u8]>) -> Option<Self> {
        let is_mcp = *Text::new(method, true).unescaped() == *mcp::CANCELLED;
        let name = if is_mcp { &b"requestId"[..] } else { b"id" };
        let [id] = Reader::new(params?).members([name])?;
        Some(Self { id: id?.to_vec(), gets_reply: !is_mcp })
    }
}
