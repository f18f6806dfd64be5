//! A connection to a NATS broker, which another thread hands over.

use std::os::fd::OwnedFd;

use ucall_proto::NatsOptions;

/// A connection to a broker, after its subscriptions.
#[derive(Debug)]
pub struct BrokerSocket {
    /// A stream socket.
    pub socket: OwnedFd,
    /// Bytes that the broker has sent since the subscriptions.
    pub received: Vec<u8>,
    /// The subscriptions, and their limits.
    pub options: NatsOptions,
    /// Is closed when the connection has ended.
    pub guard: OwnedFd,
}
