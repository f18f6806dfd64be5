//! What a client of TLS is made from.

use std::sync::Arc;

use rustls::DigitallySignedStruct;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{Error, RootCertStore, SignatureScheme};

use super::{Identity, SettingsError, certificate, identity, provider};

/// Settings that connections of a client share.
pub type ClientConfig = rustls::ClientConfig;

/// How a client verifies the server.
#[derive(Clone, Copy, Debug)]
pub enum Trust<'a> {
    /// By its certificate, which has the requested name and is signed by one of these authorities,
    /// in PEM, or is one of them itself.
    Authorities(&'a [u8]),
    /// By these authorities, in DER, or by the client's own certificate. Unreadable authorities are
    /// skipped, because system stores contain some.
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
        let verifier = Verifier { trusted: self.trusted()?, provider: provider() };
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
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

    fn trusted(&self) -> Result<Option<Trusted>, SettingsError> {
        match self.trust {
            Trust::Authorities(pem) => {
                Trusted::new(identity::certificates(pem)?, identity::authorities(pem)?).map(Some)
            }
            Trust::Store(certificates) => {
                // Its own certificate, but not the authorities in its chain.
                let own = self.identity.map(|it| identity::certificates(it.certificates));
                let own = own.transpose()?.into_iter().flatten().take(1).collect::<Vec<_>>();
                let all: Vec<_> = certificates.iter().chain(&own).cloned().collect();
                Trusted::new(own, identity::store(&all)?).map(Some)
            }
            Trust::Anyone => Ok(None),
        }
    }
}

/// Verifies the server's certificate, and that the server has the key of it.
#[derive(Debug)]
struct Verifier {
    /// `None` accepts every certificate.
    trusted: Option<Trusted>,
    provider: Arc<CryptoProvider>,
}

/// The certificates that a client trusts.
#[derive(Debug)]
struct Trusted {
    /// Those of authorities.
    authorities: Arc<WebPkiServerVerifier>,
    /// Those that servers may show themselves. A self-signed certificate often claims to be an
    /// authority's (`openssl req -x509` writes it so), and WebPKI refuses authorities as servers.
    servers: Vec<CertificateDer<'static>>,
}

impl Trusted {
    fn new(
        certificates: Vec<CertificateDer<'static>>,
        authorities: RootCertStore,
    ) -> Result<Self, SettingsError> {
        let roots = WebPkiServerVerifier::builder_with_provider(authorities.into(), provider());
        let authorities = roots.build().map_err(|it| SettingsError::Refused(it.to_string()))?;
        Ok(Self { authorities, servers: certificates })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(Trusted { authorities, servers }) = &self.trusted else {
            return Ok(ServerCertVerified::assertion());
        };
        if servers.contains(end_entity) {
            certificate::check_validity(end_entity, now)?;
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            return Ok(ServerCertVerified::assertion());
        }
        authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
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
