//! TLS 1.2 and 1.3 without any I/O: records in, plaintext out, and back.
//!
//! A [`Stage`] is one end of one connection, server's or client's. Bytes that came go into
//! [`Stage::receive`], which hands out their plaintext and appends what has to be answered; what is
//! to be sent goes through [`Stage::send`]. Both write behind whatever the output holds already, so
//! that a reply and the records before it leave in one send. rustls does the protocol, AWS-LC the
//! arithmetic; here is what lies between them and a buffer.
//!
//! Nothing is read from files: certificates, keys and authorities come as PEM text, and
//! [`ServerSettings`] or [`ClientSettings`] make a configuration of them, for many connections.

mod certificate;
mod client;
mod error;
mod identity;
mod server;
mod session;
mod stage;
mod tickets;

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

pub use certificate::CertificateSummary;
pub use client::{ClientConfig, ClientSettings, Trust};
pub use error::{HANDSHAKE_MESSAGE_BYTES_MAX, SettingsError, TlsError};
pub use identity::Identity;
pub use rustls::pki_types::{CertificateDer, ServerName};
pub use server::{ClientAuth, ServerConfig, ServerSettings};
pub use session::Session;
pub use stage::{Stage, begins_record};
pub use tickets::TicketSecret;

/// The one choice of who does the arithmetic.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
