//! Requests of routes: HTTP requests other than calls that the service answers.
//!
//! They share everything before the body with calls: the rules for browsers, authentication, the
//! limits. A request of a route waits for the replies to earlier requests, because its response may
//! be a stream:
//!
//! | the service gives | HTTP/1.1 | HTTP/1.0 |
//! |---|---|---|
//! | a whole response | as it is | as it is |
//! | first a head that says chunked | as it is | with `Connection: close` instead |
//! | then parts of the body | in chunks | as they are |
//! | last an empty text | the last chunk | the end of the connection |
//! | last an error | the end of the connection, without the last chunk | likewise |

use std::borrow::Cow;
use std::sync::Arc;

use super::Environment;
use super::compression::{ReplyStart, StreamEncoder};
use crate::coding::Flush;
use crate::http1::{
    BodyLength, ConnectionOption, Head, HttpError, Method, Methods, Negotiation, ReplyHeaders,
    ReplyWriter, Target, Version, without_chunked,
};
use crate::json::Text;
use crate::rpc::{Call, CallNumber, CallOutcome, ROUTE_ID, Reply, ReplyLimit, Service};
use crate::tls::TlsSession;

/// The methods that the path of a request has.
pub(super) fn methods<S: Service>(head: &Head<'_>, service: &S) -> Methods {
    let (path, _) = head.path_and_query();
    match head.target() {
        Target::Root | Target::Asterisk => Methods::CALLS.union(service.route_methods(path)),
        Target::WebSocket | Target::Other(_) => service.route_methods(path),
        Target::Authority => Methods::NONE,
    }
}

/// Checks that there is a route for a request. One with a limit of its own refuses a longer body
/// here, because that may arrive with the head.
#[cold]
pub(super) fn check<S: Service>(head: &Head<'_>, service: &S) -> Result<(), HttpError> {
    match methods(head, service) {
        allow if allow.contains(head.method()) => {
            let limit = own_bytes_max(head, service);
            limit.map_or(Ok(()), |limit| check_length(head, limit))
        }
        allow if allow.is_empty() && head.target() != Target::Authority => Err(HttpError::NotFound),
        allow => Err(HttpError::MethodNotAllowed { allow }),
    }
}

/// The longest body of a request.
pub(super) fn body_bytes_max<S: Service>(
    head: &Head<'_>,
    environment: &Environment<'_, S>,
) -> usize {
    own_bytes_max(head, environment.service).unwrap_or(environment.limits.body_bytes_max)
}

fn own_bytes_max<S: Service>(head: &Head<'_>, service: &S) -> Option<usize> {
    if head.is_call() { None } else { service.body_bytes_max(head) }
}

/// Checks that the body of a request may be longer than the limit of the server.
#[cold]
pub(super) fn check_long<S: Service>(
    head: &Head<'_>,
    environment: &Environment<'_, S>,
) -> Result<(), HttpError> {
    check_length(head, body_bytes_max(head, environment))
}

/// Checks the length of the body that a head states.
fn check_length(head: &Head<'_>, bytes_max: usize) -> Result<(), HttpError> {
    let limit = bytes_max as u64;
    match head.body() {
        BodyLength::Length(length) | BodyLength::Coded(length) if length > limit => {
            Err(HttpError::BodyTooLarge { limit })
        }
        _ => Ok(()),
    }
}

/// Whether a request goes to a route that needs no authentication.
pub(super) fn is_public<S: Service>(head: &Head<'_>, service: &S) -> bool {
    !head.is_call() && service.is_public(head)
}

/// Whether a request goes to a mounted application.
pub(super) fn is_mounted<S: Service>(head: &Head<'_>, service: &S) -> bool {
    !head.is_call() && service.is_mounted(head)
}

/// Whether a request is a health check.
pub(super) fn is_health_check<S: Service>(head: &Head<'_>, service: &S) -> bool {
    !head.is_call() && service.is_health_check(head)
}

