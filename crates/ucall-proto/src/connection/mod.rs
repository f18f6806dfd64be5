//! [`PlainConnection`]: the state of one connection, which combines all layers of the protocol.
//!
//! [`Connection::receive`] takes bytes and appends replies to an output buffer of the caller, who
//! then polls [`Connection::next_action`]. The connection has no clock and no socket. Complete
//! requests are not copied: they are parsed in the engine's buffer. Only the rest of an incomplete
//! request is stored here.
//!
//! | protocol | starts with | continues with |
//! |---|---|---|
//! | `Unknown` | every connection | `Raw` at `{`, `[` or 0xB1, `Http` at a letter, else refused |
//! | `Raw` | a document | another document |
//! | `Http` | a head | another head, unless the request closes the connection |
//! | `WebSocket` | an upgrade of `Http` | another frame |
//!
//! [`reading`] has the states of a connection, whatever its protocol, and their transitions.

mod authentication;
pub(crate) mod brokered;
mod budget;
mod calls;
mod cancellation;
mod compression;
pub(crate) mod datagrams;
mod deadline;
mod drain;
mod endpoint;
mod exchange;
mod frames;
mod half_close;
mod http;
mod http_body;
mod http_framing;
mod http_refusals;
mod http_route;
mod http_stream;
mod inflating;
mod items;
mod keepalive;
mod long;
mod mcp;
mod mcp_response;
mod memory;
mod mounted_websocket;
mod pieces;
mod public;
mod raw;
mod reading;
mod secure;
mod shared_memory;
mod streamed_body;
mod tail;
mod waiting;
mod websocket;

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::Target;

use crate::Limits;
use crate::http1::{AccessRules, ErrorBody, HttpError, ReplyWriter};
use crate::json::Member;
use crate::rpc::frame::{Attachment, FRAME_BYTE};
use crate::rpc::{CallNumber, ResultPart, RpcError, Service};
use crate::tls::TlsSession;
pub use budget::{MemoryBudget, Reservation};
use calls::CancelRequest;
pub use cancellation::CANCEL_REQUEST;
use cancellation::CancelSearch;
pub use deadline::EvictionClass;
use deadline::{WaitState, body_time};
pub use drain::DRAIN;
use exchange::Exchanges;
use http::Http;
use http_framing::HttpFraming;
pub use public::{Connection, ConnectionProtocol};
use raw::Raw;
use reading::{Destination, ReadEvent, Reading};
use shared_memory::Sharing;
pub use shared_memory::{PREAMBLE_BYTES, client_preamble, read_server_preamble, server_preamble};
use tail::FrameTail;
pub use websocket::MessageFraming;
use websocket::WebSocket;

/// White space that may come before the byte that determines the protocol.
const LEADING_SPACE_MAX: usize = 64;

/// What a connection borrows from its worker for one step.
#[derive(Debug)]
pub struct Environment<'a, S> {
    /// Limits of the server.
    pub limits: &'a Limits,
    /// Which browsers may call.
    pub access: &'a AccessRules,
    /// The present.
    pub now: Instant,
    /// Writes reply heads, with the date of the present.
    pub replies: &'a mut ReplyWriter,
    /// Runs the calls.
    pub service: &'a mut S,
    /// Memory used again and again.
    pub scratch: &'a mut Scratch,
    /// Where the step appends its output.
    pub out: &'a mut Vec<u8>,
    /// Bytes of this connection that wait to be sent already.
    pub queued_bytes: usize,
    /// Whether the server is draining.
    pub drain: Drain,
    /// Whether there is memory for more requests.
    pub load: LoadState,
}

/// Whether the server is shutting down, and its connections with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// It is not.
    #[default]
    No,
    /// Requests are served. Each HTTP reply closes its connection.
    Serving,
    /// The [`Service`] refuses each request, which is the last of its connection.
    Refusing,
}

/// Whether a server has memory for more requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoadState {
    /// It has.
    #[default]
    Normal,
    /// Its [`MemoryBudget`] is exceeded. New requests are refused: over HTTP before their body is
    /// read, over raw TCP and WebSocket by the [`Service`]. [`Drain::Refusing`] takes precedence.
    /// Health checks are answered.
    Overloaded,
}

/// Memory that the connections of one worker share: buffers that every request reuses, and the
/// budget.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Of the params of one document.
    members: Vec<Member>,
    /// The ids of calls that a document asks to cancel.
    cancel_requests: Vec<CancelRequest>,
    /// Output of a step before it is encrypted.
    plaintext: Vec<u8>,
    budget: MemoryBudget,
    /// Large parts of results, which lie between the bytes of the output.
    attachments: Vec<Attachment>,
}

