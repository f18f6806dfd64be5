//! Requests of routes: HTTP requests other than calls that the service answers.
//!
//! They share everything before the body with calls: the rules for browsers, authentication, the
//! limits. A request of a route waits for the replies to earlier requests, because its response may
//! be a stream:
//!
//! | the service gives | HTTP/1.1 | HTTP/1.0 |
//! |---|---|---|
//! | a whole response | as it is | as it is |
//! | first a head | `Transfer-Encoding: chunked` | `Connection: close` |
//! | then parts of the body | chunks | as they are |
//! | last an empty text | the last chunk | the end of the connection |
//! | last an error | the end of the connection, without the last chunk | likewise |

use std::sync::Arc;

use super::Environment;
use crate::http1::{
    ConnectionOption, Head, HttpError, Method, Methods, ReplyHeaders, ReplyWriter, Target, Version,
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
    }
}

/// Checks that there is a route for a request.
#[cold]
pub(super) fn check<S: Service>(head: &Head<'_>, service: &S) -> Result<(), HttpError> {
    match methods(head, service) {
        allow if allow.contains(head.method()) => Ok(()),
        allow if allow.is_empty() => Err(HttpError::NotFound),
        allow => Err(HttpError::MethodNotAllowed { allow }),
    }
}

/// Whether a request goes to a route that needs no authentication.
pub(super) fn is_public<S: Service>(head: &Head<'_>, service: &S) -> bool {
    !head.is_call() && service.is_public(head)
}

/// Runs a complete request of a route; returns its response, which is empty if it is deferred.
pub(super) fn respond<S: Service>(
    head: &Head<'_>,
    body: &[u8],
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
        in_batch: false,
    };
    let mut response = Vec::new();
    let limit = ReplyLimit::after(&response, environment.limits.reply_bytes_max);
    let mut reply = Reply::new(&mut response, Some(ROUTE_ID), &limit);
    let outcome = environment.service.respond(&call, body, &mut reply);
    reply.end(outcome == CallOutcome::Done);
    (outcome, response)
}

/// How the response of a route is framed.
#[derive(Debug)]
pub(super) struct ResponseFraming {
    /// Whether the body is omitted.
    is_head: bool,
    version: Version,
    has_begun: bool,
}

impl ResponseFraming {
    pub(super) fn new(head: &Head<'_>) -> Self {
        Self { is_head: head.method() == Method::Head, version: head.version(), has_begun: false }
    }

    /// Appends a part of a response whose length is unknown: first its head, then its body.
    pub(super) fn write_part(
        &mut self,
        part: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        replies: &ReplyWriter,
        out: &mut Vec<u8>,
    ) {
        if !self.has_begun {
            self.has_begun = true;
            match self.version {
                Version::Http11 => replies.chunked_head(out, part, reply_headers),
                Version::Http10 => {
                    let close =
                        ReplyHeaders { connection: ConnectionOption::Close, ..*reply_headers };
                    replies.response(out, part, &close, self.is_head);
                }
            }
        } else if self.is_head || part.is_empty() {
            // An empty chunk would be the last one.
        } else if self.version == Version::Http10 {
            out.extend_from_slice(part);
        } else {
            out.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            out.extend_from_slice(part);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Appends a whole response, or the end of one that has begun. Returns `false` if the
    /// connection has to close.
    pub(super) fn end(
        &self,
        text: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        replies: &ReplyWriter,
        out: &mut Vec<u8>,
    ) -> bool {
        if !self.has_begun {
            replies.response(out, text, reply_headers, self.is_head);
            return true;
        }
        let is_whole = text.is_empty();
        if is_whole && !self.is_head && self.version == Version::Http11 {
            out.extend_from_slice(b"0\r\n\r\n");
        }
        is_whole && self.version == Version::Http11
    }
}
