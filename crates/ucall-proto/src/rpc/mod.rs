//! JSON-RPC 2.0: requests as slices of their document, replies written in place.
//!
//! Source: <https://www.jsonrpc.org/specification>, cited by section.

mod document;
mod error;
pub(crate) mod frame;
mod items;
pub(crate) mod mcp;
mod meta;
mod outline;
mod parts;
mod reply;
mod request;
mod response;
mod route;

pub(crate) use document::{Batch, Content, scan_document};
pub use error::{AuthenticationError, CallRefusal, RpcError};
pub(crate) use items::{ItemFormat, ItemToken};
pub use mcp::McpRequest;
pub use meta::Meta;
pub(crate) use outline::DocumentOutline;
pub use parts::{
    Binary, Part, PartError, Parts, ResultFormat, ResultPart, inline_results, part_reference,
    part_references,
};
pub(crate) use reply::{AROUND_RESULT_BYTES, ReplyLimit, too_large, write_error_reply};
pub use reply::{Reply, reply_apart};
pub(crate) use request::Request;
pub use response::{Response, ResponseBody};
pub(crate) use route::ROUTE_ID;

use std::any::Any;
use std::sync::Arc;

use crate::endpoint::{Endpoint, ParamKind};
use crate::http1::{ErrorBody, Head, Methods};
use crate::json::{Member, Text};
use crate::tls::TlsSession;
use crate::websocket::MessageKind;

/// One call of a procedure, as slices of its request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The method's name.
    pub method: Text<'a>,
    /// The text of the params, an array or an object; `None` when there are none.
    pub params: Option<&'a [u8]>,
    /// The positions of the params' members, or items. `None` if there are more than 32, or if
    /// [`Service::NEEDS_MEMBERS`] is false; [`collect_members`](crate::json::collect_members) finds
    /// them.
    pub members: Option<&'a [Member]>,
    /// The text of the id, byte for byte; `None` makes it a notification (§4.1).
    pub id: Option<&'a [u8]>,
    /// The member `_meta` of its request.
    pub meta: Option<Meta<'a>>,
    /// Names the call while it is deferred.
    pub number: CallNumber,
    /// The head of its HTTP request; `None` over raw TCP and WebSocket.
    pub head: Option<&'a Head<'a>>,
    /// What TLS has agreed on; `None` without TLS.
    pub session: Option<&'a Arc<TlsSession>>,
    /// The request of MCP that makes the call, if one does.
    pub mcp: Option<&'a McpRequest<'a>>,
}

/// The number of a call on its connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallNumber {
    /// Counts the requests of the connection.
    pub request: u64,
    /// Counts the calls of a batch from 1; 0 outside of one.
    pub item: u32,
}

/// What a service did with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum CallOutcome {
    /// The reply is written.
    Done,
    /// [`Connection::complete`](crate::Connection::complete) will take the outcome.
    Deferred,
    /// [`Connection::complete`](crate::Connection::complete) will take the outcome, after
    /// [`Connection::write_item`](crate::Connection::write_item) has taken items. Only for a call
    /// that [takes items](Call::takes_items).
    Stream,
    /// As [`CallOutcome::Stream`], but there may be no items. Over HTTP the reply is then an
    /// ordinary one.
    Reporting,
    /// It is a notification that asks to cancel the call with the id in its params.
    CancelRequest,
}

impl CallOutcome {
    /// Whether [`Connection::complete`](crate::Connection::complete) will take the outcome.
    pub fn is_deferred(self) -> bool {
        matches!(self, Self::Deferred | Self::Stream | Self::Reporting)
    }
}

/// The identity of an authenticated caller, in a type of the service. Stored until the request is
/// complete.
pub type CallerIdentity = Arc<dyn Any + Send + Sync>;

/// Runs calls. The layer above implements it.
pub trait Service {
    /// Whether the scan notes [`Call::members`]. A service that reads its params in order does not
    /// need them.
    const NEEDS_MEMBERS: bool = true;

    /// Runs one call: writes the reply, or copies what it needs of the call and defers the reply.
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome;