/// What a connection wants from the layer that holds its socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextAction {
    /// More bytes.
    Receive,
    /// More bytes of a large body, into the target of [`Connection::poll_target`].
    Fill,
    /// No more bytes for now: too much waits. Call [`Connection::resume`] when less does.
    Pause,
    /// After all output is sent: shut down our side, then receive and discard input.
    DiscardInput,
    /// Close the connection after all output is sent.
    Close,
}

#[derive(Debug)]
enum Protocol {
    Unknown,
    Raw(Raw),
    Http(Http),
    WebSocket(WebSocket),
}

/// What the next bytes amount to.
enum Step {
    /// The number of bytes used; more requests may follow them.
    Consumed(usize),
    /// The request needs more bytes, or has to wait.
    Incomplete,
}

/// A connection without TLS, or the one inside TLS. It writes plaintext, so only
/// [`Secured`](secure::Secured) runs its steps.
#[derive(Debug)]
pub struct PlainConnection {
    /// What TLS has agreed on; `None` without TLS, and before.
    session: Option<Arc<TlsSession>>,
    protocol: Protocol,
    reading: Reading,
    discarded_bytes_max: usize,
    /// While requests wait in the input, the search of these for requests to cancel.
    search: Option<Box<CancelSearch>>,
    /// The peer has subscribed to messages of the server.
    awaits_messages: bool,
    /// The memory that both sides share, if the peer has asked for that.
    sharing: Option<Box<Sharing>>,
    /// Bytes of an incomplete request, or of requests that wait.
    input: Vec<u8>,
    /// The parts of a frame that is being received, apart from the input.
    tail: Option<Box<FrameTail>>,
    /// What this connection holds.
    reserved: Reservation,
    exchanges: Exchanges<HttpFraming>,
    /// Numbers the requests.
    requests: u64,
    accepted_at: Instant,
    wait_state: WaitState,
    waiting_since: Instant,
    /// How many requests there had been then.
    requests_at_wait: u64,
    /// When bytes of an incomplete request last arrived.
    last_received_at: Instant,
}

impl PlainConnection {
    /// A connection that was accepted just now.
    fn new(now: Instant, limits: &Limits) -> Self {
        Self {
            session: None,
            protocol: Protocol::Unknown,
            reading: Reading::OPEN,
            discarded_bytes_max: limits.discarded_bytes_max,
            search: None,
            awaits_messages: false,
            sharing: None,
            input: Vec::new(),
            tail: None,
            reserved: Reservation::default(),
            exchanges: Exchanges::new(),
            requests: 0,
            accepted_at: now,
            wait_state: WaitState::Request,
            waiting_since: now,
            requests_at_wait: 0,
            last_received_at: now,
        }
    }

    /// Takes bytes, runs the requests that they complete and appends the replies to the output.
    #[inline]
    fn receive_plaintext<S: Service>(
        &mut self,
        bytes: &[u8],
        environment: &mut Environment<'_, S>,
    ) {
        if self.input.is_empty() {
            let used = self.process(bytes, environment);
            if used < bytes.len() && self.reading.takes_requests() {
                self.buffer_input(bytes.get(used..).unwrap_or_default(), environment);
                if self.reading.is_paused()
                    || (self.is_websocket() && self.reading.takes_requests())
                {
                    self.process_input(environment);
                }
            }
        } else {
            self.buffer_input(bytes, environment);
            self.process_input(environment);
        }
        self.update_wait_state(environment);
    }

    /// Takes back the target of [`Connection::poll_target`] with the bytes that filled it.
    fn return_target<S: Service>(&mut self, target: Target, environment: &mut Environment<'_, S>) {
        self.reading.handle(ReadEvent::TargetReturned);
        match &mut self.tail {
            Some(tail) => tail.memory.put(target.into_vec()),
            None => self.input = target.into_vec(),
        }
        self.process_input(environment);
        self.update_wait_state(environment);
    }

    /// Takes the outcome of a deferred call: the JSON text of its result, or an error. Drops it if
    /// the call was cancelled.
    fn complete<S: Service>(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        environment: &mut Environment<'_, S>,
    ) {
        if !self.complete_first(number, outcome, environment) {
            self.exchanges.complete(number, outcome, environment.limits.reply_bytes_max);
        }
        self.flush_completed(number, environment);
        self.resume(environment);
    }

    /// Takes the result of a deferred call whose parts lie beside its text.
    fn complete_with_parts<S: Service>(
        &mut self,
        number: CallNumber,
        text: &[u8],
        parts: Vec<ResultPart>,
        environment: &mut Environment<'_, S>,
    ) {
        let bytes_max = environment.limits.reply_bytes_max;
        self.exchanges.complete_with_parts(number, text, parts, bytes_max);
        self.flush_completed(number, environment);
        self.resume(environment);
    }

