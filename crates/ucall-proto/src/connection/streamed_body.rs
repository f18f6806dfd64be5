//! The state of a body that is passed to the service while it arrives, and of a WebSocket that an
//! application has not accepted yet.

use super::{WaitState, body_time};
use crate::Limits;
use crate::http1::ChunkedDecoder;
use crate::rpc::CallNumber;

/// A body that is passed on while it arrives.
#[derive(Debug)]
pub(super) struct StreamedBody {
    pub(super) number: CallNumber,
    pub(super) framing: BodyFraming,
    /// The longest one.
    pub(super) bytes_max: usize,
    pub(super) received: usize,
    /// Whether the connection ends after the body.
    pub(super) is_last: bool,
    /// The origin that may read its refusal.
    pub(super) allowed_origin: Option<Box<[u8]>>,
}

/// Where the body ends.
#[derive(Debug)]
pub(super) enum BodyFraming {
    Length {
        left: usize,
    },
    Chunked(ChunkedDecoder),
    /// There is none: what follows waits until the service has accepted a WebSocket, by a response
    /// with this head, whose headers continue.
    Upgrade {
        accepted_head: Vec<u8>,
    },
}

impl StreamedBody {
    pub(super) fn wait_state(&self, limits: &Limits) -> WaitState {
        match self.framing {
            BodyFraming::Upgrade { .. } => WaitState::Request,
            _ => WaitState::Body { total: body_time(self.received, limits) },
        }
    }
}
