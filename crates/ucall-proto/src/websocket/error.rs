//! The errors of a peer's frames, and the close code for each.

use std::fmt;

use super::close::CloseCode;

/// An error of the peer, after which the connection closes.
///
/// [`fmt::Display`] is the reason in the Close frame, at most 123 bytes. It states what was
/// expected, and names the limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WebSocketError {
    /// 1002: a reserved bit, although no extension is agreed on.
    ReservedBits,
    /// 1002: an opcode that RFC 6455 does not define.
    UnknownOpcode,
    /// 1002: a frame of a client without a mask.
    Unmasked,
    /// 1002: a frame of a server with a mask.
    Masked,
    /// 1002: a length that fewer bytes could express, or of more than 63 bits.
    LengthMalformed,
    /// 1002: a control frame in fragments.
    ControlFragmented,
    /// 1002: a control frame with more than 125 bytes.
    ControlTooLarge,
    /// 1002: a continuation without a message that it continues.
    ContinuationUnexpected,
    /// 1002: a new message before the end of the previous one.
    MessageInterrupted,
    /// 1002: a Close frame with a single byte, which is no code.
    CloseTruncated,
    /// 1002: a close code that must not be sent.
    CloseCodeInvalid,
    /// 1007: a compressed message that is no data of deflate.
    CompressionMalformed,
    /// 1007: text that is not UTF-8.
    TextNotUtf8,
    /// 1007: a reason in a Close frame that is not UTF-8.
    ReasonNotUtf8,
    /// 1009: a frame larger than the limit.
    FrameTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// 1009: a message larger than the limit, its frames together.
    MessageTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// 1009: a compressed message that expands to more than the limit, times its length.
    MessageRatioTooLarge {
        /// The limit.
        limit: usize,
    },
    /// 1009: a message of more frames than the limit.
    TooManyFrames {
        /// The limit in frames.
        limit: usize,
    },
}

impl WebSocketError {
    /// The code of the Close frame.
    #[must_use]
    pub fn code(&self) -> CloseCode {
        match self {
            Self::CompressionMalformed | Self::TextNotUtf8 | Self::ReasonNotUtf8 => {
                CloseCode::INVALID_PAYLOAD
            }
            Self::FrameTooLarge { .. }
            | Self::MessageTooLarge { .. }
            | Self::MessageRatioTooLarge { .. }
            | Self::TooManyFrames { .. } => CloseCode::TOO_LARGE,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl fmt::Display for WebSocketError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ReservedBits => "expected no reserved bits",
            Self::UnknownOpcode => "expected an opcode of RFC 6455",
            Self::Unmasked => "expected a masked frame",
            Self::Masked => "expected a frame without a mask",
            Self::LengthMalformed => "expected a length in the fewest bytes",
            Self::ControlFragmented => "expected a control frame in one piece",
            Self::ControlTooLarge => "expected a control frame of at most 125 bytes",
            Self::ContinuationUnexpected => "expected the first frame of a message",
            Self::MessageInterrupted => "expected the rest of the message",
            Self::CloseTruncated => "expected a close code of two bytes",
            Self::CloseCodeInvalid => "expected a close code that may be sent",
            Self::CompressionMalformed => "expected a message in deflate",
            Self::TextNotUtf8 => "expected text in UTF-8",
            Self::ReasonNotUtf8 => "expected a reason in UTF-8",
            Self::FrameTooLarge { limit } => {
                return write!(
                    formatter,
                    "expected a frame of at most {limit} bytes (max_frame_bytes)"
                );
            }
            Self::MessageTooLarge { limit } => {
                return write!(
                    formatter,
                    "expected a message of at most {limit} bytes (max_body_bytes)"
                );
            }
            Self::MessageRatioTooLarge { limit } => {
                return write!(
                    formatter,
                    "expected a message of at most {limit} times its length (max_body_ratio)"
                );
            }
            Self::TooManyFrames { limit } => {
                return write!(
                    formatter,
                    "expected a message of at most {limit} frames (max_message_frames)"
                );
            }
        })
    }
}

impl std::error::Error for WebSocketError {}