    /// Goes on with requests that had to wait, now that replies have been written or sent, or that
    /// there is memory again.
    fn resume<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        if self.reading.is_paused() && !self.poll_undecoded_stream(environment) {
            self.process_input(environment);
        }
        self.update_wait_state(environment);
    }

    /// A deadline of the connection has passed.
    fn handle_timeout<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        match (self.wait_state, &self.protocol) {
            (WaitState::Request, Protocol::WebSocket(_)) => self.ping_or_close(environment),
            (WaitState::Body { .. }, Protocol::WebSocket(_)) => {
                self.refuse_slow_message(environment);
            }
            (WaitState::Replies, Protocol::WebSocket(_)) if self.waits_for_application() => {
                self.ping_or_close(environment);
            }
            (WaitState::Head | WaitState::Body { .. }, Protocol::Http(_)) => {
                let head = matches!(self.wait_state, WaitState::Head);
                self.refuse_timeout(head, environment);
            }
            (WaitState::Head | WaitState::Body { .. }, _) => {
                raw::refuse_timeout(
                    self.wait_state == WaitState::Head,
                    environment.limits,
                    environment.out,
                );
                self.discard_input();
            }
            (WaitState::Replies, _) => self.write_comment(environment),
            (WaitState::Handshake | WaitState::Request | WaitState::End, _) => {
                self.discard_input();
                self.reading.handle(ReadEvent::Close);
            }
        }
        self.update_wait_state(environment);
    }

    /// What the holder of the socket should do.
    #[inline]
    pub fn next_action(&self) -> NextAction {
        match self.reading {
            Reading::Open { destination, .. } => match destination {
                Destination::Buffer | Destination::Filling => NextAction::Receive,
                Destination::Target => NextAction::Fill,
                Destination::NoMemory | Destination::NextTurn => NextAction::Pause,
            },
            Reading::Paused { .. } => self.paused_action(),
            Reading::Discarding { .. } if !self.exchanges.is_empty() => NextAction::Receive,
            Reading::Discarding { discarded, is_ended, .. }
                if is_ended || discarded > self.discarded_bytes_max =>
            {
                NextAction::Close
            }
            Reading::Discarding { .. } => NextAction::DiscardInput,
            Reading::Closed { .. } => NextAction::Close,
        }
    }

    /// Whether deferred calls may still run, cancelled ones included.
    pub fn has_deferred(&self) -> bool {
        self.exchanges.has_deferred()
    }

    /// Cancels all calls, and reads nothing more.
    fn cancel(&mut self) {
        self.exchanges.cancel();
        self.discard_input();
    }

    /// Refuses a client without TLS, with an error that says that the port expects it.
    fn refuse_plaintext<S: Service>(&mut self, bytes: &[u8], environment: &mut Environment<'_, S>) {
        if bytes.first().is_some_and(u8::is_ascii_alphabetic) {
            self.refuse_http(&HttpError::PlaintextOnTls, ErrorBody::Text, environment);
        } else {
            raw::refuse_plaintext(environment.out);
            self.discard_input();
        }
        self.update_wait_state(environment);
    }

    /// Counts input after the last request, and discards it.
    #[cold]
    fn count_discarded(&mut self, count: usize) {
        self.reading.handle(ReadEvent::Discarded(count));
    }

    fn discard_input(&mut self) {
        self.reading.handle(ReadEvent::Discard);
        (self.search, self.tail) = (None, None);
        self.input = Vec::new();
        match &mut self.protocol {
            Protocol::Http(http) => drop(http.body.discard()),
            Protocol::Raw(raw) => raw.discard_document(),
            Protocol::WebSocket(socket) => socket.discard(),
            _ => {}
        }
    }

    #[inline(never)]
    fn process_input<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let is_ended = self.reading == Reading::Paused { is_ended: true };
        while let Some(used) = self.process_once(environment)
            && self.search_cancellations(used, environment)
        {}
        if !self.reading.is_paused() {
            self.search = None;
        }
        if is_ended && !self.reading.is_paused() {
            self.decode_at_end(environment);
        }
        match self.reading {
            Reading::Paused { .. } if is_ended => self.reading.handle(ReadEvent::End),
            _ if is_ended => self.end_input(environment),
            _ => {}
        }
    }

    /// Runs the requests in the input. Returns how many bytes these were if others wait.
    fn process_once<S: Service>(&mut self, environment: &mut Environment<'_, S>) -> Option<usize> {
        let mut input = mem::take(&mut self.input);
        let mut used = 0;
        if self.tail.is_some() {
            used = self.process_tail(&input, environment);
        } else if input.len() > environment.limits.long_bytes_min {
            (input, used) = self.process_long(input, environment);
        }
        if self.tail.is_none() && !self.is_websocket() {
            used = self.process_all(&input, used, environment);
        }
        if self.is_websocket() {
            let frames = input.get_mut(used..).unwrap_or_default();
            used += self.process_frames(frames, environment);
        }
        if used == input.len() || !self.reading.takes_requests() {
            environment.scratch.budget.pool().put(input);
            return None;
        }
        input.drain(..used);
        self.input = input;
        self.reading.is_paused().then_some(used)
    }

    /// Stores the rest of the input. Without memory for it, replies that the client may retry.
    #[inline(never)]
    fn buffer_input<S: Service>(&mut self, rest: &[u8], environment: &mut Environment<'_, S>) {
        if let Protocol::WebSocket(socket) = &mut self.protocol {
            socket.pings = 0;
        }
        let rest = match &mut self.tail {
            Some(tail) => tail.receive(rest),
            None if self.input.is_empty() => self.begin_large_body(rest, environment),
            None => rest,
        };
        if self.input.try_reserve(rest.len()).is_err() {
            return self.refuse_overloaded(environment);
        }
        self.input.extend_from_slice(rest);
    }

    /// Runs the requests that `bytes` starts with; returns their length.
    ///
    /// Most input is one request. Running it outside of the loop keeps its values in registers.
    #[inline(always)]
    fn process<S: Service>(&mut self, bytes: &[u8], environment: &mut Environment<'_, S>) -> usize {
        debug_assert!(
            !self.reading.is_paused() || self.has_undecoded_stream(),
            "what waits is in the input, or is decoded before more of it"
        );
        match self.step(bytes, environment) {
            Step::Consumed(count) if count == bytes.len() => {
                self.end_if_refusing(environment.drain, environment.out);
                count
            }
            Step::Consumed(count) => self.process_all(bytes, count, environment),
            Step::Incomplete => 0,
        }
    }

    /// Runs the requests after the first `used` bytes; returns their length and `used` together.
    #[inline(never)]
    fn process_all<S: Service>(
        &mut self,
        bytes: &[u8],
        mut used: usize,
        environment: &mut Environment<'_, S>,
    ) -> usize {
        self.reading.handle(ReadEvent::Run);
        while let Some(rest) = bytes.get(used..)
            && let Step::Consumed(count) = self.step(rest, environment)
        {
            used += count;
        }
        if used > 0 {
            self.end_if_refusing(environment.drain, environment.out);
        }
        used
    }

    /// Runs the request that `rest` starts with, if it is complete and may run now.
    #[inline(always)]
    fn step<S: Service>(&mut self, rest: &[u8], environment: &mut Environment<'_, S>) -> Step {
        if rest.is_empty() || !self.reading.takes_requests() {
            return Step::Incomplete;
        }
        if self.must_wait(environment) {
            self.reading.handle(ReadEvent::Wait);
            return Step::Incomplete;
        }
        if matches!(self.protocol, Protocol::Http(_)) {
            return self.step_http(rest, environment);
        }
        match &self.protocol {
            Protocol::Raw(_) => self.step_raw(rest, environment),
            // Frames need input that may be written, see `process_frames`.
            Protocol::WebSocket(_) => Step::Incomplete,
            _ => self.detect_protocol(rest, environment),
        }
    }

    /// Detects the protocol by the first byte that is no white space.
    #[cold]
    fn detect_protocol<S: Service>(
        &mut self,
        bytes: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        if let Some(step) = self.detect_preamble(bytes) {
            return step;
        }
        let space = bytes.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
        self.protocol = match bytes.get(space) {
            _ if space > LEADING_SPACE_MAX => Protocol::Unknown,
            None => return Step::Incomplete,
            Some(b'{' | b'[' | &FRAME_BYTE) => Protocol::Raw(Raw::default()),
            Some(byte) if byte.is_ascii_alphabetic() => Protocol::Http(Http::default()),
            Some(_) => Protocol::Unknown,
        };
        if matches!(self.protocol, Protocol::Unknown) {
            self.refuse_unknown(bytes, environment);
        } else if self.is_raw() && environment.service.requires_authentication() {
            self.authenticate_raw(environment);
        }
        self.announce_drain(environment.drain, environment.out);
        // The HTTP parser handles empty lines before a request (RFC 9112, 2.2).
        Step::Consumed(if self.is_raw() { space } else { 0 })
    }

    #[inline]
    fn is_websocket(&self) -> bool {
        matches!(self.protocol, Protocol::WebSocket(_))
    }

    /// Whether the connection closes after the request of this number.
    #[inline(always)]
    fn is_last<S>(&self, request: u64, environment: &Environment<'_, S>) -> bool {
        let Limits { exchanges_max, lifetime, .. } = environment.limits;
        exchanges_max.is_some_and(|max| request >= max)
            || lifetime.is_some_and(|lifetime| environment.now >= self.accepted_at + lifetime)
    }

    fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }
}
