//! The bodies of HTTP requests that are not complete.

use std::mem;
use std::sync::Arc;

use super::http_route;
use super::pieces::{BodySource, PiecewiseBody};
use super::streamed_body::StreamedBody;
use super::{Environment, PlainConnection, Protocol, ReadEvent, Step, WaitState, body_time};
use crate::Limits;
use crate::http1::{self, Head, HttpError, ReplyHeaders};
use crate::rpc::frame::FRAME_MEDIA_TYPE;
use crate::rpc::{DocumentOutline, Service};

/// A body of a known length up to this is received whole: most of them arrive with their head.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// The body that is being received.
#[derive(Debug, Default)]
pub(super) enum Body {
    /// None: bytes of the input, if any, are of a head.
    #[default]
    None,
    /// One with a Content-Length, which stays in the input after its head.
    Length(Box<LengthBody>),
    /// One that is taken from the input as it arrives: in chunks, or in a content coding.
    Pieces(Box<PiecewiseBody>),
    /// One that the service gets in parts.
    Streamed(Box<StreamedBody>),
}

/// A body with a Content-Length, behind its request's head.
#[derive(Debug)]
pub(super) struct LengthBody {
    /// The bytes of head and body together.
    pub(super) bytes_needed: usize,
    /// The requests of a long body.
    pub(super) long: Option<LongBody>,
    /// Where the body starts, if it may be a frame.
    pub(super) frame_at: Option<usize>,
    /// Whether its type says that it is one.
    pub(super) is_frame_type: bool,
    /// The foreign origin that may read the reply.
    allowed_origin: Option<Box<[u8]>>,
}

/// The requests of a long body, and where the body starts.
#[derive(Debug)]
pub(super) struct LongBody {
    pub(super) head_len: usize,
    pub(super) outline: DocumentOutline,
}

impl LongBody {
    /// Of a body that follows this head.
    fn after(head: &Head<'_>) -> Self {
        Self { head_len: head.len(), outline: DocumentOutline::default() }
    }
}

impl Body {
    /// Whether no request is being received, apart from bytes in the input buffer.
    #[inline]
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// The bytes of head and body together, if the body has a Content-Length and is incomplete.
    pub(super) fn bytes_needed(&self) -> usize {
        if let Self::Length(it) = self { it.bytes_needed } else { 0 }
    }

    /// Discards the body that is being received. Returns the origin that may read its refusal.
    #[cold]
    pub(super) fn discard(&mut self) -> Option<Box<[u8]>> {
        match mem::take(self) {
            Self::None => None,
            Self::Streamed(it) => it.allowed_origin,
            Self::Length(it) => it.allowed_origin,
            Self::Pieces(it) => it.allowed_origin,
        }
    }

    /// The memory of a body, apart from the input.
    pub(super) fn held_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Streamed(it) => it.held_bytes(),
            Self::Length(it) => it.long.as_ref().map_or(0, |long| long.outline.held_bytes()),
            Self::Pieces(it) => it.held_bytes(),
        }
    }

    /// The head of its request, if that is no longer in the input.
    pub(super) fn head(&self) -> Option<&[u8]> {
        if let Self::Pieces(it) = self { Some(&it.head) } else { None }
    }

    /// Whether a part of the body has arrived that a later turn decodes.
    pub(super) fn is_decoding(&self) -> bool {
        match self {
            Self::Pieces(it) => it.is_decoding(),
            Self::Streamed(it) => it.is_decoding(),
            Self::None | Self::Length(_) => false,
        }
    }

    /// Whether a part of the body has arrived that is decoded when the service has room.
    pub(super) fn has_undecoded_stream(&self) -> bool {
        matches!(self, Self::Streamed(it) if it.has_undecoded())
    }

    pub(super) fn wait_state(&self, input_is_empty: bool, limits: &Limits) -> WaitState {
        match self {
            Self::Length(it) => WaitState::Body { total: body_time(it.bytes_needed, limits) },
            Self::Pieces(it) => WaitState::Body { total: body_time(it.received_len(), limits) },
            Self::Streamed(it) => it.wait_state(limits),
            Self::None if input_is_empty => WaitState::Request,
            Self::None => WaitState::Head,
        }
    }
}

impl PlainConnection {
    /// Waits for the rest of a request of `total` bytes.
    #[cold]
    pub(super) fn wait_for_body<S: Service>(
        &mut self,
        head: &Head<'_>,
        total: usize,
        is_head_only: bool,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        if let Some(step) = self.refuse_or_continue(head, is_head_only, environment) {
            return step;
        }
        if total - head.len() > WHOLE_BYTES_MAX && streams_body(head, environment) {
            return self.begin_streamed_length(head, environment);
        }
        let is_long = total > environment.limits.long_bytes_min && head.is_call();
        let body = LengthBody {
            bytes_needed: total,
            long: is_long.then(|| LongBody::after(head)),
            frame_at: head.is_call().then(|| head.len()),
            is_frame_type: head.header("Content-Type") == Some(FRAME_MEDIA_TYPE.as_bytes()),
            allowed_origin: self.origin_of(head, environment),
        };
        if let Protocol::Http(http) = &mut self.protocol {
            http.body = Body::Length(Box::new(body));
        }
        Step::Incomplete
    }

