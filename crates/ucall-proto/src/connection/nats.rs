//! Calls through a NATS broker: each message of a subscription is a call, answered when it ends.
//!
//! The layer above has connected, authenticated and subscribed; this is what follows on the same
//! stream. The server is the broker's client here, so the peer is not a caller: it has no idle
//! time, is never evicted, and pings show that it lives.
//!
//! | a message of | is |
//! |---|---|
//! | the subscription `n` | a call of the method at `n - 1`: the payload has the params |
//! | the one after the last method's | a request to cancel the call whose id is the payload |
//!
//! | a call | gets |
//! |---|---|
//! | above `calls_max` or `calls_bytes_max` under way, or without memory | -32003 |
//! | with a payload that is neither a list nor an object, or with malformed headers | -32600 |
//! | with a payload above `body_bytes_max` | -32600, and the payload is not read |
//! | whose reply is longer than the broker's `max_payload` | -32603 |
//! | without a reply subject | no reply: it is a notification |

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::calls::{DocumentOutcome, RequestContext, run_params};
use super::http_framing::HttpFraming;
use super::{CloseState, Environment, PlainConnection, Protocol, Step, WaitState, body_time};
use crate::Limits;
use crate::http1::HeadParser;
use crate::nats::{self, Message, Operation, Parsed};
use crate::rpc::{CallNumber, RpcError, Service, write_error_reply};

/// The header with the id that a call is cancelled by.
const CALL_ID: &[u8] = b"Ucall-Call-Id";
/// The id of each call, whose replies are found by their subjects.
const ID: &[u8] = b"1";
/// What a reply begins with.
const RESULT: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":"#;
const ERROR: &[u8] = br#"{"jsonrpc":"2.0","id":1,"error":"#;

/// What a server has subscribed to, and its limits.
#[derive(Clone, Debug)]
pub struct NatsOptions {
    /// The names of the methods, by the numbers of their subscriptions less one.
    pub methods: Vec<String>,
    /// The broker's `max_payload`.
    pub payload_bytes_max: usize,
    /// Calls under way.
    pub calls_max: usize,
    /// Bytes of their messages.
    pub calls_bytes_max: usize,
    /// Counts the calls.
    pub observer: Arc<dyn NatsObserver>,
}

/// Counts calls through a broker.
pub trait NatsObserver: Send + Sync + fmt::Debug {
    /// A call of the method at this index has ended, which has arrived at `began`. `error` is that
    /// of its reply.
    fn call_ended(&self, method: usize, began: Instant, error: Option<&RpcError>);
}

/// The state of a connection to a broker.
#[derive(Debug)]
pub(super) struct Nats {
    options: NatsOptions,
    /// The head that the headers of the message stand for.
    head: Vec<u8>,
    parser: HeadParser,
    /// The reply, before it is framed.
    reply: Vec<u8>,
    /// The calls under way, by their numbers.
    pending: BTreeMap<u64, PendingCall>,
    /// The bytes of their messages.
    pending_bytes: usize,
    /// The bytes of the operation that has begun.
    bytes_needed: usize,
    /// The bytes of a message that is not read.
    skipped: usize,
    /// Pings since the last byte of the broker.
    unanswered_pings: usize,
}

#[derive(Debug)]
struct PendingCall {
    subject: Vec<u8>,
    method: usize,
    began: Instant,
    bytes: usize,
    /// The id that a request to cancel names.
    id: Option<Vec<u8>>,
}

impl Nats {
    pub(super) fn new(options: NatsOptions) -> Self {
        Self {
            options,
            head: Vec::new(),
            parser: HeadParser::default(),
            reply: Vec::new(),
            pending: BTreeMap::new(),
            pending_bytes: 0,
            bytes_needed: 0,
            skipped: 0,
            unanswered_pings: 0,
        }
    }

    pub(super) fn bytes_needed(&self) -> usize {
        self.bytes_needed
    }

    pub(super) fn wait_state(&self, input_bytes: usize, limits: &Limits) -> WaitState {
        match input_bytes {
            0 => WaitState::Request,
            _ => WaitState::Body { total: body_time(self.bytes_needed.max(input_bytes), limits) },
        }
    }

    /// The number of the subscription to requests to cancel.
    fn cancellations(&self) -> u64 {
        self.options.methods.len() as u64 + 1
    }

    /// Whether a call with a message of `bytes` may begin.
    fn has_room(&self, bytes: usize) -> bool {
        let NatsOptions { calls_max, calls_bytes_max, .. } = self.options;
        self.pending.len() < calls_max && self.pending_bytes + bytes <= calls_bytes_max
    }

    fn take_pending(&mut self, request: u64) -> Option<PendingCall> {
        let call = self.pending.remove(&request)?;
        self.pending_bytes -= call.bytes;
        Some(call)
    }

