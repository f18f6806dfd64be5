//! The limits of the protocol, which the layers above set.

use std::time::Duration;

use crate::http1::{CallPaths, HeadLimits};

/// Limits of the connections of one worker. If a limit rejects a request, the error names it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Request line and headers of an HTTP request.
    pub head: HeadLimits,
    /// The paths of calls over HTTP and WebSocket.
    pub call_paths: CallPaths,
    /// Body of one request, or one raw document. Below 4 GiB.
    pub body_bytes_max: usize,
    /// How many times its length a compressed body may have when it is decoded.
    pub body_ratio_max: usize,
    /// Which replies over HTTP are compressed; `None`: none.
    pub compression: Option<Compression>,
    /// Chunk extensions and trailers of one body, together.
    pub chunk_overhead_bytes_max: usize,
    /// Arrays and objects inside one another.
    pub nesting_max: usize,
    /// Calls in one batch.
    pub batch_calls_max: usize,
    /// Binary parts of one document.
    pub parts_max: usize,
    /// One reply, a whole batch's together.
    pub reply_bytes_max: usize,
    /// Text of one id.
    pub id_bytes_max: usize,
    /// Text of the member `_meta` of one request.
    pub meta_bytes_max: usize,
    /// Items of streams that wait for the peer of one connection. A stream pauses above it.
    pub stream_bytes_max: usize,
    /// Messages of topics that wait for the peer of one connection. Above it the topic with the
    /// most of them loses some, or the connection closes.
    pub waiting_messages_max: usize,
    /// Bytes of messages of topics that wait for the peer of one connection. One message more may
    /// wait, however long.
    pub waiting_message_bytes_max: usize,
    /// Payload of one frame of a WebSocket. A message has at most [`Limits::body_bytes_max`].
    pub frame_bytes_max: usize,
    /// Frames of one message of a WebSocket.
    pub message_frames_max: usize,
    /// Pings without any sign of life of a WebSocket's peer, after which it closes.
    pub unanswered_pings_max: usize,
    /// Requests of one connection that wait for their replies.
    pub pipeline_max: usize,
    /// Calls of one connection that run, streams and calls of batches among them. Further requests
    /// wait, except for those that cancel one of the calls.
    pub connection_calls_max: usize,
    /// Bytes waiting to be sent on one connection, above the current reply.
    pub output_bytes_max: usize,
    /// Longer documents are scanned while they arrive. Shorter ones are scanned once they are
    /// complete, which takes less time than a turn may. Tests and fuzz targets lower it.
    pub long_bytes_min: usize,
    /// Bytes of requests that are not whole, of params of calls that are answered later and of
    /// replies that wait, of all connections together.
    pub held_bytes_max: usize,
    /// Requests of one connection, with a batch counted as one; it closes after the last. `None`:
    /// no limit.
    pub exchanges_max: Option<u64>,
    /// The age at which a connection closes, after its current request or while it is idle. `None`:
    /// no limit.
    pub lifetime: Option<Duration>,
    /// Input that is discarded after the last reply. Closing earlier would reset the connection,
    /// and the peer could lose the reply.
    pub discarded_bytes_max: usize,
    /// From a connection's beginning until both ends have agreed on TLS.
    pub handshake_timeout: Duration,
    /// From the first byte of a head to its last.
    pub head_timeout: Duration,
    /// Without a byte of the body; in all, this and one second more for each KiB.
    pub body_timeout: Duration,
    /// Time without a request on an open connection.
    pub idle_timeout: Duration,
    /// Time without a byte of a WebSocket's peer, after which it gets a Ping.
    pub ping_interval: Duration,
    /// Time in which the peer accepts no byte of the output.
    pub send_timeout: Duration,
    /// Time for which input is discarded after the last reply.
    pub discard_timeout: Duration,
}

/// Which replies are compressed for clients that accept it.
#[derive(Clone, Copy, Debug)]
pub struct Compression {
    /// The length from which replies are compressed.
    pub bytes_min: usize,
    /// The length up to which they are: compression takes time of the worker.
    pub bytes_max: usize,
}

impl Limits {
    /// Compresses replies of these lengths for clients that accept it.
    pub fn compress(&mut self, compression: Compression) {
        self.compression = Some(compression);
        self.head.negotiates_coding = true;
    }

    /// The largest `nesting_max` to offer: code that builds values out of params recurses once a
    /// level. The scanner does not recurse.
    pub const NESTING_MAX: usize = 1_024;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: HeadLimits::default(),
            call_paths: CallPaths::default(),
            body_bytes_max: 16 << 20,
            body_ratio_max: 100,
            compression: None,
            chunk_overhead_bytes_max: 16 << 10,
            nesting_max: 128,
            batch_calls_max: 1_000,
            parts_max: 1_024,
            reply_bytes_max: 64 << 20,
            id_bytes_max: 1 << 10,
            meta_bytes_max: 4 << 10,
            stream_bytes_max: 64 << 10,
            waiting_messages_max: 1_024,
            waiting_message_bytes_max: 1 << 20,
            frame_bytes_max: 16 << 20,
            message_frames_max: 1_024,
            unanswered_pings_max: 2,
            pipeline_max: 128,
            connection_calls_max: 128,
            output_bytes_max: 1 << 20,
            long_bytes_min: 256 << 10,
            held_bytes_max: 1 << 30,
            exchanges_max: None,
            lifetime: None,
            discarded_bytes_max: 256 << 10,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            ping_interval: Duration::from_secs(20),
            send_timeout: Duration::from_secs(30),
            discard_timeout: Duration::from_secs(1),
        }
    }
}