    /// Refuses a body without memory for it; asks for it if the client waits for that. Returns the
    /// step of a request that is refused, or waits.
    fn refuse_or_continue<S: Service>(
        &mut self,
        head: &Head<'_>,
        is_head_only: bool,
        environment: &mut Environment<'_, S>,
    ) -> Option<Step> {
        if environment.scratch.is_full(environment.limits) {
            return Some(self.refuse_request(head, &HttpError::Overloaded, environment));
        }
        if head.expect_continue() && is_head_only {
            if !self.exchanges.is_empty() {
                // The interim reply goes out after the replies to earlier requests.
                self.reading.handle(ReadEvent::Wait);
                return Some(Step::Incomplete);
            }
            http1::continue_100(environment.out);
        }
        None
    }

    #[cold]
    pub(super) fn begin_pieces<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let bytes_max = http_route::body_bytes_max(head, environment);
        let source = match BodySource::new(head, bytes_max) {
            Ok(source) => source,
            Err(error) => return self.refuse_request(head, &error, environment),
        };
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Step::Incomplete;
        }
        let is_head_only = rest.len() == head.len();
        if let Some(step) = self.refuse_or_continue(head, is_head_only, environment) {
            return step;
        }
        if streams_body(head, environment) {
            return self.begin_streamed(head, source, environment);
        }
        let mut body = PiecewiseBody::new(head, source);
        body.allowed_origin = self.origin_of(head, environment);
        if let Protocol::Http(http) = &mut self.protocol {
            http.body = Body::Pieces(Box::new(body));
        }
        Step::Consumed(head.len())
    }

    /// Takes the next bytes of the body.
    #[inline(never)]
    pub(super) fn step_pieces<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Some(body) = self.piecewise_body() else { return Step::Incomplete };
        if body.is_decoding() {
            return Step::Incomplete;
        }
        match body.receive(rest, environment.limits) {
            Err(error) => self.refuse_body(&error, environment),
            Ok(taken) => {
                self.end_pieces(environment);
                Step::Consumed(taken)
            }
        }
    }

    /// Decodes another piece of a body or a message that has arrived.
    pub(super) fn decode_piece<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        if self.is_websocket() {
            self.inflate_further(environment);
        } else if self.streams_body() {
            self.decode_streamed(environment);
        } else if let Some(body) = self.piecewise_body() {
            match body.decode(environment.limits) {
                Err(error) => _ = self.refuse_body(&error, environment),
                Ok(()) => self.end_pieces(environment),
            }
        }
        if !self.is_decoding() && !self.has_undecoded_stream() && !self.input.is_empty() {
            self.process_input(environment);
        }
        self.update_wait_state(environment);
    }

    /// Whether the connection waits for the next turn, by [`Connection::decode_piece`].
    ///
    /// [`Connection::decode_piece`]: super::Connection::decode_piece
    pub fn is_decoding(&self) -> bool {
        self.reading.takes_requests()
            && match &self.protocol {
                Protocol::Http(http) => http.body.is_decoding(),
                Protocol::WebSocket(socket) => socket.inflating.is_some(),
                _ => false,
            }
    }

    fn piecewise_body(&mut self) -> Option<&mut PiecewiseBody> {
        let Protocol::Http(http) = &mut self.protocol else { return None };
        if let Body::Pieces(body) = &mut http.body { Some(body) } else { None }
    }

    /// Runs the request if its body is complete.
    fn end_pieces<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let Protocol::Http(http) = &mut self.protocol else { return };
        if matches!(&http.body, Body::Pieces(body) if body.is_complete())
            && let Body::Pieces(body) = mem::take(&mut http.body)
        {
            self.run_pieces(*body, environment);
        }
    }

    /// Answers a request whose body is complete, and whose head was accepted before. If the worker
    /// is overloaded now, it refuses the request.
    fn run_pieces<S: Service>(
        &mut self,
        pieces: PiecewiseBody,
        environment: &mut Environment<'_, S>,
    ) {
        let PiecewiseBody { head, body, outline, .. } = pieces;
        let head = http1::parse_head(&head, &environment.limits.head);
        let Ok(Some(head)) = head else { return };
        let head = environment.limits.call_paths.apply(head);
        let is_last = self.is_last(self.requests + 1, environment);
        let Ok(reply_headers) = self.check_or_refuse(&head, is_last, environment) else {
            return;
        };
        if let Protocol::Http(http) = &self.protocol
            && let Some(identity) = &http.identity
        {
            environment.service.set_identity(identity);
        }
        let start = self.begin_authenticated(environment);
        self.run_whole(&head, body, &outline, &reply_headers, environment);
        self.end_authenticated(start, &head, &reply_headers, environment);
    }

    /// Answers a request whose body arrived in pieces.
    fn run_whole<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: Vec<u8>,
        outline: &DocumentOutline,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        if !head.is_call()
            || body.len() <= environment.limits.long_bytes_min
            || !outline.has_requests()
        {
            return self.run_request(head, &body, reply_headers, environment);
        }
        let document = Arc::new(body);
        environment.service.share(Some(&document));
        self.run_long_request(head, &document, outline, reply_headers, environment);
        environment.service.share(None);
    }
}

/// Whether the service takes the body of a request while it arrives.
fn streams_body<S: Service>(head: &Head<'_>, environment: &Environment<'_, S>) -> bool {
    !head.is_call() && environment.service.streams_body(head)
}
