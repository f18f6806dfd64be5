//! Runs the calls of one document, and appends their replies to the output.
//!
//! A document that is one request in the form of the fast path is run at once, with its parts in
//! registers. Any other is scanned from its start, and its calls share one compiled copy of
//! [`Run::call`].

use std::sync::Arc;

use super::Environment;
use super::exchange::{Answer, Part};
use crate::http1::Head;
use crate::json::{Fault, FirstMembers, MEMBERS_MAX, Member};
use crate::rpc::{
    Batch, Call, Content, ExchangeId, Outcome, Reply, ReplyLimit, Request, RpcError, Service,
    scan_document, write_error_reply,
};
use crate::tls::Session;

/// What became of a document.
pub(super) enum Ran {
    /// Its reply is written.
    Replied,
    /// It had only notifications; there is no reply.
    Silent,
    /// Some of its calls are deferred; nothing is written.
    Waiting(Answer),
}

/// Where a document comes from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    /// The number of the request that it is.
    pub(super) request: u64,
    /// The head of the HTTP request whose body it is; `None` over raw TCP.
    pub(super) head: Option<&'a Head<'a>>,
    pub(super) session: Option<&'a Arc<Session>>,
}

impl Origin<'_> {
    /// Whether `rest` may follow a document: another one over raw TCP, and only white space in the
    /// body of an HTTP request.
    #[inline(always)]
    fn allows(&self, rest: &[u8]) -> bool {
        self.head.is_none() || rest.iter().all(|byte| b" \t\r\n".contains(byte))
    }
}

/// Runs all calls of the document that `text` starts with; returns the document's length, too.
///
/// Inlined, because it has more arguments than there are registers.
#[inline(always)]
pub(super) fn run_document<S: Service>(
    text: &[u8],
    origin: Origin<'_>,
    environment: &mut Environment<'_, S>,
    out: &mut Vec<u8>,
) -> Result<(Ran, usize), Fault> {
    let mut members = first_members::<S>(&mut environment.scratch.members);
    match Request::fast_path(text, environment.limits.nesting_max, environment.limits, &mut members)
    {
        Some((request, rest)) if origin.allows(rest) => {
            let (start, limit) =
                (out.len(), ReplyLimit::behind(out, environment.limits.reply_bytes_max));
            let outcome = Run::new(origin, &limit, environment).call(0, &request, out);
            Ok((single(outcome, &request, out.len() > start), text.len() - rest.len()))
        }
        _ => run_general(text, origin, environment, out),
    }
}

/// Runs a document that is not one request in the form of the fast path.
#[inline(never)]
fn run_general<S: Service>(
    text: &[u8],
    origin: Origin<'_>,
    environment: &mut Environment<'_, S>,
    out: &mut Vec<u8>,
) -> Result<(Ran, usize), Fault> {
    let mut members = first_members::<S>(&mut environment.scratch.members);
    let document = scan_document(text, environment.limits, &mut members)?;
    if !origin.allows(text.get(document.len..).unwrap_or_default()) {
        return Err(Fault::Invalid);
    }
    let limit = ReplyLimit::behind(out, environment.limits.reply_bytes_max);
    let mut run = Run::new(origin, &limit, environment);
    let ran = match document.content {
        Content::Single(request) => {
            let start = out.len();
            let outcome = run.element(0, &request, out);
            single(outcome, &request, out.len() > start)
        }
        Content::Batch(batch) => run.batch(&batch, out),
    };
    Ok((ran, document.len))
}

#[inline(always)]
fn first_members<S: Service>(list: &mut Vec<Member>) -> FirstMembers<'_> {
    FirstMembers::new(list, if S::NEEDS_MEMBERS { MEMBERS_MAX } else { 0 })
}

/// What became of a document that is one call.
#[inline(always)]
fn single(outcome: Outcome, request: &Request<'_>, is_written: bool) -> Ran {
    match (outcome, request.id) {
        (Outcome::Deferred, Some(id)) => {
            Ran::Waiting(Answer::Single(Part::Waiting { item: 0, id: id.to_vec() }))
        }
        _ if is_written => Ran::Replied,
        _ => Ran::Silent,
    }
}

#[cold]
fn refuse(out: &mut Vec<u8>, expected: &str) -> Ran {
    write_error_reply(out, None, &RpcError::invalid_request(expected));
    Ran::Replied
}

struct Run<'a, S> {
    origin: Origin<'a>,
    members: &'a [Member],
    limit: &'a ReplyLimit,
    service: &'a mut S,
}

impl<'a, S: Service> Run<'a, S> {
    #[inline(always)]
    fn new(
        origin: Origin<'a>,
        limit: &'a ReplyLimit,
        environment: &'a mut Environment<'_, S>,
    ) -> Self {
        let members = &environment.scratch.members;
        Self { origin, members, limit, service: environment.service }
    }

    fn batch(&mut self, batch: &Batch<'_>, out: &mut Vec<u8>) -> Ran {
        let requests = &batch.requests;
        match requests.len() {
            0 => return refuse(out, "expected at least one request in a batch"),
            max if max < batch.count => {
                return refuse(out, &format!("expected at most {max} calls in a batch"));
            }
            _ => {}
        }
        let start = out.len();
        out.push(b'[');
        for (index, request) in requests.iter().enumerate() {
            let before = out.len();
            if self.element(index as u32, request, out) == Outcome::Deferred && request.id.is_some()
            {
                let written = out.get(start + 1..before).unwrap_or_default();
                let first = written.strip_suffix(b",").unwrap_or(written).to_vec();
                out.truncate(start);
                let parts = self.rest_of_batch(Part::Written(first), requests, index);
                return Ran::Waiting(Answer::Batch(parts));
            }
            if out.len() > before {
                out.push(b',');
            }
        }
        if out.len() == start + 1 {
            out.truncate(start);
            return Ran::Silent;
        }
        out.pop();
        out.push(b']');
        Ran::Replied
    }

    /// Goes on with a batch whose call at `deferred` was the first to be deferred.
    fn rest_of_batch(
        &mut self,
        first: Part,
        requests: &[Request<'_>],
        deferred: usize,
    ) -> Vec<Part> {
        let mut parts = vec![first];
        for (index, request) in requests.iter().enumerate().skip(deferred) {
            let (item, mut out) = (index as u32, Vec::new());
            let is_deferred =
                index == deferred || self.element(item, request, &mut out) == Outcome::Deferred;
            parts.push(match request.id {
                Some(id) if is_deferred => Part::Waiting { item, id: id.to_vec() },
                _ => Part::Written(out),
            });
        }
        parts
    }

    /// [`Run::call`], compiled once for all that is not the fast path.
    #[inline(never)]
    fn element(&mut self, index: u32, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        self.call(index, request, out)
    }

    /// Inlined, so that a single request stays in registers.
    #[inline(always)]
    fn call(&mut self, item: u32, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        let id = request.id;
        if let Some(expected) = request.invalid {
            write_error_reply(out, id, &RpcError::invalid_request(expected));
            return Outcome::Done;
        }
        let call = Call {
            method: request.method,
            params: request.params,
            members: request.members(self.members),
            id,
            exchange: ExchangeId { request: self.origin.request, item },
            head: self.origin.head,
            session: self.origin.session,
        };
        let mut reply = Reply::new(out, id, self.limit);
        let outcome = self.service.call(&call, &mut reply);
        reply.end(outcome == Outcome::Done);
        outcome
    }
}
