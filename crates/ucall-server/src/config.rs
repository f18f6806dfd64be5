//! What a worker is told when it starts.

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
    /// Which browsers may call.
    pub access: AccessRules,
    /// TLS on all connections, if wanted.
    pub tls: Option<Arc<Tls>>,
    /// Connections at once. Past it, the longest idle one is closed for a newcomer.
    pub connections_max: usize,
    /// What a request that is not let in is asked for, by `WWW-Authenticate`; see
    /// [`Handler::authenticate`](crate::Handler::authenticate).
    pub challenge: Option<String>,
    /// How long a drain waits for calls that run.
    pub drain_timeout: Duration,
}

impl WorkerConfig {
    /// Connections at once, unless told otherwise.
    pub const CONNECTIONS_MAX: usize = 16_384;

    /// How long a drain waits for calls that run, unless told otherwise.
    pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

    /// The default limits, with these rules for browsers.
    pub fn new(access: AccessRules) -> Self {
        Self {
            limits: Limits::default(),
            access,
            tls: None,
            connections_max: Self::CONNECTIONS_MAX,
            challenge: None,
            drain_timeout: Self::DRAIN_TIMEOUT,
        }
    }
}