    /// Appends the reply in `self.reply`, and reports the end of its call.
    fn write_reply(&mut self, subject: &[u8], method: usize, began: Instant, out: &mut Vec<u8>) {
        let text = self.reply.strip_suffix(b"}").unwrap_or(&self.reply);
        let error = match text.strip_prefix(RESULT) {
            Some(result) if result.len() <= self.options.payload_bytes_max => {
                nats::write_result(out, subject, result);
                None
            }
            Some(result) => Some(self.too_long(result.len())),
            None => Some(self.error_in(text.strip_prefix(ERROR).unwrap_or_default())),
        };
        if let Some(error) = &error {
            nats::write_error(out, subject, error);
        }
        self.options.observer.call_ended(method, began, error.as_ref());
    }

    #[cold]
    fn error_in(&self, text: &[u8]) -> RpcError {
        let error = RpcError::parse_response(text)
            .unwrap_or_else(|| RpcError::new(RpcError::INTERNAL_ERROR, "Internal error"));
        match nats::error_length(&error) {
            bytes if bytes > self.options.payload_bytes_max => self.too_long(bytes),
            _ => error,
        }
    }

    #[cold]
    fn too_long(&self, bytes: usize) -> RpcError {
        let max = self.options.payload_bytes_max;
        let message =
            format!("the reply of {bytes} bytes is longer than max_payload of the broker, {max}");
        RpcError::new(RpcError::INTERNAL_ERROR, message)
    }
}

impl PlainConnection {
    /// Makes a new connection one to a broker.
    pub(super) fn become_nats(&mut self, options: NatsOptions) {
        self.protocol = Protocol::Nats(Box::new(Nats::new(options)));
        // It is never idle.
        self.set_awaits_messages(true);
    }

    /// Handles the operation that `rest` starts with.
    #[inline(never)]
    pub(super) fn step_nats<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Step {
        let Protocol::Nats(nats) = &mut self.protocol else { return Step::Incomplete };
        nats.unanswered_pings = 0;
        if nats.skipped > 0 {
            let count = nats.skipped.min(rest.len());
            nats.skipped -= count;
            return Step::Consumed(count);
        }
        if rest.len() < nats.bytes_needed {
            return Step::Incomplete;
        }
        match nats::parse(rest, environment.limits.body_bytes_max) {
            Ok(Parsed::Complete(operation, len)) => {
                nats.bytes_needed = 0;
                self.handle_operation(&operation, environment, out);
                Step::Consumed(len)
            }
            Ok(Parsed::Incomplete(bytes_needed)) => {
                nats.bytes_needed = bytes_needed;
                Step::Incomplete
            }
            Err(_) => {
                self.close_nats();
                Step::Incomplete
            }
        }
    }

    fn handle_operation<S: Service>(
        &mut self,
        operation: &Operation<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let Protocol::Nats(nats) = &mut self.protocol else { return };
        match *operation {
            Operation::Message(message) if message.subscription == nats.cancellations() => {
                self.cancel_nats_call(message.payload, environment);
            }
            Operation::Message(message) => self.begin_nats_call(&message, environment, out),
            Operation::TooLong { subscription, reply, rest } => {
                nats.skipped = rest;
                let bytes_max = environment.limits.body_bytes_max;
                let expected =
                    format!("expected a payload of at most {bytes_max} bytes (max_body_bytes)");
                let error = RpcError::invalid_request(&expected);
                self.refuse_nats_call(subscription, reply, &error, environment.now, out);
            }
            Operation::Ping => out.extend_from_slice(nats::PONG),
            Operation::Pong | Operation::Other => {}
        }
    }

    fn begin_nats_call<S: Service>(
        &mut self,
        message: &Message<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let now = environment.now;
        if let Err(error) = self.run_nats_call(message, environment, out) {
            self.refuse_nats_call(message.subscription, message.reply, &error, now, out);
        }
    }

