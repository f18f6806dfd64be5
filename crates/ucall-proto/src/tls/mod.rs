//! TLS 1.2 and 1.3 without I/O: records in, plaintext out, and back.
//!
//! A [`TlsConnection`] is one end of one connection, server's or client's.
//! [`TlsConnection::receive`] takes received bytes, passes on their plaintext and appends the
//! replies of TLS; [`TlsConnection::send`] encrypts. Both append to the output, so that a reply and
//! the records before it leave in one send. rustls implements the protocol and AWS-LC the
//! cryptography; this module connects them to a buffer.
//!
//! It reads no files: certificates, keys and authorities are PEM text, and [`ServerSettings`] or
//! [`ClientSettings`] build a configuration from them, for many connections.

mod certificate;
mod client;
mod connection;
mod error;
mod identity;
mod server;
mod session;
mod tickets;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use certificate::{CertificateSummary, CertificateValidity};
pub use client::{ClientConfig, ClientSettings, Trust};
pub use connection::{TlsConnection, starts_tls_record};
pub use error::{HANDSHAKE_MESSAGE_BYTES_MAX, SettingsError, TlsError};
pub use identity::Identity;
pub use rustls::pki_types::{CertificateDer, ServerName};
pub use server::{ClientAuth, ServerConfig, ServerSettings};
pub use session::TlsSession;
pub use tickets::TicketSecret;

/// The cryptography provider.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
