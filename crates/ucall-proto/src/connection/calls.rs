//! Runs the calls of one document and writes their replies behind one another.

use std::sync::Arc;

use super::Environment;
use super::exchange::{Answer, Part};
use crate::http1::Head;
use crate::json::Member;
use crate::rpc::{
    Call, Document, ExchangeId, Item, Notes, Outcome, Reply, ReplyLimit, RpcError, Service,
    write_error_reply,
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
    document: &Document,
    text: &[u8],
    request: u64,
    head: Option<&Head<'_>>,
    session: Option<&Arc<Session>>,
    environment: &mut Environment<'_, S>,
    out: &mut Vec<u8>,
) -> Ran {
    let Notes { items, members } = &environment.scratch.notes;
    let origin = Origin { head, session };
    let mut run = Run {
        text,
        members,
        request,
        limit: &ReplyLimit::behind(out, environment.limits.reply_bytes_max),
        service: environment.service,
    };
    match items.first() {
        Some(item) if !document.is_batch => run.single(item, origin, out),
        _ if document.count == 0 => {
            refuse(out, "expected at least one request in a batch");
            Ran::Replied
        }
        _ if document.count > items.len() => {
            let max = items.len();
            refuse(out, &format!("expected at most {max} calls in a batch"));
            Ran::Replied
        }
        _ => run.batch(items, origin, out),
    }
}

#[cold]
fn refuse(out: &mut Vec<u8>, expected: &str) {
    write_error_reply(out, None, &RpcError::invalid_request(expected));
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
    /// Not as a slice: the length was written just before, and a copy would wait for that.
    members: &'a Vec<Member>,
    request: u64,
    limit: &'a ReplyLimit,
    service: &'a mut S,
}

impl<'a, S: Service> Run<'a, S> {
    #[inline]
    fn single(&mut self, item: &Item, origin: Origin<'a>, out: &mut Vec<u8>) -> Ran {
        let start = out.len();
        match (self.item(0, item, origin, out), item.id(self.text)) {
            (Outcome::Deferred, Some(id)) => {
                Ran::Waiting(Answer::Single(Part::Waiting { item: 0, id: id.to_vec() }))
            }
            _ if out.len() > start => Ran::Replied,
            _ => Ran::Silent,
        }
    }

    fn batch(&mut self, items: &[Item], origin: Origin<'a>, out: &mut Vec<u8>) -> Ran {
        let start = out.len();
        out.push(b'[');
        for (index, item) in items.iter().enumerate() {
            let before = out.len();
            if self.item(index as u32, item, origin, out) == Outcome::Deferred
                && item.id(self.text).is_some()
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
            parts.push(match item.id(self.text) {
                Some(id) if is_deferred => Part::Waiting { item: index, id: id.to_vec() },
                _ => Part::Written(out),
            });
        }
        parts
    }

    #[inline]
    fn item(&mut self, index: u32, item: &Item, origin: Origin<'a>, out: &mut Vec<u8>) -> Outcome {
        let id = item.id(self.text);
        if let Some(expected) = item.invalid {
            write_error_reply(out, id, &RpcError::invalid_request(expected));
            return Outcome::Done;
        }
        let call = Call {
            method: item.method(self.text),
            params: item.params(self.text),
            members: item.members(self.members),
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