    /// Runs the call of a message; an error if it is refused.
    fn run_nats_call<S: Service>(
        &mut self,
        message: &Message<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Result<(), RpcError> {
        let Protocol::Nats(nats) = &mut self.protocol else { return Ok(()) };
        let Some(method) = method_of(nats, message.subscription) else { return Ok(()) };
        let bytes = message.headers.len() + message.payload.len();
        if !nats.has_room(bytes) {
            return Err(RpcError::overloaded());
        }
        let malformed = || RpcError::invalid_request("expected headers that HTTP allows");
        let id =
            nats::write_head(message.headers, CALL_ID, &mut nats.head).map_err(|()| malformed())?;
        let head = nats.parser.parse(&nats.head, &environment.limits.head);
        let Ok(Some(head)) = head else {
            nats.parser = HeadParser::default();
            return Err(malformed());
        };
        if environment.service.requires_authentication() {
            let identity = environment.service.authenticate(Some(&head), None);
            environment.service.set_identity(&identity.map_err(RpcError::unauthenticated)?);
        }
        self.requests += 1;
        let context = RequestContext { request: self.requests, head: Some(&head), session: None };
        let name = nats.options.methods.get(method).map_or(&b""[..], |name| name.as_bytes());
        let call_id = message.reply.map(|_| ID);
        nats.reply.clear();
        let params = message.payload.trim_ascii();
        let outcome = run_params(name, params, call_id, context, environment, &mut nats.reply)
            .map_err(|_| RpcError::invalid_request("expected a list or an object as params"))?;
        // A call of the method is none of the protocol's own.
        environment.scratch.cancel_requests.clear();
        match (outcome, message.reply) {
            (DocumentOutcome::Deferred(answer), Some(subject)) => {
                let id = id.map(<[u8]>::to_vec);
                let (subject, began) = (subject.to_vec(), environment.now);
                let call = PendingCall { subject, method, began, bytes, id };
                nats.pending_bytes += bytes;
                nats.pending.insert(self.requests, call);
                self.exchanges.push(self.requests, HttpFraming::default(), answer);
            }
            (DocumentOutcome::Replied, Some(subject)) => {
                nats.write_reply(subject, method, environment.now, out);
            }
            _ => nats.options.observer.call_ended(method, environment.now, None),
        }
        Ok(())
    }

    #[cold]
    fn refuse_nats_call(
        &mut self,
        subscription: u64,
        reply: Option<&[u8]>,
        error: &RpcError,
        now: Instant,
        out: &mut Vec<u8>,
    ) {
        let Protocol::Nats(nats) = &mut self.protocol else { return };
        let Some(method) = method_of(nats, subscription) else { return };
        nats.reply.clear();
        write_error_reply(&mut nats.reply, Some(ID), error);
        match reply {
            Some(subject) => nats.write_reply(subject, method, now, out),
            None => nats.options.observer.call_ended(method, now, Some(error)),
        }
    }

    pub(super) fn is_nats(&self) -> bool {
        matches!(self.protocol, Protocol::Nats(_))
    }

    /// Appends the reply to a call through a broker that was deferred, if it is complete.
    pub(super) fn complete_nats_call(&mut self, number: CallNumber, out: &mut Vec<u8>) {
        let Protocol::Nats(nats) = &mut self.protocol else { return };
        let Some((_, answer)) = self.exchanges.pop_whole(number.request) else { return };
        let Some(call) = nats.take_pending(number.request) else { return };
        nats.reply.clear();
        answer.write(&mut nats.reply);
        nats.write_reply(&call.subject, call.method, call.began, out);
    }

    /// Cancels the call with this id, which gets no reply: its caller waits no longer.
    #[cold]
    fn cancel_nats_call<S: Service>(&mut self, id: &[u8], environment: &mut Environment<'_, S>) {
        let Protocol::Nats(nats) = &mut self.protocol else { return };
        let has_id = |(_, call): &(&u64, &PendingCall)| call.id.as_deref() == Some(id);
        let Some(request) = nats.pending.iter().find(has_id).map(|(request, _)| *request) else {
            return;
        };
        let Some(call) = nats.take_pending(request) else { return };
        let number = CallNumber { request, item: 0 };
        environment.service.cancel(number);
        let error = RpcError::new(RpcError::REQUEST_CANCELLED, "Request cancelled");
        self.exchanges.complete(number, Err(&error), environment.limits.reply_bytes_max);
        drop(self.exchanges.pop_whole(request));
        nats.options.observer.call_ended(call.method, call.began, Some(&error));
    }

    /// Asks whether the broker lives. Closes if it has not answered, or not ended a message.
    pub(super) fn ping_broker(&mut self, limits: &Limits, out: &mut Vec<u8>) {
        let Protocol::Nats(nats) = &mut self.protocol else { return };
        let is_within_message = matches!(self.wait_state, WaitState::Body { .. });
        if is_within_message || nats.unanswered_pings >= limits.unanswered_pings_max {
            return self.close_nats();
        }
        nats.unanswered_pings += 1;
        out.extend_from_slice(nats::PING);
    }

    /// Closes at once: there is nothing to say to a broker that has failed.
    #[cold]
    pub(super) fn close_nats(&mut self) {
        self.exchanges.cancel();
        self.discard_input();
        self.close_state = CloseState::Closed;
    }

    /// Ends all subscriptions, if this is a connection to a broker. Calls under way go on.
    pub(super) fn unsubscribe(&mut self, out: &mut Vec<u8>) {
        let Protocol::Nats(nats) = &self.protocol else { return };
        (1..=nats.cancellations()).for_each(|number| nats::write_unsubscribe(out, number));
    }
}

fn method_of(nats: &Nats, subscription: u64) -> Option<usize> {
    let index = usize::try_from(subscription.checked_sub(1)?).ok()?;
    (index < nats.options.methods.len()).then_some(index)
}
