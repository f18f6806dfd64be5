//! Requests whose replies are incomplete, in the order of their arrival.
//!
//! The calls of a batch may finish in any order. A scan over all parts for each outcome would take
//! quadratic time, so from the first deferred call on each item of a batch has its own part, found
//! by the item's number. For the same reason the first request to cancel a call makes an index of
//! all calls by their ids, which is kept until no call waits.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem;

use crate::Limits;
use crate::rpc::frame::ResultFrame;
use crate::rpc::{
    AROUND_RESULT_BYTES, CallNumber, ItemToken, ROUTE_ID, Reply, ReplyLimit, ResultPart, RpcError,
    inline_results, too_large,
};

/// One request that waits for deferred calls, or for an exchange before it.
#[derive(Debug)]
pub(super) struct Exchange<F> {
    request: u64,
    /// The framing of its reply.
    framing: F,
    reply: ExchangeReply,
    /// Whether items come before its reply.
    is_stream: bool,
    /// The first part that was deferred, and the item that it is for.
    first: (usize, u32),
}

/// The reply to a request.
#[derive(Debug)]
pub(super) enum ExchangeReply {
    /// These bytes, framed already.
    Framed(Vec<u8>),
    /// The reply of one call.
    Single(ReplyPart),
    /// The complete reply of one call, with the parts of its result.
    WithParts(Box<ResultFrame>),
    Batch(BatchReply),
}

/// The replies of a batch.
#[derive(Debug, Default)]
pub(super) struct BatchReply {
    /// In the order of the batch.
    parts: Vec<ReplyPart>,
    /// How many of them wait.
    waiting: usize,
    /// The index of the first part that was deferred.
    first_deferred: Option<usize>,
    /// Of the written parts, with a separator for each.
    bytes: usize,
}

impl BatchReply {
    pub(super) fn push(&mut self, part: ReplyPart) {
        if part.item().is_some() {
            self.first_deferred.get_or_insert(self.parts.len());
            self.waiting += 1;
        }
        self.bytes += part.separated_len();
        self.parts.push(part);
    }

    /// The limit for the next part that is written, if `whole` is that of the reply.
    pub(super) fn part_limit(&self, whole: &ReplyLimit) -> ReplyLimit {
        whole.for_part(self.bytes)
    }
}

/// The reply of a call, or of several adjacent calls in a batch.
#[derive(Debug)]
pub(super) enum ReplyPart {
    Written(Vec<u8>),
    /// `token` is that of the items that come before the reply, if it is a stream's. There may be
    /// none if it `is_reporting`.
    Waiting {
        item: u32,
        id: Vec<u8>,
        token: Option<ItemToken>,
        is_reporting: bool,
    },
}

impl ReplyPart {
    /// The item of the call that the part waits for.
    fn item(&self) -> Option<u32> {
        match self {
            ReplyPart::Written(_) => None,
            ReplyPart::Waiting { item, .. } => Some(*item),
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            ReplyPart::Written(bytes) => bytes,
            ReplyPart::Waiting { .. } => &[],
        }
    }

    /// Its length in a batch.
    fn separated_len(&self) -> usize {
        match self.bytes().len() {
            0 => 0,
            len => len + 1,
        }
    }
}

/// Appends the reply to a call that was deferred.
pub(super) fn write_outcome(
    out: &mut Vec<u8>,
    id: &[u8],
    outcome: Result<&[u8], &RpcError>,
    limit: &ReplyLimit,
) {
    out.reserve(AROUND_REPLY_BYTES + id.len() + outcome.map_or(0, <[u8]>::len));
    let mut reply = Reply::new(out, Some(id), limit);
    match outcome {
        Ok(response) if id == ROUTE_ID => reply.response().extend_from_slice(response),
        Ok(result) => reply.result().extend_from_slice(result),
        Err(error) => reply.error(error),
    }
    reply.end(true);
}

impl ExchangeReply {
    fn parts_mut(&mut self) -> &mut [ReplyPart] {
        match self {
            ExchangeReply::Framed(_) | ExchangeReply::WithParts(_) => &mut [],
            ExchangeReply::Single(part) => std::slice::from_mut(part),
            ExchangeReply::Batch(batch) => &mut batch.parts,
        }
    }

    fn parts(&self) -> &[ReplyPart] {
        match self {
            ExchangeReply::Framed(_) | ExchangeReply::WithParts(_) => &[],
            ExchangeReply::Single(part) => std::slice::from_ref(part),
            ExchangeReply::Batch(batch) => &batch.parts,
        }
    }

