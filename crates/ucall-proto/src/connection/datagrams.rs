//! Calls without a connection: each datagram is one document, and so is each reply.
//!
//! Only requests are answered. A datagram that is no JSON, or that has any element which is no
//! request, gets no reply at all: otherwise two servers could answer each other's errors for ever
//! (CVE-2024-2169). No reply is a request.

use std::hash::Hasher;

use super::calls::{DocumentOutcome, RequestContext, parse_framed, run_parsed};
use super::exchange::Exchanges;
use super::{Environment, Scratch};
use crate::Limits;
use crate::json::{Reader, Text};
use crate::rpc::{CallNumber, Content, Meta, Request, RpcError, Service, write_error_reply};

/// The valid requests of a datagram.
#[derive(Clone, Debug)]
pub struct DatagramDocument<'a> {
    content: Content<'a>,
}

/// What became of a datagram's calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatagramOutcome {
    /// The reply is written.
    Replied,
    /// There were notifications only.
    NoReply,
    /// Some calls are deferred. [`DatagramCalls::complete`] writes the reply to the requests of
    /// this number.
    Deferred(u64),
}

/// The deferred calls of the datagrams of one socket.
#[derive(Debug)]
pub struct DatagramCalls {
    exchanges: Exchanges<()>,
    documents: u64,
}

impl<'a> DatagramDocument<'a> {
    /// Parses a datagram; `None` unless it holds valid requests and nothing else.
    pub fn parse<S: Service>(
        text: &'a [u8],
        limits: &Limits,
        scratch: &mut Scratch,
    ) -> Option<Self> {
        let document = Self { content: parse_framed::<S>(text, limits, scratch)? };
        let has_all = match &document.content {
            Content::Single(_) => true,
            Content::Batch(batch) => batch.requests.len() == batch.count && batch.count > 0,
        };
        let is_valid = has_all && document.requests().iter().all(|it| it.invalid.is_none());
        is_valid.then_some(document)
    }

    fn requests(&self) -> &[Request<'a>] {
        match &self.content {
            Content::Single(request) => std::slice::from_ref(request),
            Content::Batch(batch) => &batch.requests,
        }
    }

    /// The id of the first request that has one; `None` if there are notifications only.
    pub fn id(&self) -> Option<&'a [u8]> {
        self.requests().iter().find_map(|request| request.id)
    }

    /// The only request's method; `None` for a batch.
    pub fn method(&self) -> Option<Text<'a>> {
        match &self.content {
            Content::Single(request) => Some(request.method),
            Content::Batch(_) => None,
        }
    }

    /// The methods of all requests.
    pub fn methods(&self) -> impl Iterator<Item = Text<'a>> {
        self.requests().iter().map(|request| request.method)
    }

    /// How many calls want a reply.
    pub fn calls(&self) -> usize {
        self.requests().iter().filter(|request| request.id.is_some()).count()
    }

    /// How many calls want none.
    pub fn notifications(&self) -> usize {
        self.requests().len() - self.calls()
    }

    /// What validates the sender's address: the string `cookie` in the `_meta` of a request.
    pub fn cookie(&self) -> Option<&'a [u8]> {
        let texts = self.requests().iter().filter_map(|it| it.meta?.find(b"cookie"));
        texts.filter(|text| text.starts_with(b"\"")).map(|it| Reader::new(it).string().raw()).next()
    }

    /// Whether a request asks for the items of a stream, which datagrams do not carry.
    pub fn takes_items(&self) -> bool {
        self.requests().iter().any(|it| it.meta.is_some_and(|it| it.progress_token().is_some()))
    }

    /// Whether the `_meta` of a request sets limits of its own, which may cause errors.
    pub fn has_own_limits(&self) -> bool {
        let has_limits =
            |meta: Meta<'_>| [&b"timeout_ms"[..], b"hops"].iter().any(|it| meta.find(it).is_some());
        self.requests().iter().any(|request| request.meta.is_some_and(has_limits))
    }

    /// Feeds all that decides whether another datagram is a repeat of this one: ids, methods and
    /// params, but not `_meta`, which a client may change when it sends a request again. A batch of
    /// one call has another reply than the call.
    pub fn hash_requests(&self, hasher: &mut impl Hasher) {
        hasher.write_u8(u8::from(matches!(self.content, Content::Batch(_))));
        for request in self.requests() {
            for part in [Some(request.method.raw()), request.params, request.id] {
                hasher.write_usize(part.map_or(usize::MAX, <[u8]>::len));
                hasher.write(part.unwrap_or_default());
            }
        }
    }
}

impl Default for DatagramCalls {
    fn default() -> Self {
        Self { exchanges: Exchanges::new(), documents: 0 }
    }
}

impl DatagramCalls {
    /// Runs the calls of a document, and appends the reply to the output.
    pub fn run<S: Service>(
        &mut self,
        document: &DatagramDocument<'_>,
        environment: &mut Environment<'_, S>,
    ) -> DatagramOutcome {
        if let Err(error) = authenticate(environment) {
            return refuse_datagram(document, &error, environment.out);
        }
        self.documents += 1;
        let context = RequestContext { request: self.documents, head: None, session: None };
        let outcome = run_parsed(&document.content, context, environment);
        // Several senders may have one address, so none may cancel a call.
        environment.scratch.cancel_requests.clear();
        match outcome {
            DocumentOutcome::Replied => DatagramOutcome::Replied,
            DocumentOutcome::NoReply => DatagramOutcome::NoReply,
            DocumentOutcome::Deferred(reply) => {
                self.exchanges.push(self.documents, (), *reply);
                DatagramOutcome::Deferred(self.documents)
            }
        }
    }

    /// Takes the outcome of a deferred call: the JSON text of its result, or an error. Appends the
    /// reply if it is complete; returns whether it is.
    pub fn complete(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> bool {
        self.exchanges.complete_unframed(number, outcome, limits.reply_bytes_max, out)
    }
}

/// Replies to a datagram with one error, under the first id that it has.
pub fn refuse_datagram(
    document: &DatagramDocument<'_>,
    error: &RpcError,
    out: &mut Vec<u8>,
) -> DatagramOutcome {
    match document.id() {
        Some(id) => {
            write_error_reply(out, Some(id), error);
            DatagramOutcome::Replied
        }
        None => DatagramOutcome::NoReply,
    }
}

/// Appends an error reply to the request with this id.
pub fn write_datagram_error(id: &[u8], error: &RpcError, out: &mut Vec<u8>) {
    write_error_reply(out, Some(id), error);
}

/// There is no connection to remember who the caller is, so each datagram is authenticated.
fn authenticate<S: Service>(environment: &mut Environment<'_, S>) -> Result<(), RpcError> {
    if environment.service.requires_authentication() {
        let identity = environment.service.authenticate(None, None);
        environment.service.set_identity(&identity.map_err(RpcError::unauthenticated)?);
    }
    Ok(())
}
