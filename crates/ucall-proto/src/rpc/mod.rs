//! JSON-RPC 2.0: requests as slices of their document, replies written in place.
//!
//! Source: <https://www.jsonrpc.org/specification>, quoted by its section numbers.

mod document;
mod error;
mod reply;
mod request;

pub(crate) use document::{Batch, Content, scan_document};
pub use error::RpcError;
pub use reply::Reply;
pub(crate) use reply::{ReplyLimit, write_error_reply};
pub(crate) use request::Request;

use std::any::Any;
use std::sync::Arc;

use crate::http1::Head;
use crate::json::{Member, Text};
use crate::tls::TlsSession;

/// One call of a procedure, as slices of the request it came in.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The method's name.
    pub method: Text<'a>,
    /// The text of the params, an array or an object; `None` when there are none.
    pub params: Option<&'a [u8]>,
    /// The positions of the params' members, or items; `None` if the scan did not note them: there
    /// are more than 32, or [`Service::NEEDS_MEMBERS`] is false. Then
    /// [`collect_members`](crate::json::collect_members) finds them.
    pub members: Option<&'a [Member]>,
    /// The text of the id, byte for byte; `None` makes it a notification (§4.1).
    pub id: Option<&'a [u8]>,
    /// Names the call on its connection for as long as it is deferred.
    pub exchange: ExchangeId,
    /// The head of the HTTP request it came in; `None` over raw TCP.
    pub head: Option<&'a Head<'a>>,
    /// What TLS has agreed on; `None` without TLS.
    pub session: Option<&'a Arc<TlsSession>>,
}

/// Names one call of one connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ExchangeId {
    /// Counts the requests of the connection.
    pub request: u64,
    /// Counts the calls of a batch; 0 outside of one.
    pub item: u32,
}

/// What a service did with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum CallOutcome {
    /// The reply is written.
    Done,
    /// The reply comes later, through [`Connection::complete`](crate::Connection::complete).
    Deferred,
}

/// Who a request comes from, in words of the service. Kept while the rest of the request comes.
pub type CallerIdentity = Arc<dyn Any + Send + Sync>;

/// Why a request is not let in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthenticationError {
    /// It does not show who it comes from, or that is nobody who may call: 401, or -32004.
    Unauthorized,
    /// That could not be told, which is the service's own fault: 500, or -32603.
    Failed,
}

/// Runs calls. The layer above implements it.
pub trait Service {
    /// Whether the scan notes [`Call::members`]. A service that reads its params from front to back
    /// saves that work.
    const NEEDS_MEMBERS: bool = true;

    /// Runs one call: writes the reply, or takes what it needs of the call and defers.
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome;

    /// Whether requests have to be let in by [`Service::authenticate`].
    #[inline]
    fn requires_authentication(&self) -> bool {
        false
    }

    /// Lets a request in, or not, before its body is read: each over HTTP, by its head; over raw
    /// TCP the first of a connection for all of them. `session` is what TLS has agreed on.
    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let _ = (head, session);
        Err(AuthenticationError::Failed)
    }

    /// The calls that follow are of somebody who was let in.
    fn set_identity(&mut self, identity: &CallerIdentity) {
        let _ = identity;
    }
}