    /// The calls that follow are parts of `document`, whose memory they may keep instead of copies;
    /// `None` after the last of them. Only long documents are shared.
    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        let _ = document;
    }

    /// What the calls that follow have beside their text; `None` after the last of them. Only
    /// called for documents that have parts, or whose results have another format than JSON.
    fn set_binary(&mut self, binary: Option<&Binary>) {
        let _ = binary;
    }

    /// The parts of the result of the last call, if it is [`CallOutcome::Done`].
    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        Vec::new()
    }

    /// Whether each request needs [`Service::authenticate`].
    #[inline]
    fn requires_authentication(&self) -> bool {
        false
    }

    /// Authenticates a request before its body is read: over HTTP each one, by its head; over raw
    /// TCP the first one, for the whole connection; over WebSocket the upgrade, by its head, for
    /// all messages. `session` is the session of TLS.
    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let _ = (head, session);
        Err(AuthenticationError::Failed)
    }

    /// The `WWW-Authenticate` of a request that is refused, if it depends on the request. `scopes`
    /// is `None` for a 401; for a 403 it has the scopes that the called procedure needs, besides
    /// those that every request needs.
    fn challenge(
        &self,
        head: &Head<'_>,
        is_tls: bool,
        scopes: Option<&[String]>,
    ) -> Option<String> {
        let _ = (head, is_tls, scopes);
        None
    }

    /// Why the last call was refused, if that was for its caller and it was no part of a batch: a
    /// request of HTTP gets a status for it, in place of the reply to the call.
    fn take_refusal(&mut self) -> Option<CallRefusal> {
        None
    }

    /// The scopes that the called procedure needs, if the last call was refused for lack of one.
    fn take_missing_scopes(&mut self) -> Option<Arc<[String]>> {
        None
    }

    /// The request with this head asks to make the connection a WebSocket, and will be
    /// authenticated.
    fn upgrading(&mut self, head: &Head<'_>) {
        let _ = head;
    }

    /// The methods of the routes of a path, which answer HTTP requests other than calls.
    fn route_methods(&self, path: &[u8]) -> Methods {
        let _ = path;
        Methods::default()
    }

    /// What the bodies of the errors of HTTP itself are for requests of a path.
    fn error_body(&self, path: &[u8]) -> ErrorBody {
        let _ = path;
        ErrorBody::Text
    }

    /// Whether the request of a route needs no authentication.
    fn is_public(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// Whether a request goes to an application that takes what nothing else answers, and that
    /// has its own rules for browsers, OPTIONS included.
    fn is_mounted(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// Whether the request of a route is a health check, which an overloaded server answers, too.
    fn is_health_check(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// Answers a request of a route, as [`Service::call`] does. The method of `call` is the path;
    /// its [`Call::head`] has the rest. The response, [`Reply::response`] or the deferred result,
    /// is an HTTP response without `Date` and `Connection`. It may come in parts, as items; its
    /// first header is then `Transfer-Encoding: chunked`, unless it states the body's length.
    fn respond(&mut self, call: &Call<'_>, body: &[u8], reply: &mut Reply<'_>) -> CallOutcome {
        let _ = (call, body, reply);
        CallOutcome::Done
    }

    /// Whether the route of a request takes its body in parts.
    fn streams_body(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// The longest body of the route of a request, if that is not
    /// [`body_bytes_max`](crate::Limits::body_bytes_max).
    fn body_bytes_max(&self, head: &Head<'_>) -> Option<usize> {
        let _ = head;
        None
    }

    /// [`Service::respond`] for a request whose body follows in parts.
    fn respond_streamed(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        self.respond(call, &[], reply)
    }

    /// Whether there is room for a part of the body of a request. If not,
    /// [`Connection::resume`](crate::Connection::resume) follows.
    fn takes_body(&mut self, number: CallNumber) -> bool {
        let _ = number;
        true
    }

    /// Takes a part of the body of a request, which may have ended.
    fn take_body_part(&mut self, number: CallNumber, part: &[u8], is_last: bool) {
        let _ = (number, part, is_last);
    }

    /// Takes a message of a WebSocket that it has accepted. An application accepts one by a part of
    /// its response that begins with `HTTP/1.1 101` and no reason. Frames follow as items, and the
    /// result is the payload of the Close frame. Text is UTF-8.
    fn take_message(&mut self, number: CallNumber, kind: MessageKind, payload: &[u8]) {
        let _ = (number, kind, payload);
    }

    /// A WebSocket that it has accepted has ended: with the code of the client's Close frame, 1005
    /// without one there, or with that of the server's own. Only the first call counts.
    fn end_messages(&mut self, number: CallNumber, code: u16, reason: &str) {
        let _ = (number, code, reason);
    }

    /// What runs a POST to another path than `/`, if it is no request of a route.
    fn endpoint(&self, head: &Head<'_>) -> Option<Endpoint> {
        let _ = head;
        None
    }

    /// What a param of a method takes of a form, whose values are texts.
    fn param_kind(&self, method: &str, name: &str) -> ParamKind {
        let _ = (method, name);
        ParamKind::Json
    }

    /// The name of the first param of a method, if that is known.
    fn first_param(&self, method: &str) -> Option<String> {
        let _ = method;
        None
    }

    /// Whether the requests of a path are those of the Model Context Protocol.
    fn serves_mcp(&self, head: &Head<'_>) -> bool {
        let _ = head;
        false
    }

    /// Whether clients reply to requests of the server, by documents of the Model Context Protocol.
    fn takes_responses(&self) -> bool {
        false
    }

    /// Runs a request of the Model Context Protocol, as [`Service::call`] does.
    fn call_mcp(
        &mut self,
        call: &Call<'_>,
        request: &McpRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let _ = (call, request, reply);
        CallOutcome::Done
    }

    /// Cancels a deferred call, whose caller has asked for that and gets its reply now.
    fn cancel(&mut self, number: CallNumber) {
        let _ = number;
    }

    /// Sets the caller of the following calls.
    fn set_identity(&mut self, identity: &CallerIdentity) {
        let _ = identity;
    }
}
