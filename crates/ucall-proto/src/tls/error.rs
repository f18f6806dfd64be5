//! The errors of a connection, and of its settings.

use std::fmt;

use rustls::InvalidMessage;

/// The longest message of a handshake, its header of four bytes not counted. rustls has this limit.
/// A client's hello could be twice as long (RFC 8446 section 4.1.2).
pub const HANDSHAKE_MESSAGE_BYTES_MAX: usize = 0xFFFF;

/// Why a TLS connection has failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The peer's fault, or one that it is informed of: its records, its certificate, or no common
    /// protocol version or cipher. An alert was written.
    Peer(rustls::Error),
    /// The peer sent a handshake message longer than [`HANDSHAKE_MESSAGE_BYTES_MAX`], or split it
    /// into too many records.
    TooLong,
    /// Ours: the keys have encrypted as much as they may, and TLS 1.2 cannot update them.
    KeysExhausted,
    /// Ours: data was sent after our side was closed, or after the connection had failed.
    Closed,
}

impl TlsError {
    /// The description of a rustls error.
    pub(super) fn of(error: rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => {
                Self::TooLong
            }
            error => Self::Peer(error),
        }
    }

    /// Whether the peer's bytes were no TLS at all.
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
            TlsError::KeysExhausted => {
                formatter.write_str("the connection's keys have reached their limit of use")
            }
            TlsError::Closed => formatter.write_str("our side of the connection is closed"),
        }
    }
}

impl std::error::Error for TlsError {}

/// Why settings are invalid. The text names the setting and what was expected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// No PEM text, or none of the expected kind. Names the setting.
    Missing(&'static str),
    /// Invalid PEM text. Names the setting and the reason.
    Invalid(&'static str, String),
    /// The private key is encrypted, and there is no password.
    PasswordMissing,
    /// A private key is encrypted, and not with this password.
    PasswordWrong,
    /// A private key belongs to another certificate.
    KeyMismatch,
    /// rustls rejects the combination.
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
