//! Bodies that are passed to the service while they arrive, for routes that take them so.
//!
//! The request runs when its head is complete, and its body follows in parts. While the service has
//! no room for the next part, the bytes wait in the input, and the connection receives none.
//!
//! | framing | ends |
//! |---|---|
//! | `Length` | after so many bytes |
//! | `Chunked` | with the last chunk |
//!
//! Nothing follows a body that is invalid, late or cut off: the call is cancelled, and the
//! connection closes, with an error unless its response has begun.

use super::http_body::Body;
use super::http_framing::HttpFraming;
use super::http_route;
use super::streamed_body::{BodyFraming, StreamedBody};
use super::{Environment, PlainConnection, Protocol, ReadEvent, Step};
use crate::http1::{ChunkedDecoder, ChunkedLimits, ConnectionOption, Head, HttpError};
use crate::rpc::{CallNumber, Service};

/// Bodies up to this size are received whole: most of them arrive with their head.
const WHOLE_BYTES_MAX: usize = 64 << 10;
/// The most that the service gets at once, though more may have arrived while it had no room.
const PART_BYTES_MAX: usize = 64 << 10;

impl PlainConnection {
    /// Runs a request whose body has not arrived, if its route takes it in parts. `length` is
    /// `None` for one in chunks.
    pub(super) fn begin_streamed<S: Service>(
        &mut self,
        head: &Head<'_>,
        length: Option<usize>,
        environment: &mut Environment<'_, S>,
    ) -> Option<Step> {
        if head.is_call()
            || head.header("Content-Encoding").is_some()
            || length.is_some_and(|length| length <= WHOLE_BYTES_MAX)
            || !environment.service.streams_body(head)
        {
            return None;
        }
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Some(Step::Incomplete);
        }
        let is_last = self.is_last(self.requests + 1, environment);
        let reply_headers = match self.check_or_refuse(head, is_last, environment) {
            Ok(reply_headers) => reply_headers,
            Err(step) => return Some(step),
        };
        let framing = match length {
            Some(left) => BodyFraming::Length { left },
            None => BodyFraming::Chunked(ChunkedDecoder::default()),
        };
        let number = CallNumber { request: self.requests + 1, item: 0 };
        let is_last = reply_headers.connection == ConnectionOption::Close;
        let bytes_max = http_route::body_bytes_max(head, environment);
        let allowed_origin = reply_headers.allowed_origin.map(|it| it.as_bytes().into());
        let received = 0;
        let body = StreamedBody { number, framing, bytes_max, received, is_last, allowed_origin };
        self.set_body(body);
        self.run_streamed_route(head, &reply_headers, environment);
        Some(Step::Consumed(head.len()))
    }

    pub(super) fn set_body(&mut self, body: StreamedBody) {
        if let Protocol::Http(http) = &mut self.protocol {
            http.body = Body::Streamed(Box::new(body));
        }
    }

    /// Whether a body is being passed on.
    pub(super) fn streams_body(&self) -> bool {
        matches!(&self.protocol, Protocol::Http(http) if matches!(http.body, Body::Streamed(_)))
    }

    /// Passes on what has arrived of a body.
    #[inline(never)]
    pub(super) fn step_streamed<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        let Body::Streamed(body) = &mut http.body else { return Step::Incomplete };
        let is_upgrade = matches!(body.framing, BodyFraming::Upgrade { .. });
        if is_upgrade || !environment.service.takes_body(body.number) {
            self.reading.handle(ReadEvent::Wait);
            return Step::Incomplete;
        }
        let rest = rest.get(..PART_BYTES_MAX).unwrap_or(rest);
        let mut decoded = Vec::new();
        let (part, used, is_done) = match &mut body.framing {
            BodyFraming::Length { left } => {
                let used = rest.len().min(*left);
                *left -= used;
                (rest.get(..used).unwrap_or_default(), used, *left == 0)
            }
            BodyFraming::Chunked(decoder) => {
                let limits = ChunkedLimits {
                    body_bytes_max: body.bytes_max as u64,
                    overhead_bytes_max: environment.limits.chunk_overhead_bytes_max,
                };
                match decoder.decode(rest, &mut decoded, &limits) {
                    Ok(progress) => (decoded.as_slice(), progress.consumed, progress.is_done),
                    Err(error) => return self.refuse_streamed(&error, environment),
                }
            }
            BodyFraming::Upgrade { .. } => return Step::Incomplete,
        };
        body.received += part.len();
        let (number, is_last) = (body.number, body.is_last);
        environment.service.take_body_part(number, part, is_done);
        if is_done {
            http.body = Body::None;
            if is_last {
                self.discard_input();
            }
        }
        Step::Consumed(used)
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
