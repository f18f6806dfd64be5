//! Why a message is not delivered, or a session has ended.

use std::fmt;

/// Why a message is not delivered, or a session has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer has closed.
    PeerClosed,
    /// The peer was gone for longer than `expire`.
    Expired,
    /// The same, and the last attempt to connect failed for this reason.
    Unreachable(String),
    /// The peer failed authentication or TLS, for this reason.
    Insecure(String),
    /// This side has closed.
    Closed,
    /// The peer is unknown.
    Unknown,
    /// The message was dropped from a full queue.
    Dropped,
    /// The message is longer than the peer accepts: its limit in bytes.
    TooLong(u64),
    /// The peer refuses the session for this reason.
    Refused(String),
    /// The peer accepts no message with this name.
    NotAccepted(String),
    /// The peer's program could not read the message, for this reason.
    Rejected(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => formatter.write_str("the peer has closed"),
            Self::Expired => formatter.write_str("the peer was gone for longer than expire_s"),
            Self::Unreachable(reason) => {
                write!(formatter, "the peer was gone for longer than expire_s: {reason}")
            }
            Self::Insecure(reason) => formatter.write_str(reason),
            Self::Closed => formatter.write_str("this side has closed"),
            Self::Unknown => formatter.write_str("there is no such peer"),
            Self::Dropped => formatter.write_str("dropped from a full queue"),
            Self::TooLong(most) => {
                write!(formatter, "a message longer than the peer's message_size, {most} bytes")
            }
            Self::NotAccepted(name) => write!(formatter, "{name} is not allowed"),
            Self::Rejected(reason) => write!(formatter, "the peer cannot read it: {reason}"),
            Self::Refused(reason) => write!(formatter, "the peer refuses: {reason}"),
        }
    }
}
