//! What a language has to implement to serve its functions.

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Id, Peer};
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::{
    AuthenticationError, Call, CallOutcome, CallerIdentity, ExchangeId, MemoryBudget, Reply,
    RpcError,
};

/// Names one call of one server for as long as somebody waits for its reply.
///
/// Both parts are never used twice, so that a reply that comes too late reaches nobody.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId {
    /// The connection it came from.
    pub connection: Id,
    /// The call on that connection.
    pub exchange: ExchangeId,
}

/// Where a call comes from.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The connection.
    pub connection: Id,
    /// Who is at the other end, once some procedure wants to know; see
    /// [`Procedures::want_peers`](crate::Procedures::want_peers).
    pub peer: Option<Peer>,
}

impl Caller {
    /// The name of one of its calls.
    #[inline]
    pub fn call_id(&self, call: &Call<'_>) -> CallId {
        CallId { connection: self.connection, exchange: call.exchange }
    }
}

/// Runs procedures of one language. One worker owns one handler and calls it from its own thread.
pub trait Handler {
    /// What is kept of a registered function.
    type Procedure;

    /// Whether waits go through [`Handler::while_waiting`], and cost more than a look of the engine
    /// that does not wait.
    const WAITING_COSTS: bool = false;

    /// Whether calls come with [`Call::members`]; see
    /// [`Service::NEEDS_MEMBERS`](ucall_proto::Service::NEEDS_MEMBERS).
    const NEEDS_MEMBERS: bool = true;

    /// Runs a call of `procedure`: writes the reply; or takes what it needs of the call, returns
    /// [`CallOutcome::Deferred`], and replies to its [`CallId`] later: through the
    /// [`Mailbox`](crate::Mailbox), or by [`Handler::poll_reply`].
    fn call(
        &mut self,
        procedure: &Self::Procedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome;

    /// Whether requests have to be let in by [`Handler::authenticate`].
    #[inline]
    fn requires_authentication(&self) -> bool {
        false
    }

    /// Lets a request in, or not; see
    /// [`Service::authenticate`](ucall_proto::Service::authenticate).
    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let _ = (head, session, caller);
        Err(AuthenticationError::Failed)
    }

    /// The calls that follow are of somebody who was let in.
    fn set_identity(&mut self, identity: &CallerIdentity) {
        let _ = identity;
    }

    /// A connection has closed, on which deferred calls were under way: nobody will read their
    /// replies.
    fn cancel(&mut self, connection: Id) {
        let _ = connection;
    }

    /// The reply to a deferred call, if there is one: appends the JSON text of its result to
    /// `text`, or gives the error. Asked for before each wait, and until there are no more, so that
    /// what a handler finishes on the worker's own thread needs no message; another thread sends
    /// [`Message::PollReplies`](crate::Message::PollReplies).
    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Result<(), RpcError>)> {
        let _ = text;
        None
    }

    /// A turn begins: what it handles has come by `now`.
    fn turn_began(&mut self, now: Instant) {
        let _ = now;
    }

    /// All that came in one turn has been taken: what waits for more of its kind may run now.
    /// Called at least as early as [`Handler::deadline`] asks.
    fn turn_ended(&mut self, now: Instant) {
        let _ = now;
    }

    /// When [`Handler::turn_ended`] has to be called, whatever else happens.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// How many deferred calls are under way, those included whose reply nobody reads.
    fn running(&self) -> usize {
        0
    }

    /// The budget that the worker reserves its memory of. A handler that keeps the params of
    /// deferred calls reserves them of the same one.
    fn memory_budget(&self) -> MemoryBudget {
        MemoryBudget::default()
    }

    /// The server ends, and will wait no longer: every deferred call is to be given up, and
    /// answered so.
    fn abandon(&mut self) {}

    /// Runs `wait`, which may block. A language with a lock around its interpreter lets go of it
    /// meanwhile.
    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        wait()
    }

    /// Takes a line for the log.
    fn warn(&mut self, line: &str) {
        eprintln!("ucall: {line}");
    }
}
