//! What both ends have agreed on.

use rustls::pki_types::CertificateDer;
use rustls::{CommonState, HandshakeKind, ProtocolVersion};

/// The outcome of a handshake.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TlsSession {
    /// `"TLSv1.2"` or `"TLSv1.3"`.
    pub version: &'static str,
    /// The cipher suite, by the name that it is registered under.
    pub cipher: String,
    /// The protocol spoken inside, if one was agreed on.
    pub alpn: Option<Vec<u8>>,
    /// Whether an earlier session was resumed, which saves most of a handshake.
    pub is_resumed: bool,
    /// The peer's verified certificate and its chain; empty if it sent none.
    pub peer_certificates: Vec<CertificateDer<'static>>,
}

impl TlsSession {
    pub(super) fn of(common: &CommonState) -> Self {
        let suite = common.negotiated_cipher_suite().map(|suite| suite.suite());
        Self {
            version: match common.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
                _ => "TLSv1.3",
            },
            // rustls' names distinguish suites of 1.3 from those of 1.2; the registry's names do
            // not.
            cipher: suite
                .and_then(|suite| suite.as_str())
                .unwrap_or_default()
                .replace("TLS13_", "TLS_"),
            alpn: common.alpn_protocol().map(<[u8]>::to_vec),
            is_resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
            peer_certificates: common.peer_certificates().unwrap_or_default().to_vec(),
        }
    }
}
