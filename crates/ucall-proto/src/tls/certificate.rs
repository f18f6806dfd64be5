//! The subject of a certificate, as text, and its validity.

use std::net::IpAddr;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, Error};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::time::Time;

use super::identity;

/// The subject that a certificate names. Only verification shows that it is authentic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CertificateSummary {
    /// The subject as RFC 4514 writes it, such as `CN=alice,O=Acme`; empty if there is none.
    pub subject: String,
    /// The subject's common name.
    pub common_name: Option<String>,
    /// The subject's other names (RFC 5280 section 4.2.1.6): of hosts, mail addresses, URIs and IP
    /// addresses.
    pub names: Vec<String>,
}

impl CertificateSummary {
    /// Reads a certificate in DER. What cannot be read is left out.
    pub fn of(der: &[u8]) -> Self {
        let Ok(certificate) = Certificate::from_der(der) else { return Self::default() };
        let certificate = certificate.tbs_certificate();
        let names = match certificate.get_extension::<SubjectAltName>() {
            Ok(Some((_, names))) => names.0.iter().filter_map(text_of).collect(),
            _ => Vec::new(),
        };
        let common_name = certificate.subject().common_name();
        Self {
            subject: certificate.subject().to_string(),
            common_name: common_name.ok().flatten().map(|name| name.value().into_owned()),
            names,
        }
    }
}

/// The time in which a certificate is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateValidity {
    not_before: Time,
    not_after: Time,
}

impl CertificateValidity {
    /// Those of all certificates of a text in PEM. What cannot be read is left out.
    pub fn of_all(pem: &[u8]) -> Vec<Self> {
        let certificates = identity::certificates(pem).unwrap_or_default();
        let readable = certificates.iter().filter_map(|der| Certificate::from_der(der).ok());
        let validities = readable.map(|it| *it.tbs_certificate().validity());
        validities.map(|it| Self { not_before: it.not_before, not_after: it.not_after }).collect()
    }

    /// Why it is not valid at a time since 1970, with the date; `None` if it is.
    pub fn problem(&self, unix_time: Duration) -> Option<String> {
        if unix_time > self.not_after.to_unix_duration() {
            let until = self.not_after.to_date_time();
            return Some(format!("the certificate has expired: it was valid until {until}"));
        }
        if unix_time < self.not_before.to_unix_duration() {
            let since = self.not_before.to_date_time();
            return Some(format!("the certificate is not valid before {since}"));
        }
        None
    }
}

/// Checks that a certificate in DER is valid at this time.
///
/// # Errors
/// It cannot be read, has expired, or is not valid yet.
pub(super) fn check_validity(der: &[u8], now: UnixTime) -> Result<(), Error> {
    let certificate = Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.tbs_certificate().validity();
    let [not_before, not_after] = [validity.not_before, validity.not_after]
        .map(|time| UnixTime::since_unix_epoch(time.to_unix_duration()));
    if now > not_after {
        return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
    }
    if now < not_before {
        return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
    }
    Ok(())
}

fn text_of(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(text)
        | GeneralName::Rfc822Name(text)
        | GeneralName::UniformResourceIdentifier(text) => Some(text.to_string()),
        GeneralName::IpAddress(bytes) => address_of(bytes.as_bytes()).map(|ip| ip.to_string()),
        _ => None,
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
