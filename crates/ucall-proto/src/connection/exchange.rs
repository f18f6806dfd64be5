//! Requests whose replies are not all written yet, in the order they came.

use std::collections::VecDeque;

use crate::rpc::{ExchangeId, Reply, ReplyLimit, RpcError};

/// One request that waits for the replies of deferred calls, or behind one that does.
#[derive(Debug)]
pub(super) struct Exchange<F> {
    request: u64,
    /// How its reply is framed once it is whole.
    framing: F,
    answer: Answer,
}

/// What a document is answered with.
#[derive(Debug)]
pub(super) enum Answer {
    /// These bytes, framed already.
    Framed(Vec<u8>),
    /// The reply of one call.
    Single(Part),
    /// The replies of a batch, in its order.
    Batch(Vec<Part>),
}

/// The reply of a call, or of some that stand next to each other in a batch.
#[derive(Debug)]
pub(super) enum Part {
    Written(Vec<u8>),
    Waiting { item: u32, id: Vec<u8> },
}

impl Part {
    fn is_written(&self) -> bool {
        matches!(self, Part::Written(_))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Part::Written(bytes) => bytes,
            Part::Waiting { .. } => &[],
        }
    }

    /// Writes the reply if it is this part that waits for it.
    fn complete(&mut self, wanted: u32, outcome: Result<&[u8], &RpcError>, bytes_max: usize) {
        let Part::Waiting { item, id } = self else { return };
        if *item != wanted {
            return;
        }
        let mut out = Vec::new();
        write_outcome(&mut out, id, outcome, bytes_max);
        *self = Part::Written(out);
    }
}

/// Appends the reply to a call that was deferred.
fn write_outcome(
    out: &mut Vec<u8>,
    id: &[u8],
    outcome: Result<&[u8], &RpcError>,
    bytes_max: usize,
) {
    let limit = ReplyLimit::behind(out, bytes_max);
    let mut reply = Reply::new(out, Some(id), limit);
    match outcome {
        Ok(result) => reply.result().extend_from_slice(result),
        Err(error) => reply.error(error),
    }
    reply.end(true);
}

impl Answer {
    fn parts(&mut self) -> &mut [Part] {
        match self {
            Answer::Framed(_) => &mut [],
            Answer::Single(part) => std::slice::from_mut(part),
            Answer::Batch(parts) => parts,
        }
    }

    fn is_whole(&mut self) -> bool {
        self.parts().iter().all(Part::is_written)
    }

    /// Appends the reply without its framing.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Framed(bytes) => out.extend_from_slice(bytes),
            Answer::Single(part) => out.extend_from_slice(part.bytes()),
            Answer::Batch(parts) => {
                let mut separator = b'[';
                for part in parts.iter().filter(|part| !part.bytes().is_empty()) {
                    out.push(separator);
                    out.extend_from_slice(part.bytes());
                    separator = b',';
                }
                out.push(b']');
            }
        }
    }
}

/// The requests of a connection that wait.
#[derive(Debug)]
pub(super) struct Exchanges<F> {
    waiting: VecDeque<Exchange<F>>,
    cancelled: bool,
}

impl<F> Exchanges<F> {
    pub(super) const fn new() -> Self {
        Self { waiting: VecDeque::new(), cancelled: false }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives up on all replies.
    pub(super) fn cancel(&mut self) {
        self.cancelled |= !self.waiting.is_empty();
        self.waiting.clear();
    }

    /// Whether calls may still run, awaited or given up.
    pub(super) fn has_deferred(&self) -> bool {
        self.cancelled || !self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, request: u64, framing: F, answer: Answer) {
        self.waiting.push_back(Exchange { request, framing, answer });
    }

    /// Notes the outcome of a deferred call; one that nobody waits for is dropped.
    pub(super) fn complete(
        &mut self,
        id: ExchangeId,
        outcome: Result<&[u8], &RpcError>,
        bytes_max: usize,
    ) {
        // Requests are numbered in the order they stand here.
        let found = self.waiting.binary_search_by_key(&id.request, |exchange| exchange.request);
        if let Some(exchange) = found.ok().and_then(|index| self.waiting.get_mut(index)) {
            for part in exchange.answer.parts() {
                part.complete(id.item, outcome, bytes_max);
            }
        }
    }

    /// Takes the first request if its reply is whole.
    pub(super) fn pop_first_whole(&mut self) -> Option<(F, Answer)> {
        if !self.waiting.front_mut()?.answer.is_whole() {
            return None;
        }
        self.waiting.pop_front().map(|exchange| (exchange.framing, exchange.answer))
    }

    /// Takes any request whose reply is whole.
    pub(super) fn pop_any_whole(&mut self) -> Option<(F, Answer)> {
        let index = self.waiting.iter_mut().position(|exchange| exchange.answer.is_whole())?;
        self.waiting.remove(index).map(|exchange| (exchange.framing, exchange.answer))
    }
}
