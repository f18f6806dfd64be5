//! What a server of TLS is made from.

use std::fmt;
use std::sync::Arc;

use rustls::client::verify_server_name;
use rustls::pki_types::ServerName;
use rustls::server::{
    ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;

use super::{Identity, SettingsError, TicketSecret, identity, provider};

/// Settings that connections of a server share.
pub type ServerConfig = rustls::ServerConfig;

/// Whether clients show a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClientAuth {
    /// The server requests no certificate.
    #[default]
    None,
    /// Clients may send a certificate; an invalid one is rejected.
    Optional,
    /// They must.
    Required,
}

/// The settings of a server.
#[derive(Debug)]
pub struct ServerSettings<'a> {
    /// Certificates and their keys. The server presents the first that matches the requested name
    /// and that the client can verify, or else the first of all.
    pub identities: &'a [Identity<'a>],
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// The authorities for certificates of clients, in PEM.
    pub client_authorities: Option<&'a [u8]>,
    /// Application protocols (ALPN, RFC 7301), the preferred one first. A client may offer none.
    pub alpn: &'a [&'a [u8]],
    /// The secret for session tickets. Servers with the same secret and settings resume each
    /// other's sessions. Clients that must send a certificate get no tickets.
    pub tickets: &'a TicketSecret,
}

impl ServerSettings<'_> {
    /// Makes the configuration.
    ///
    /// # Errors
    /// Something cannot be read, does not fit together, or is missing.
    pub fn build(&self) -> Result<Arc<ServerConfig>, SettingsError> {
        let keys: Result<Vec<_>, _> =
            self.identities.iter().map(|identity| identity.certified_key().map(Arc::new)).collect();
        let keys = keys?;
        if keys.is_empty() {
            return Err(SettingsError::Missing("a certificate"));
        }
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(rejected)?;
        let builder = match self.client_verifier()? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(Arc::new(ByName { keys }));
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        // A ticket contains the whole session, so the server stores nothing for clients that never
        // return.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if self.client_auth == ClientAuth::None {
            config.ticketer = self.tickets.ticketer();
        } else {
            // A ticket contains the client's certificate, which a resumption does not verify again,
            // and each resumption issues a new ticket: an expired certificate would be accepted for
            // ever.
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    }

    fn client_verifier(
        &self,
    ) -> Result<Option<Arc<dyn rustls::server::danger::ClientCertVerifier>>, SettingsError> {
        if self.client_auth == ClientAuth::None {
            return Ok(None);
        }
        const WHAT: &str = "certificates of authorities that sign those of clients";
        let pem = self.client_authorities.ok_or(SettingsError::Missing(WHAT))?;
        let roots = Arc::new(identity::authorities(pem)?);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        if self.client_auth == ClientAuth::Optional {
            builder = builder.allow_unauthenticated();
        }
        builder.build().map(Some).map_err(rejected)
    }
}

fn rejected(error: impl fmt::Display) -> SettingsError {
    SettingsError::Refused(error.to_string())
}

/// Selects a certificate by the name that the client requests (RFC 6066, section 3).
#[derive(Debug)]
struct ByName {
    keys: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().and_then(|name| ServerName::try_from(name).ok());
        let is_usable =
            |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        let usable = || self.keys.iter().filter(is_usable);
        let named = match (&name, self.keys.len()) {
            (Some(name), 2..) => usable().find(|key| is_named(key, name)),
            _ => None,
        };
        named.or_else(|| usable().next()).or_else(|| self.keys.first()).cloned()
    }
}

fn is_named(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    key.end_entity_cert()
        .and_then(ParsedCertificate::try_from)
        .and_then(|certificate| verify_server_name(&certificate, name))
        .is_ok()
}
