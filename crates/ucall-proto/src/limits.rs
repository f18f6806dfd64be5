//! What the core takes at most, told to it by the layers above.

use std::time::Duration;

use crate::http1::HeadLimits;

/// Limits of one server. Each has a default, and past it the peer is told what the limit was.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Request line and headers of an HTTP request.
    pub head: HeadLimits,
    /// Body of one request, or one raw document. Below 4 GiB.
    pub body_bytes_max: usize,
    /// Chunk extensions and trailers of one body, together.
    pub chunk_overhead_bytes_max: usize,
    /// Arrays and objects inside one another.
    pub nesting_max: usize,
    /// Calls in one batch.
    pub batch_calls_max: usize,
    /// One reply, a whole batch's together.
    pub reply_bytes_max: usize,
    /// Text of one id.
    pub id_bytes_max: usize,
    /// Requests of one connection that wait for their replies.
    pub pipeline_max: usize,
    /// Bytes waiting to be sent on one connection, above the reply in hand.
    pub output_bytes_max: usize,
    /// Bytes of requests that are not whole, of params of calls that are answered later and of
    /// replies that wait, of all connections together.
    pub held_bytes_max: usize,
    /// Requests of one connection, a batch counted once; it is closed after the last. `None`: no
    /// limit.
    pub exchanges_max: Option<u64>,
    /// Age of a connection past which it is closed: behind the request that finds it so old, or
    /// while it is idle. `None`: no limit.
    pub lifetime: Option<Duration>,
    /// What is read and thrown away after the last reply, so that it is not lost with what still
    /// comes.
    pub discarded_bytes_max: usize,
    /// From a connection's beginning until both ends have agreed on TLS.
    pub handshake_timeout: Duration,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// Without a byte of the body; in all, this and one second more for each KiB.
    pub body_timeout: Duration,
    /// Without a request on a connection kept alive.
    pub idle_timeout: Duration,
    /// Without the peer taking a byte of what is to be sent.
    pub send_timeout: Duration,
    /// How long is thrown away what comes after the last reply.
    pub discard_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            body_bytes_max: 16 << 20,
            chunk_overhead_bytes_max: 16 << 10,
            nesting_max: 128,
            batch_calls_max: 1_000,
            reply_bytes_max: 64 << 20,
            id_bytes_max: 1 << 10,
            pipeline_max: 128,
            output_bytes_max: 1 << 20,
            held_bytes_max: 1 << 30,
            exchanges_max: None,
            lifetime: None,
            discarded_bytes_max: 256 << 10,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            send_timeout: Duration::from_secs(30),
            discard_timeout: Duration::from_secs(1),
        }
    }
}