/// Runs a request of a route, whose body follows in parts if there is none. Returns its response,
/// which is empty if it is deferred.
pub(super) fn respond<S: Service>(
    head: &Head<'_>,
    body: Option<&[u8]>,
    number: CallNumber,
    session: Option<&Arc<TlsSession>>,
    environment: &mut Environment<'_, S>,
) -> (CallOutcome, Vec<u8>) {
    let call = Call {
        method: Text::new(head.path_and_query().0, false),
        params: None,
        members: None,
        id: Some(ROUTE_ID),
        number,
        head: Some(head),
        session,
        meta: None,
        mcp: None,
    };
    let mut response = Vec::new();
    let limit = ReplyLimit::after(&response, environment.limits.reply_bytes_max);
    let mut reply = Reply::new(&mut response, Some(ROUTE_ID), &limit);
    let outcome = match body {
        Some(body) => environment.service.respond(&call, body, &mut reply),
        None => environment.service.respond_streamed(&call, &mut reply),
    };
    reply.end(outcome == CallOutcome::Done);
    (outcome, response)
}

/// How the response of a route is framed.
#[derive(Debug)]
pub(super) struct ResponseFraming {
    /// Whether the body is omitted.
    is_head: bool,
    version: Version,
    /// `None` until the first part.
    body: Option<BodyFraming>,
    /// Set with the first part, if the others are compressed.
    encoder: Option<StreamEncoder>,
}

/// How the parts of a body are framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BodyFraming {
    /// The head states the length.
    Length,
    Chunked,
    /// The connection ends after the body.
    UntilClose,
}

impl ResponseFraming {
    pub(super) fn new(head: &Head<'_>) -> Self {
        let is_head = head.method() == Method::Head;
        Self { is_head, version: head.version(), body: None, encoder: None }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.body.is_some()
    }

    /// Appends a part of a response: first its head, then its body.
    pub(super) fn write_part<S>(
        &mut self,
        part: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let Some(body) = self.body else {
            return self.begin(part, reply_headers, environment);
        };
        let out = &mut *environment.out;
        match (body, &mut self.encoder) {
            // An empty chunk would be the last one.
            _ if self.is_head || part.is_empty() => {}
            (BodyFraming::Length | BodyFraming::UntilClose, _) => out.extend_from_slice(part),
            (BodyFraming::Chunked, Some(encoder)) => encoder.write_chunk(part, Flush::Item, out),
            (BodyFraming::Chunked, None) => {
                out.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
                out.extend_from_slice(part);
                out.extend_from_slice(b"\r\n");
            }
        }
    }

    fn begin<S>(
        &mut self,
        part: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let (mut part, negotiation) = (Cow::Borrowed(part), reply_headers.negotiation);
        if matches!(negotiation, Negotiation::Coding(_))
            && !self.is_head
            && self.version == Version::Http11
            && without_chunked(&part).is_some()
        {
            self.encoder = StreamEncoder::of_response(part.to_mut(), negotiation, environment);
        }
        let start = ReplyStart::of(environment);
        let (replies, out) = (&*environment.replies, &mut *environment.out);
        let framing = match (without_chunked(&part), self.version) {
            (None, _) => BodyFraming::Length,
            (Some(_), Version::Http11) => BodyFraming::Chunked,
            (Some(part), Version::Http10) => {
                let connection = ConnectionOption::Close;
                let close = ReplyHeaders { connection, ..*reply_headers };
                self.body = Some(BodyFraming::UntilClose);
                return replies.response(out, &part, &close, self.is_head);
            }
        };
        self.body = Some(framing);
        replies.response(out, &part, reply_headers, self.is_head);
        // Most responses are whole with their first part.
        if framing == BodyFraming::Length {
            start.compress(negotiation, environment);
        }
    }

    /// Appends a whole response, or the end of one that has begun. Returns `false` if the
    /// connection has to close.
    pub(super) fn end(
        mut self,
        text: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        replies: &ReplyWriter,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(body) = self.body else {
            replies.response(out, text, reply_headers, self.is_head);
            return true;
        };
        let is_whole = text.is_empty();
        if is_whole && !self.is_head && body == BodyFraming::Chunked {
            if let Some(encoder) = &mut self.encoder {
                encoder.write_chunk(b"", Flush::End, out);
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
        is_whole && body != BodyFraming::UntilClose
    }
}
