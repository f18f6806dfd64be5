//! Requests of routes: HTTP requests other than calls that the service answers.
//!
//! They share everything before the body with calls: the rules for browsers, authentication, the
//! limits, and their place in the order of replies.

use std::sync::Arc;

use super::Environment;
use crate::http1::{Head, HttpError, Methods, Target};
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
    };
    let mut response = Vec::new();
    let limit = ReplyLimit::after(&response, environment.limits.reply_bytes_max);
    let mut reply = Reply::new(&mut response, Some(ROUTE_ID), &limit);
    let outcome = environment.service.respond(&call, body, &mut reply);
    reply.end(outcome == CallOutcome::Done);
    (outcome, response)
}
