//! What a client of TLS is made from.

use std::sync::Arc;

use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{Error, SignatureScheme};

use super::{Identity, SettingsError, identity, provider};

/// Settings that connections of a client share.
pub type ClientConfig = rustls::ClientConfig;

/// How a client verifies the server.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// By its certificate, which has the requested name and is signed by one of these authorities,
    /// in PEM.
    Authorities(&'a [u8]),
    /// The same, in DER. Unreadable authorities are skipped, because system stores contain some.
    Store(&'a [CertificateDer<'a>]),
    /// Not at all. The data is encrypted, but the receiver is not authenticated.
    Anyone,
}

/// The settings of a client.
#[derive(Debug)]
pub struct ClientSettings<'a> {
    /// How it verifies the server.
    pub trust: Trust<'a>,
    /// Its own identity, for servers that request one.
    pub identity: Option<Identity<'a>>,
    /// Application protocols (ALPN), the preferred one first. If empty, none is offered.
    pub alpn: &'a [&'a [u8]],
}

impl ClientSettings<'_> {
    /// Makes the configuration. It remembers sessions, to resume them.
    ///
    /// # Errors
    /// Something cannot be read, does not fit together, or is missing.
    pub fn build(&self) -> Result<Arc<ClientConfig>, SettingsError> {
        let rejected = |error: Error| SettingsError::Refused(error.to_string());
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(rejected)?;
        let builder = match self.trust {
            Trust::Authorities(pem) => builder.with_root_certificates(identity::authorities(pem)?),
            Trust::Store(certificates) => {
                builder.with_root_certificates(identity::store(certificates)?)
            }
            Trust::Anyone => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer { provider: provider() })),
        };
        let mut config = match &self.identity {
            Some(identity) => {
                let key = Arc::new(identity.certified_key()?);
                builder
                    .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(key)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// Accepts every certificate, but verifies signatures: the server has the key of its certificate.
#[derive(Debug)]
struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
