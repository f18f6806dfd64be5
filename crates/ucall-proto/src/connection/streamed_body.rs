//! The state of a body that is passed to the service while it arrives, and of a WebSocket that an
//! application has not accepted yet.

use super::pieces::BodySource;
use super::{WaitState, body_time};
use crate::Limits;
use crate::rpc::CallNumber;

/// A body that is passed on while it arrives.
#[derive(Debug)]
pub(super) struct StreamedBody {
    pub(super) number: CallNumber,
    pub(super) content: StreamedContent,
    /// Whether the service had no room for the piece that is decoded next.
    pub(super) awaits_room: bool,
    /// Whether the connection ends after the body.
    pub(super) is_last: bool,
    /// The origin that may read its refusal.
    pub(super) allowed_origin: Option<Box<[u8]>>,
}

/// The content of the request (RFC 9110, section 6.4).
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the body around it is in a box")]
pub(super) enum StreamedContent {
    /// A body.
    Body(BodySource),
    /// None. The input waits until the service accepts the WebSocket, by a response with this head,
    /// to which it adds headers.
    Upgrade { accepted_head: Vec<u8> },
}

impl StreamedBody {
    fn source(&self) -> Option<&BodySource> {
        match &self.content {
            StreamedContent::Body(source) => Some(source),
            StreamedContent::Upgrade { .. } => None,
        }
    }

    pub(super) fn wait_state(&self, limits: &Limits) -> WaitState {
        match self.source() {
            None => WaitState::Request,
            Some(source) => WaitState::Body { total: body_time(source.received_len(), limits) },
        }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.source().map_or(0, BodySource::held_bytes)
    }

    /// Whether a part has arrived that is not decoded.
    pub(super) fn has_undecoded(&self) -> bool {
        self.source().is_some_and(BodySource::has_undecoded)
    }

    /// Whether the next turn decodes a piece.
    pub(super) fn is_decoding(&self) -> bool {
        self.has_undecoded() && !self.awaits_room
    }

    /// Whether the rest of the body is in the input.
    pub(super) fn ends_within(&self, input: &[u8], limits: &Limits) -> bool {
        self.source().is_some_and(|source| source.ends_within(input, limits))
    }
}
