//! The caller of a procedure, and the id of one of its calls.

use ucall_engine::{Id, Peer};
use ucall_proto::http1::Head;
use ucall_proto::{Call, CallNumber};

/// Identifies a call of one worker until it is answered.
///
/// Neither part is used twice, so a late reply finds no call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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
    /// What its calls without a head come by. See [`Caller::transport`].
    pub transport: Transport,
}

/// What a call has come by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// JSON documents without framing.
    Tcp,
    /// HTTP.
    Http,
    /// WebSocket.
    WebSocket,
    /// A document in a datagram. The connection is then the socket that received it.
    Udp,
    /// A message of a NATS broker. The connection is then that of all such calls.
    Nats,
}

impl Transport {
    /// The name in logs and for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Http => "http",
            Self::WebSocket => "websocket",
            Self::Udp => "udp",
            Self::Nats => "nats",
        }
    }

    /// The kind of the broker that has authenticated the caller; `None` if the caller is connected
    /// to this server.
    pub fn broker(self) -> Option<&'static str> {
        (self == Self::Nats).then_some(self.name())
    }
}

impl Caller {
    /// What a request with or without a head has come by. No byte of the request decides it, so
    /// a client cannot claim another one. Only HTTP needs the head: the other transports are
    /// those of a whole connection.
    pub fn transport(&self, head: Option<&Head<'_>>) -> Transport {
        match self.transport {
            Transport::Tcp if head.is_some() => Transport::Http,
            transport => transport,
        }
    }

    /// The connection, unless it is not this caller's alone: a socket of datagrams, or a
    /// broker.
    pub fn own_connection(&self) -> Option<Id> {
        let is_shared = matches!(self.transport, Transport::Udp | Transport::Nats);
        (!is_shared).then_some(self.connection)
    }

    /// The id of one of the caller's calls.
    #[inline]
    pub fn call_id(&self, call: &Call<'_>) -> CallId {
        CallId { connection: self.connection, number: call.number }
    }
}
