//! A connection to a NATS broker, which another thread hands over.

use std::os::fd::OwnedFd;

use ucall_proto::NatsOptions;

/// A connection to a broker, after its subscriptions.
#[derive(Debug)]
pub struct BrokerSocket {
    /// A stream socket.
    pub socket: OwnedFd,
    /// What the broker has sent since the subscriptions.
    pub received: Vec<u8>,
    /// What is subscribed to.
    pub options: NatsOptions,
    /// Is closed when the connection has ended.
    pub guard: OwnedFd,
}
