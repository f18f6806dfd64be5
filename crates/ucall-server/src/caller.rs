//! The caller of a procedure, and the id of one of its calls.

use ucall_engine::{Id, Peer};
use ucall_proto::{Call, CallNumber};

/// Identifies a call of one worker until it is answered.
///
/// Neither part is used twice, so a late reply finds no call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallId {
    /// The connection of its caller.
    pub connection: Id,
    /// The number of the call on that connection.
    pub number: CallNumber,
}

/// The caller of a procedure.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The connection.
    pub connection: Id,
    /// The address or process of the peer, after
    /// [`Procedures::want_peers`](crate::Procedures::want_peers), or the client of a trusted proxy.
    pub peer: Option<Peer>,
    /// Whether the call came in a datagram: the connection is then the socket that received it.
    pub is_datagram: bool,
}

impl Caller {
    /// The id of one of the caller's calls.
    #[inline]
    pub fn call_id(&self, call: &Call<'_>) -> CallId {
        CallId { connection: self.connection, number: call.number }
    }
}