    fn is_whole(&self) -> bool {
        match self {
            ExchangeReply::Framed(_) | ExchangeReply::WithParts(_) => true,
            ExchangeReply::Single(part) => part.item().is_none(),
            ExchangeReply::Batch(batch) => batch.waiting == 0,
        }
    }

    /// The index and the item of the first part that was deferred.
    fn first_deferred(&self) -> Option<(usize, u32)> {
        let index = match self {
            ExchangeReply::Batch(batch) => batch.first_deferred?,
            _ => 0,
        };
        Some((index, self.parts().get(index)?.item()?))
    }

    /// The calls that wait for their outcomes.
    fn waiting_calls(&self) -> usize {
        match self {
            ExchangeReply::Framed(_) | ExchangeReply::WithParts(_) => 0,
            ExchangeReply::Single(part) => usize::from(part.item().is_some()),
            ExchangeReply::Batch(batch) => batch.waiting,
        }
    }

    /// The limit for the next part, if the whole reply has at most `bytes_max`.
    fn part_limit(&self, bytes_max: usize) -> ReplyLimit {
        let whole = ReplyLimit::after(&[], bytes_max);
        match self {
            ExchangeReply::Batch(batch) => batch.part_limit(&whole),
            _ => whole,
        }
    }

    /// Whether it has no text, because its calls stay without a reply.
    pub(super) fn is_empty(&self) -> bool {
        self.held_bytes() == 0
    }

    /// Whether it is of one call.
    pub(super) fn is_single(&self) -> bool {
        matches!(self, Self::Single(_) | Self::WithParts(_))
    }

    /// Whether items come before the reply to a single call.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Single(ReplyPart::Waiting { token: Some(_), .. }))
    }

    /// Whether the items before the reply to a single call may fail to come.
    pub(super) fn is_reporting(&self) -> bool {
        matches!(self, Self::Single(ReplyPart::Waiting { is_reporting: true, .. }))
    }

    fn held_bytes(&self) -> usize {
        match self {
            ExchangeReply::Framed(bytes) => bytes.len(),
            ExchangeReply::Single(part) => part.bytes().len(),
            ExchangeReply::WithParts(frame) => frame.len(),
            ExchangeReply::Batch(batch) => batch.bytes,
        }
    }

    /// Appends the reply without its framing, as text.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            ExchangeReply::Framed(bytes) => out.extend_from_slice(bytes),
            ExchangeReply::Single(part) => out.extend_from_slice(part.bytes()),
            ExchangeReply::WithParts(frame) => out.extend_from_slice(&frame.inlined()),
            ExchangeReply::Batch(batch) => {
                let mut separator = b'[';
                for part in batch.parts.iter().filter(|part| !part.bytes().is_empty()) {
                    out.push(separator);
                    out.extend_from_slice(part.bytes());
                    separator = b',';
                }
                out.push(b']');
            }
        }
    }
}

impl<F> Exchange<F> {
    fn new(request: u64, framing: F, reply: ExchangeReply) -> Self {
        let (first, is_stream) = (reply.first_deferred().unwrap_or_default(), reply.is_stream());
        Self { request, framing, is_stream, first, reply }
    }

    fn is_whole(&self) -> bool {
        self.reply.is_whole()
    }

    fn part_index(&self, item: u32) -> Option<usize> {
        let (first_part, first_item) = self.first;
        Some(first_part + item.checked_sub(first_item)? as usize)
    }

    /// The ids of the calls that wait, with their numbers.
    fn waiting_ids(&self) -> impl Iterator<Item = (&Vec<u8>, CallNumber)> {
        let request = self.request;
        self.reply.parts().iter().filter_map(move |part| match part {
            ReplyPart::Written(_) => None,
            ReplyPart::Waiting { item, id, .. } => Some((id, CallNumber { request, item: *item })),
        })
    }

    /// Writes the reply to an item, or nothing without an outcome; returns by how much that adds to
    /// [`ExchangeReply::held_bytes`], and the id of the call; `None` if it is not waited for.
    fn complete(
        &mut self,
        item: u32,
        outcome: Option<Result<&[u8], &RpcError>>,
        bytes_max: usize,
    ) -> Option<(usize, Vec<u8>)> {
        let index = self.part_index(item)?;
        let held_bytes = self.reply.held_bytes();
        let limit = self.reply.part_limit(bytes_max);
        let part = self.reply.parts_mut().get_mut(index)?;
        let ReplyPart::Waiting { id, .. } = part else { return None };
        let mut out = Vec::new();
        if let Some(outcome) = outcome {
            write_outcome(&mut out, id, outcome, &limit);
        }
        let id = mem::take(id);
        *part = ReplyPart::Written(out);
        let separated_len = part.separated_len();
        if let ExchangeReply::Batch(batch) = &mut self.reply {
            batch.bytes += separated_len;
            batch.waiting -= 1;
        }
        Some((self.reply.held_bytes() - held_bytes, id))
    }
}

