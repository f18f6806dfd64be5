//! A certificate chain and its private key, out of PEM text.

use pkcs8::{EncryptedPrivateKeyInfoRef, SecretDocument};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys, RootCertStore};

use super::SettingsError;

const ENCRYPTED_BEGIN: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----";
const ENCRYPTED_END: &str = "-----END ENCRYPTED PRIVATE KEY-----";
/// Says that a key is encrypted in the way of before PKCS#8.
const LEGACY_ENCRYPTED: &str = "Proc-Type: 4,ENCRYPTED";

/// The certificate and the private key of one end.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// The certificate, followed by the chain that leads to the authority.
    pub certificates: &'a [u8],
    /// The private key: PKCS#8, encrypted or not, PKCS#1 or SEC1.
    pub private_key: &'a [u8],
    /// The password of an encrypted key.
    pub password: Option<&'a [u8]>,
}

impl Identity<'_> {
    /// Whether it can be used.
    ///
    /// # Errors
    /// As [`ServerSettings::build`](super::ServerSettings::build) has them for this identity alone.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.certified_key().map(drop)
    }

    /// Whether its certificates can be read, whatever its key.
    ///
    /// # Errors
    /// There is none, or one cannot be read.
    pub fn check_certificates(&self) -> Result<(), SettingsError> {
        certificates(self.certificates).map(drop)
    }

    /// The chain, and the key that fits it.
    pub(super) fn certified_key(&self) -> Result<CertifiedKey, SettingsError> {
        let chain = certificates(self.certificates)?;
        let key = private_key(self.private_key, self.password)?;
        CertifiedKey::from_der(chain, key, &super::provider()).map_err(|error| match error {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => SettingsError::KeyMismatch,
            error => SettingsError::Invalid("a certificate and a private key", error.to_string()),
        })
    }
}

/// All certificates of a text, of which there must be one at least.
pub(super) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    const WHAT: &str = "a certificate";
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| SettingsError::Invalid(WHAT, error.to_string()))?;
    if found.is_empty() { Err(SettingsError::Missing(WHAT)) } else { Ok(found) }
}

/// The trusted authorities.
pub(super) fn authorities(pem: &[u8]) -> Result<RootCertStore, SettingsError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(pem)? {
        store.add(certificate).map_err(|error| {
            SettingsError::Invalid("certificates of authorities", error.to_string())
        })?;
    }
    Ok(store)
}

/// The system's authorities that are readable.
pub(super) fn store(certificates: &[CertificateDer<'_>]) -> Result<RootCertStore, SettingsError> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(certificates.iter().map(|it| it.clone().into_owned()));
    if store.is_empty() {
        return Err(SettingsError::Missing("the system's certificates of authorities"));
    }
    Ok(store)
}

fn private_key(
    pem: &[u8],
    password: Option<&[u8]>,
) -> Result<PrivateKeyDer<'static>, SettingsError> {
    const WHAT: &str = "a private key";
    let text = std::str::from_utf8(pem).unwrap_or_default();
    if let Some(block) = encrypted_block(text) {
        return decrypt(block, password.ok_or(SettingsError::PasswordMissing)?);
    }
    if text.contains(LEGACY_ENCRYPTED) {
        let how = "it is encrypted in a way that is too weak; \
                   `openssl pkcs8 -topk8 -in KEY` writes one that is not";
        return Err(SettingsError::Invalid(WHAT, how.into()));
    }
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => SettingsError::Missing(WHAT),
        error => SettingsError::Invalid(WHAT, error.to_string()),
    })
}

fn encrypted_block(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(ENCRYPTED_BEGIN)?;
    let (body, _) = rest.split_once(ENCRYPTED_END)?;
    Some(body)
}

/// Decrypts the base64 body of an encrypted PKCS#8 key (RFC 5958 section 3).
fn decrypt(body: &str, password: &[u8]) -> Result<PrivateKeyDer<'static>, SettingsError> {
    const WHAT: &str = "an encrypted private key";
    let pem = format!("{ENCRYPTED_BEGIN}\n{}\n{ENCRYPTED_END}\n", body.trim());
    let invalid = |error: &dyn std::fmt::Display| SettingsError::Invalid(WHAT, error.to_string());
    let (_, document) = SecretDocument::from_pem(&pem).map_err(|error| invalid(&error))?;
    let encrypted = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes())
        .map_err(|error| invalid(&error))?;
    let decrypted = encrypted.decrypt(password).map_err(|_| SettingsError::PasswordWrong)?;
    Ok(PrivatePkcs8KeyDer::from(decrypted.as_bytes().to_vec()).into())
}
