//! The configuration of a worker.

use std::sync::Arc;
use std::time::Duration;

use ucall_proto::Limits;
use ucall_proto::http1::AccessRules;

use crate::tls::Tls;

/// How a worker serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerConfig {
    /// Limits of each connection.
    pub limits: Limits,
    /// Which web pages may call.
    pub access: AccessRules,
    /// TLS on all connections.
    pub tls: Option<Arc<Tls>>,
    /// Connections at once. Past it, the longest idle one is closed for a newcomer.
    pub connections_max: usize,
    /// The `WWW-Authenticate` header of the reply to a request that
    /// [`Handler::authenticate`](crate::Handler::authenticate) rejects.
    pub challenge: Option<String>,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// The name of one topic.
    pub topic_bytes_max: usize,
    /// How long a drain waits for running calls.
    pub drain_timeout: Duration,
    /// How long a worker that is to stop serves as before, except for its health checks.
    pub shutdown_delay: Duration,
}

impl WorkerConfig {
    /// The default of `connections_max`.
    pub const CONNECTIONS_MAX: usize = 16_384;

    /// The default of `subscriptions_max`.
    pub const SUBSCRIPTIONS_MAX: usize = 128;
    /// The default of `topic_bytes_max`.
    pub const TOPIC_BYTES_MAX: usize = 256;

    /// The default limits with these rules for browsers.
    pub fn new(access: AccessRules) -> Self {
        Self {
            limits: Limits::default(),
            access,
            tls: None,
            connections_max: Self::CONNECTIONS_MAX,
            challenge: None,
            subscriptions_max: Self::SUBSCRIPTIONS_MAX,
            topic_bytes_max: Self::TOPIC_BYTES_MAX,
            drain_timeout: Duration::from_secs(10),
            shutdown_delay: Duration::ZERO,
        }
    }
}
