//! Runs the calls of one document and writes their replies behind one another.

use std::sync::Arc;

use super::Environment;
use super::exchange::{Answer, Part};
use crate::http1::Head;
use crate::rpc::{
    Call, Content, Document, ExchangeId, Item, Notes, Outcome, Reply, ReplyLimit, Request,
    RpcError, Service, write_error_reply,
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

/// Runs all calls of `document`, which stands in `text` and was just scanned.
///
/// Inlined because its arguments are more than there are registers for: read back from the stack
/// right after they were written, they cost as much as the rest of it.
#[inline(always)]
pub(super) fn run_document<S: Service>(
    document: &Document<'_>,
    text: &[u8],
    request: u64,
    head: Option<&Head<'_>>,
    session: Option<&Arc<Session>>,
    environment: &mut Environment<'_, S>,
    out: &mut Vec<u8>,
) -> Ran {
    let origin = Origin { head, session };
    let limit = ReplyLimit::behind(out, environment.limits.reply_bytes_max);
    // One for each of both ways: what goes on to a function that is not inlined is in memory.
    match document.content {
        Content::Single(single) => {
            Run::new(text, request, &limit, environment).single(&single, origin, out)
        }
        Content::Batch(count) => {
            Run::new(text, request, &limit, environment).batch(count, origin, out)
        }
    }
}

#[cold]
fn refuse(out: &mut Vec<u8>, expected: &str) -> Ran {
    write_error_reply(out, None, &RpcError::invalid_request(expected));
    Ran::Replied
}

/// What the calls of a document came in. Apart from [`Run`], so that it stays in registers: read
/// from there in one go, right after it was written in two, it would wait for that.
#[derive(Clone, Copy)]
struct Origin<'a> {
    head: Option<&'a Head<'a>>,
    session: Option<&'a Arc<Session>>,
}

struct Run<'a, S> {
    text: &'a [u8],
    notes: &'a Notes,
    request: u64,
    limit: &'a ReplyLimit,
    service: &'a mut S,
}

impl<'a, S: Service> Run<'a, S> {
    #[inline(always)]
    fn new(
        text: &'a [u8],
        request: u64,
        limit: &'a ReplyLimit,
        environment: &'a mut Environment<'_, S>,
    ) -> Self {
        let notes = &environment.scratch.notes;
        Self { text, notes, request, limit, service: environment.service }
    }

    #[inline(always)]
    fn single(&mut self, request: &Request<'_>, origin: Origin<'a>, out: &mut Vec<u8>) -> Ran {
        let start = out.len();
        match (self.request(0, request, origin, out), request.id) {
            (Outcome::Deferred, Some(id)) => {
                Ran::Waiting(Answer::Single(Part::Waiting { item: 0, id: id.to_vec() }))
            }
            _ if out.len() > start => Ran::Replied,
            _ => Ran::Silent,
        }
    }

    /// Runs a batch of `count` elements, or those that are listed.
    #[inline(never)]
    fn batch(&mut self, count: usize, origin: Origin<'a>, out: &mut Vec<u8>) -> Ran {
        let items = &self.notes.items;
        match items.len() {
            0 => return refuse(out, "expected at least one request in a batch"),
            max if max < count => {
                return refuse(out, &format!("expected at most {max} calls in a batch"));
            }
            _ => {}
        }
        let start = out.len();
        out.push(b'[');
        for (index, item) in items.iter().enumerate() {
            let before = out.len();
            if self.item(index as u32, item, origin, out) == Outcome::Deferred
                && item.request(self.text).id.is_some()
            {
                let written = out.get(start + 1..before).unwrap_or_default();
                let first = Part::Written(without_comma(written).to_vec());
                out.truncate(start);
                return Ran::Waiting(Answer::Batch(
                    self.rest_of_batch(first, items, index, origin),
                ));
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
        items: &[Item],
        deferred: usize,
        origin: Origin<'a>,
    ) -> Vec<Part> {
        let mut parts = vec![first];
        for (index, item) in items.iter().enumerate().skip(deferred) {
            let (index, mut out) = (index as u32, Vec::new());
            let is_deferred = index as usize == deferred
                || self.item(index, item, origin, &mut out) == Outcome::Deferred;
            parts.push(match item.request(self.text).id {
                Some(id) if is_deferred => Part::Waiting { item: index, id: id.to_vec() },
                _ => Part::Written(out),
            });
        }
        parts
    }

    #[inline(never)]
    fn item(&mut self, index: u32, item: &Item, origin: Origin<'a>, out: &mut Vec<u8>) -> Outcome {
        self.request(index, &item.request(self.text), origin, out)
    }

    /// Inlined: of a single request all stays in registers.
    #[inline(always)]
    fn request(
        &mut self,
        index: u32,
        request: &Request<'_>,
        origin: Origin<'a>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let id = request.id;
        if let Some(expected) = request.invalid {
            write_error_reply(out, id, &RpcError::invalid_request(expected));
            return Outcome::Done;
        }
        let call = Call {
            method: request.method,
            params: request.params,
            members: request.members(&self.notes.members),
            id,
            exchange: ExchangeId { request: self.request, item: index },
            head: origin.head,
            session: origin.session,
        };
        let mut reply = Reply::new(out, id, self.limit);
        let outcome = self.service.call(&call, &mut reply);
        reply.end(outcome == Outcome::Done);
        outcome
    }
}

fn without_comma(written: &[u8]) -> &[u8] {
    written.strip_suffix(b",").unwrap_or(written)
}
