//! Why a message is not delivered, or a session has ended.

use std::fmt;

/// Why a message will not arrive, or no other will come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// The peer has closed.
    PeerClosed,
    /// The peer was gone for too long.
    Expired,
    /// It was, and the last attempt to reach it failed for this reason.
    Unreachable(String),
    /// It is not the one it should be, or will not speak TLS with us: why.
    Insecure(String),
    /// This side has closed.
    Closed,
    /// There is no such peer.
    Unknown,
    /// It was dropped from a full queue.
    Dropped,
    /// It is longer than the peer takes, which is so many bytes.
    TooLong(u64),
    /// The peer does not want us, and says why.
    Refused(String),
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
            Self::Refused(reason) => write!(formatter, "the peer refuses: {reason}"),
        }
    }
}
