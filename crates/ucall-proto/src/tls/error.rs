//! What can be wrong with a connection, and what with the settings it was to be made from.

use std::fmt;

use rustls::InvalidMessage;

/// The longest message of a handshake, its header of four bytes not counted. rustls has this limit.
/// A client's hello could be twice as long (RFC 8446 section 4.1.2).
pub const HANDSHAKE_MESSAGE_BYTES_MAX: usize = 0xFFFF;

/// Why a TLS connection cannot go on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer's fault, or one that it shall hear of: its records, its certificate, or nothing in
    /// common to speak. It has been told by an alert.
    Peer(rustls::Error),
    /// The peer sent a message of its handshake that is longer than
    /// [`HANDSHAKE_MESSAGE_BYTES_MAX`], or cut into too many records.
    TooLong,
    /// Ours: the keys have protected as much as they may, and TLS 1.2 knows no new ones.
    KeysExhausted,
    /// Ours: sent behind the end of our side, or on a connection that has failed.
    Closed,
}

impl TlsError {
    /// What a connection's error says.
    pub(super) fn of(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => {
                Self::TooLong
            }
            error => Self::Peer(error),
        }
    }

    /// Whether what came is no TLS at all.
    pub fn is_not_tls(&self) -> bool {
        let Self::Peer(rustls::Error::InvalidMessage(message)) = self else { return false };
        matches!(
            message,
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion
        )
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Peer(error) => error.fmt(formatter),
            TlsError::TooLong => write!(
                formatter,
                "the peer's TLS messages are too long: expected at most \
                 {HANDSHAKE_MESSAGE_BYTES_MAX} bytes for one of the handshake"
            ),
            TlsError::KeysExhausted => formatter.write_str("the connection's keys are used up"),
            TlsError::Closed => formatter.write_str("our side of the connection has ended"),
        }
    }
}

impl std::error::Error for TlsError {}

/// Why settings make no sense. The text says what was expected of which of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// No PEM text, or none of the kind that was expected: says which.
    Missing(&'static str),
    /// PEM text that cannot be read: says which, and why.
    Invalid(&'static str, String),
    /// A private key is encrypted, and no password was given.
    PasswordMissing,
    /// A private key is encrypted, and not with this password.
    PasswordWrong,
    /// A private key belongs to another certificate.
    KeyMismatch,
    /// What rustls says of all together.
    Refused(String),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingsError::Missing(what) => write!(formatter, "expected {what} in PEM"),
            SettingsError::Invalid(what, why) => {
                write!(formatter, "expected {what} in PEM: {why}")
            }
            SettingsError::PasswordMissing => {
                formatter.write_str("the private key is encrypted, and needs its password")
            }
            SettingsError::PasswordWrong => {
                formatter.write_str("the private key cannot be decrypted with this password")
            }
            SettingsError::KeyMismatch => {
                formatter.write_str("the private key belongs to another certificate")
            }
            SettingsError::Refused(why) => formatter.write_str(why),
        }
    }
}

impl std::error::Error for SettingsError {}
