//! What a language has to implement to serve its functions.

use ucall_engine::Id;
use ucall_proto::{Call, ExchangeId, Outcome, Reply};

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

/// Runs procedures of one language. One worker owns one handler and calls it from its own thread.
pub trait Handler {
    /// What is kept of a registered function.
    type Procedure;

    /// Runs a call of `procedure`: writes the reply; or takes what it needs of the call, returns
    /// [`Outcome::Deferred`], and replies through the [`Mailbox`](crate::Mailbox) with `id`.
    fn call(
        &mut self,
        procedure: &Self::Procedure,
        call: Call<'_>,
        id: CallId,
        reply: &mut Reply<'_>,
    ) -> Outcome;

    /// A connection has closed, on which deferred calls were under way: nobody will read their
    /// replies.
    fn cancel(&mut self, connection: Id) {
        let _ = connection;
    }

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