/// What a reply has besides its id and its result, and the digits of its length in a head before
/// it.
const AROUND_REPLY_BYTES: usize = AROUND_RESULT_BYTES + 20;

/// The calls that wait, by their ids. Several may have the same one.
type IdIndex = HashMap<Vec<u8>, BTreeSet<CallNumber>>;

/// The requests of a connection that wait.
#[derive(Debug)]
pub(super) struct Exchanges<F> {
    waiting: VecDeque<Exchange<F>>,
    /// Of the replies that are written.
    held_bytes: usize,
    /// Those that are streams.
    streams: usize,
    /// The calls that wait for their outcomes, those of batches among them.
    calls: usize,
    /// The calls by their ids, since one of them was to be cancelled.
    ids: Option<Box<IdIndex>>,
    cancelled: bool,
}

impl<F> Exchanges<F> {
    pub(super) const fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            held_bytes: 0,
            streams: 0,
            calls: 0,
            ids: None,
            cancelled: false,
        }
    }

    /// Whether as many calls or requests wait as may. Streams count as calls alone: each is a
    /// request whose items do not wait for other requests.
    pub(super) fn are_at_max(&self, limits: &Limits) -> bool {
        self.calls >= limits.connection_calls_max
            || self.waiting.len() - self.streams >= limits.pipeline_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives up on all replies.
    pub(super) fn cancel(&mut self) {
        self.cancelled |= !self.waiting.is_empty();
        self.waiting.clear();
        self.ids = None;
        (self.held_bytes, self.streams, self.calls) = (0, 0, 0);
    }

    /// Bytes of replies that wait for others.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Whether deferred calls may still run, cancelled ones included.
    pub(super) fn has_deferred(&self) -> bool {
        self.cancelled || !self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, request: u64, framing: F, reply: ExchangeReply) {
        self.held_bytes += reply.held_bytes();
        self.streams += usize::from(reply.is_stream());
        self.calls += reply.waiting_calls();
        let exchange = Exchange::new(request, framing, reply);
        if let Some(ids) = &mut self.ids {
            add_ids(ids, &exchange);
        }
        self.waiting.push_back(exchange);
    }

    /// Stores the outcome of a deferred call; drops it if the call was cancelled.
    pub(super) fn complete(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        bytes_max: usize,
    ) {
        self.end_call(number, Some(outcome), bytes_max);
    }

    /// Stores the result of a deferred call with its parts, which go into the text of a batch.
    pub(super) fn complete_with_parts(
        &mut self,
        number: CallNumber,
        text: &[u8],
        parts: Vec<ResultPart>,
        bytes_max: usize,
    ) {
        let reply = self.find(number.request).map(|exchange| &exchange.reply);
        if !matches!(reply, Some(ExchangeReply::Single(ReplyPart::Waiting { .. }))) {
            let text = inline_results(text, &parts);
            return self.complete(number, Ok(&text), bytes_max);
        }
        let len = parts.iter().fold(text.len(), |len, part| len.saturating_add(part.bytes.len()));
        if len > bytes_max {
            return self.complete(number, Err(&too_large(bytes_max)), bytes_max);
        }
        self.complete(number, Ok(text), bytes_max);
        let Some(exchange) = self.find(number.request) else { return };
        if let ExchangeReply::Single(ReplyPart::Written(text)) = &mut exchange.reply {
            let before = text.len();
            exchange.reply = match ResultFrame::new(mem::take(text), parts) {
                Ok(frame) => ExchangeReply::WithParts(Box::new(frame)),
                Err(inlined) => ExchangeReply::Single(ReplyPart::Written(inlined)),
            };
            let added = exchange.reply.held_bytes() - before;
            self.held_bytes += added;
        }
    }

    /// Has a deferred call stay without a reply.
    pub(super) fn forget(&mut self, number: CallNumber) {
        self.end_call(number, None, 0);
    }

    fn end_call(
        &mut self,
        number: CallNumber,
        outcome: Option<Result<&[u8], &RpcError>>,
        bytes_max: usize,
    ) {
        if let Some(exchange) = self.find(number.request)
            && let Some((added, id)) = exchange.complete(number.item, outcome, bytes_max)
        {
            self.held_bytes += added;
            self.calls -= 1;
            self.remove_id(&id, number);
        }
    }

    fn find(&mut self, request: u64) -> Option<&mut Exchange<F>> {
        let index = self.index_of(request)?;
        self.waiting.get_mut(index)
    }

    fn index_of(&self, request: u64) -> Option<usize> {
        // The queue is sorted by request number.
        self.waiting.binary_search_by_key(&request, |exchange| exchange.request).ok()
    }

    /// The framing of a stream, and the token of its items; `None` once it has its reply.
    pub(super) fn stream(&mut self, number: CallNumber) -> Option<(&mut F, &ItemToken)> {
        let exchange = self.find(number.request)?;
        let index = exchange.part_index(number.item)?;
        match exchange.reply.parts().get(index)? {
            ReplyPart::Waiting { token: Some(token), .. } => Some((&mut exchange.framing, token)),
            _ => None,
        }
    }

    /// The framing of the first request.
    pub(super) fn first_framing(&mut self) -> Option<&mut F> {
        self.waiting.front_mut().map(|exchange| &mut exchange.framing)
    }

    /// The framing of the first request.
    pub(super) fn peek_framing(&self) -> Option<&F> {
        self.waiting.front().map(|exchange| &exchange.framing)
    }

    /// The oldest call with this id that waits for its outcome.
    pub(super) fn number_of(&mut self, wanted: &[u8]) -> Option<CallNumber> {
        if self.calls == 0 {
            return None;
        }
        let ids = self.ids.get_or_insert_with(|| {
            let mut ids = Box::<IdIndex>::default();
            self.waiting.iter().for_each(|exchange| add_ids(&mut ids, exchange));
            ids
        });
        ids.get(wanted)?.first().copied()
    }

    fn remove_id(&mut self, id: &[u8], number: CallNumber) {
        let Some(ids) = &mut self.ids else { return };
        if self.calls == 0 {
            self.ids = None;
        } else if let Some(numbers) = ids.get_mut(id) {
            numbers.remove(&number);
            if numbers.is_empty() {
                ids.remove(id);
            }
        }
    }

    /// Takes the first request if its reply is whole.
    pub(super) fn pop_first_whole(&mut self) -> Option<(F, ExchangeReply)> {
        if !self.waiting.front()?.is_whole() {
            return None;
        }
        self.take(0)
    }

    /// Takes the first request if it is this call alone, which waits for its outcome, and if
    /// `takes` says so. Returns the framing and the id of its reply, which the caller writes.
    pub(super) fn pop_first_call(
        &mut self,
        number: CallNumber,
        takes: impl FnOnce(&F) -> bool,
    ) -> Option<(F, Vec<u8>)> {
        let Exchange { request, framing, reply, .. } = self.waiting.front()?;
        let ExchangeReply::Single(ReplyPart::Waiting { item, token: None, .. }) = reply else {
            return None;
        };
        if number != (CallNumber { request: *request, item: *item }) || !takes(framing) {
            return None;
        }
        let Exchange { framing, reply, .. } = self.waiting.pop_front()?;
        if self.waiting.is_empty() {
            // The next request takes the same memory, which is in the processor's cache.
            self.waiting.clear();
        }
        let ExchangeReply::Single(ReplyPart::Waiting { id, .. }) = reply else { return None };
        self.calls -= 1;
        self.remove_id(&id, number);
        Some((framing, id))
    }

    /// Takes this request if its reply is whole.
    pub(super) fn pop_whole(&mut self, request: u64) -> Option<(F, ExchangeReply)> {
        let index = self.index_of(request)?;
        self.waiting.get(index).is_some_and(Exchange::is_whole).then(|| self.take(index))?
    }

    fn take(&mut self, index: usize) -> Option<(F, ExchangeReply)> {
        let Exchange { framing, reply, is_stream, .. } = self.waiting.remove(index)?;
        self.streams -= usize::from(is_stream);
        self.held_bytes -= reply.held_bytes();
        Some((framing, reply))
    }
}

impl Exchanges<()> {
    /// Stores the outcome of a deferred call. Appends the reply to its request if that is complete;
    /// returns whether it is.
    pub(super) fn complete_unframed(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        bytes_max: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        self.complete(number, outcome, bytes_max);
        let Some(((), reply)) = self.pop_whole(number.request) else { return false };
        reply.write(out);
        true
    }
}

fn add_ids<F>(ids: &mut IdIndex, exchange: &Exchange<F>) {
    for (id, number) in exchange.waiting_ids() {
        ids.entry(id.clone()).or_default().insert(number);
    }
}
