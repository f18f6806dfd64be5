//! The configuration of a worker.

use std::sync::Arc;
use std::time::Duration;

use ucall_engine::xdp::{QueueShare, XdpProgram};
use ucall_proto::http1::{AccessRules, TrustedProxies};
use ucall_proto::{CookieKey, Limits};

use crate::access_log::AccessLog;
use crate::call_rates::CallRates;
use crate::metrics::CallMetrics;
use crate::protected_resource::ProtectedResource;
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
    /// Connections at once. Past it, one that is quiet is closed for a newcomer.
    pub connections_max: usize,
    /// Connections of one address of IPv4 or network of 64 bits of IPv6. Past it, new ones are
    /// closed. `None`: no limit.
    pub peer_connections_max: Option<usize>,
    /// Connections and sockets of native procedures at once, below the limit on descriptors. Past
    /// it, native procedures connect no more.
    pub sockets_max: usize,
    /// The `WWW-Authenticate` header of the reply to a request that
    /// [`Handler::authenticate`](crate::Handler::authenticate) rejects.
    pub challenge: Option<String>,
    /// What clients without a token for this server are told, in place of the challenge.
    pub resource: Option<Arc<ProtectedResource>>,
    /// The memory that is shared with one client, in each direction. 0: none.
    pub shared_bytes_max: usize,
    /// Clients are trusted not to write to memory that they share while it is read.
    pub trusts_shared_memory: bool,
    /// Calls a second of one caller. Past it, they are refused. `None`: no limit.
    pub call_rates: Option<CallRates>,
    /// Subscriptions of one connection.
    pub subscriptions_max: usize,
    /// The name of one topic.
    pub topic_bytes_max: usize,
    /// How long a drain waits for running calls.
    pub drain_timeout: Duration,
    /// How long a worker that is to stop serves as before, except for its health checks.
    pub shutdown_delay: Duration,
    /// Has a line for each call.
    pub access_log: Option<Arc<AccessLog>>,
    /// Records the calls of the handler's procedures, by [`Handler::series`]. A handler that
    /// records them itself leaves it out.
    ///
    /// [`Handler::series`]: crate::Handler::series
    pub call_metrics: Option<Arc<CallMetrics>>,
    /// The proxies whose clients are the callers.
    pub trusted_proxies: Option<Arc<TrustedProxies>>,
    /// Calls over UDP.
    pub datagrams: Box<DatagramConfig>,
}

impl WorkerConfig {
    /// The default of `connections_max`.
    pub const CONNECTIONS_MAX: usize = 16_384;

    /// The default of `shared_bytes_max`.
    pub const SHARED_BYTES_MAX: usize = 256 << 20;

    /// The default of `subscriptions_max`.
    pub const SUBSCRIPTIONS_MAX: usize = 1024;
    /// The default of `topic_bytes_max`.
    pub const TOPIC_BYTES_MAX: usize = 256;

    /// The default limits with these rules for browsers.
    pub fn new(access: AccessRules) -> Self {
        Self {
            limits: Limits::default(),
            access,
            tls: None,
            connections_max: Self::CONNECTIONS_MAX,
            peer_connections_max: None,
            sockets_max: usize::MAX,
            challenge: None,
            resource: None,
            shared_bytes_max: Self::SHARED_BYTES_MAX,
            trusts_shared_memory: false,
            call_rates: None,
            subscriptions_max: Self::SUBSCRIPTIONS_MAX,
            topic_bytes_max: Self::TOPIC_BYTES_MAX,
            drain_timeout: Duration::from_secs(10),
            shutdown_delay: Duration::ZERO,
            access_log: None,
            call_metrics: None,
            trusted_proxies: None,
            datagrams: Box::default(),
        }
    }
}

/// How a worker serves datagrams.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DatagramConfig {
    /// The key of cookies; `None` for a random one. All workers of a server need the same.
    pub cookie_key: Option<CookieKey>,
    /// A reply. Past it, an error that says to use TCP.
    pub datagram_bytes_max: usize,
    /// Whether a repeated request gets the reply of the first one, and does not run again.
    pub dedupe: bool,
    /// The memory for such replies. Past it, new calls are refused.
    pub dedupe_bytes_max: usize,
    /// How long after the last copy of a request its reply is kept.
    pub dedupe_lifetime: Duration,
    /// Deferred calls of one address. Past it, datagrams are dropped.
    pub source_calls_max: usize,
    /// Calls a second of one address. Past it, datagrams are dropped. `None`: no limit.
    pub source_rate_max: Option<u32>,
    /// Where datagrams are received over AF_XDP.
    pub xdp: Option<XdpConfig>,
}

/// How a worker receives datagrams over AF_XDP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct XdpConfig {
    /// The network interface; or `unix:` and the path of the socket of `ucall-xdp-setup`.
    pub interface: String,
    /// Whether to poll the queues while datagrams arrive.
    pub busy_poll: bool,
    /// The program, if several workers share the queues, and the share of this one.
    pub shared: Option<(Arc<XdpProgram>, QueueShare)>,
}

impl XdpConfig {
    /// All queues of an interface.
    pub fn new(interface: String, busy_poll: bool) -> Self {
        Self { interface, busy_poll, shared: None }
    }
}

impl DatagramConfig {
    /// The longest datagram that IPv4 carries.
    pub const DATAGRAM_BYTES_MAX: usize = 65_507;
    /// Twice the longest pause of our clients between two copies of a request. An entry that ends
    /// before the next copy comes would let that run again.
    pub const DEDUPE_LIFETIME_MIN: Duration = Duration::from_secs(5);
}

impl Default for DatagramConfig {
    fn default() -> Self {
        Self {
            cookie_key: None,
            // The minimum MTU of IPv6, less the heads of IPv6 and UDP (RFC 8200, 5).
            datagram_bytes_max: 1_232,
            dedupe: true,
            dedupe_bytes_max: 64 << 20,
            dedupe_lifetime: Duration::from_secs(10),
            source_calls_max: 64,
            source_rate_max: None,
            xdp: None,
        }
    }
}
