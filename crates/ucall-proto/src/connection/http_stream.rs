//! Bodies that are passed to the service while they arrive, for routes that take them so.
//!
//! The request runs when its head is complete, and its body follows in parts. While the service has
//! no room for the next part, the bytes wait in the input, and the connection receives none.
//!
//! | the body | its parts |
//! |---|---|
//! | with a Content-Length, or in chunks | the bytes received so far |
//! | in a content coding | pieces that are decoded (`pieces.rs`), one a turn while there is room |
//!
//! Nothing follows a body that is invalid, late or cut off: the call is cancelled, and the
//! connection closes, with an error unless its response has begun.

use super::http_body::Body;
use super::http_framing::HttpFraming;
use super::http_route;
use super::pieces::BodySource;
use super::streamed_body::{StreamedBody, StreamedContent};
use super::{Environment, PlainConnection, Protocol, ReadEvent, Step};
use crate::Limits;
use crate::http1::{self, ConnectionOption, Head, HttpError};
use crate::rpc::{CallNumber, Service};

/// The most that the service gets at once, though more may have arrived while it had no room.
const PART_BYTES_MAX: usize = 64 << 10;

impl PlainConnection {
    /// Runs a request whose body has a length and has not arrived.
    pub(super) fn begin_streamed_length<S: Service>(
        &mut self,
        head: &Head<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Step::Incomplete;
        }
        match BodySource::new(head, http_route::body_bytes_max(head, environment)) {
            Ok(source) => self.begin_streamed(head, source, environment),
            Err(error) => self.refuse_request(head, &error, environment),
        }
    }

    /// Runs a request whose body follows in parts. It is the only one.
    pub(super) fn begin_streamed<S: Service>(
        &mut self,
        head: &Head<'_>,
        source: BodySource,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let is_last = self.is_last(self.requests + 1, environment);
        let reply_headers = match self.check_or_refuse(head, is_last, environment) {
            Ok(reply_headers) => reply_headers,
            Err(step) => return step,
        };
        let text = source.decoded_head(head);
        let decoded = text.as_deref().map(|text| http1::parse_head(text, &environment.limits.head));
        let decoded = decoded.and_then(Result::ok).flatten();
        let decoded = decoded.map(|head| environment.limits.call_paths.apply(head));
        self.set_body(StreamedBody {
            number: CallNumber { request: self.requests + 1, item: 0 },
            content: StreamedContent::Body(source),
            awaits_room: false,
            is_last: reply_headers.connection == ConnectionOption::Close,
            allowed_origin: reply_headers.allowed_origin.map(|it| it.as_bytes().into()),
        });
        self.run_streamed_route(decoded.as_ref().unwrap_or(head), &reply_headers, environment);
        Step::Consumed(head.len())
    }

    pub(super) fn set_body(&mut self, body: StreamedBody) {
        if let Protocol::Http(http) = &mut self.protocol {
            http.body = Body::Streamed(Box::new(body));
        }
    }

    fn streamed_body(&mut self) -> Option<&mut StreamedBody> {
        let Protocol::Http(http) = &mut self.protocol else { return None };
        if let Body::Streamed(body) = &mut http.body { Some(body) } else { None }
    }

    /// Whether a body is being passed on.
    pub(super) fn streams_body(&self) -> bool {
        matches!(&self.protocol, Protocol::Http(http) if matches!(http.body, Body::Streamed(_)))
    }

    /// Whether a body is being passed on of which not all has arrived.
    pub(super) fn awaits_body(&self, limits: &Limits) -> bool {
        let Protocol::Http(http) = &self.protocol else { return false };
        matches!(&http.body, Body::Streamed(body) if !body.ends_within(&self.input, limits))
    }

    /// Whether the next piece of a body is decoded before more of the input is read.
    pub(super) fn has_undecoded_stream(&self) -> bool {
        matches!(&self.protocol, Protocol::Http(http) if http.body.has_undecoded_stream())
    }

    /// Whether a piece of a body waits to be decoded. If so, records whether the service has room
    /// for it, so that the next turn decodes it.
    pub(super) fn poll_undecoded_stream<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let Some(body) = self.streamed_body().filter(|body| body.has_undecoded()) else {
            return false;
        };
        body.awaits_room = !environment.service.takes_body(body.number);
        true
    }

    /// Passes on what has arrived of a body.
    #[inline(never)]
    pub(super) fn step_streamed<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Some(StreamedBody { number, content, .. }) = self.streamed_body() else {
            return Step::Incomplete;
        };
        let source = match content {
            StreamedContent::Body(source)
                if !source.has_undecoded() && environment.service.takes_body(*number) =>
            {
                source
            }
            _ => {
                self.reading.handle(ReadEvent::Wait);
                return Step::Incomplete;
            }
        };
        let rest = rest.get(..PART_BYTES_MAX).unwrap_or(rest);
        match source.receive_part(rest, environment.limits) {
            Ok((part, used)) => {
                self.pass_on(&part, environment);
                Step::Consumed(used)
            }
            Err(error) => self.refuse_streamed(&error, environment),
        }
    }

    /// Decodes the next piece of the received bytes, if there is room for it.
    pub(super) fn decode_streamed<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.poll_undecoded_stream(environment);
        let Some(StreamedBody {
            content: StreamedContent::Body(source), awaits_room: false, ..
        }) = self.streamed_body()
        else {
            return;
        };
        let mut part = Vec::new();
        match source.decode(&mut part, environment.limits) {
            Ok(()) => self.pass_on(&part, environment),
            Err(error) => _ = self.refuse_streamed(&error, environment),
        }
        if self.reading.is_paused() && !self.has_undecoded_stream() {
            self.process_input(environment);
        }
    }

    /// Passes on a part of a body. If more of it is to be decoded, the input waits.
    fn pass_on<S: Service>(&mut self, part: &[u8], environment: &mut Environment<'_, S>) {
        let Some(StreamedBody { number, content: StreamedContent::Body(source), is_last, .. }) =
            self.streamed_body()
        else {
            return;
        };
        let (number, is_last, is_complete) = (*number, *is_last, source.is_complete());
        if source.has_undecoded() {
            self.reading.handle(ReadEvent::Wait);
        }
        if is_complete || !part.is_empty() {
            environment.service.take_body_part(number, part, is_complete);
        }
        if is_complete {
            if let Protocol::Http(http) = &mut self.protocol {
                http.body = Body::None;
            }
            if is_last {
                self.discard_input();
            }
        }
    }

    /// Ends a request whose body is passed on: with an error, unless its response has begun.
    #[cold]
    pub(super) fn refuse_streamed<S: Service>(
        &mut self,
        error: &HttpError,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        // It has waited for the replies to all others.
        let has_begun = self.exchanges.peek_framing().is_none_or(HttpFraming::has_begun);
        if let Protocol::Http(http) = &self.protocol
            && let Body::Streamed(body) = &http.body
        {
            environment.service.cancel(body.number);
        }
        self.exchanges.cancel();
        match has_begun {
            true => {
                self.discard_input();
                Step::Incomplete
            }
            false => self.refuse_body(error, environment),
        }
    }
}
