//! TLS 1.2 and 1.3 without any I/O: records in, plaintext out, and back.
//!
//! A [`TlsConnection`] is one end of one connection, server's or client's. Bytes that came go into
//! [`TlsConnection::receive`], which hands out their plaintext and appends what has to be answered;
//! what is to be sent goes through [`TlsConnection::send`]. Both write behind whatever the output
//! holds already, so that a reply and the records before it leave in one send. rustls does the
//! protocol, AWS-LC the arithmetic; here is what lies between them and a buffer.
//!
//! Nothing is read from files: certificates, keys and authorities come as PEM text, and
//! [`ServerSettings`] or [`ClientSettings`] make a configuration of them, for many connections.

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

pub use certificate::CertificateSummary;
pub use client::{ClientConfig, ClientSettings, Trust};
pub use connection::{TlsConnection, starts_tls_record};
pub use error::{HANDSHAKE_MESSAGE_BYTES_MAX, SettingsError, TlsError};
pub use identity::Identity;
pub use rustls::pki_types::{CertificateDer, ServerName};
pub use server::{ClientAuth, ServerConfig, ServerSettings};
pub use session::TlsSession;
pub use tickets::TicketSecret;

/// The one choice of who does the arithmetic.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
