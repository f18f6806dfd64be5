//! TLS of the clients in Rust: queues and relays. Python's client has TLS of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::tls::{CertificateDer, ClientConfig, ClientSettings, Identity, Trust};
use ucall_server::TlsFilesError;

/// The files of a client.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ClientFiles {
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    password: Option<Vec<u8>>,
    pub(crate) authority: Option<PathBuf>,
}

impl ClientFiles {
    /// The system's certificates, if the client uses them. Those that cannot be read are skipped.
    pub(crate) fn store(&self) -> Vec<CertificateDer<'static>> {
        match self.authority {
            None => rustls_native_certs::load_native_certs().certs,
            Some(_) => Vec::new(),
        }
    }

    /// Reads the files.
    pub(crate) fn config(
        &self,
        store: &[CertificateDer<'static>],
        alpn: &[&[u8]],
    ) -> Result<Arc<ClientConfig>, TlsFilesError> {
        let certificates = self.certificate.as_deref().map(read).transpose()?;
        let private_key = self.key.as_deref().map(read).transpose()?;
        let authorities = self.authority.as_deref().map(read).transpose()?;
        let identity = certificates.as_deref().zip(private_key.as_deref());
        let identity = identity.map(|(certificates, private_key)| Identity {
            certificates,
            private_key,
            password: self.password.as_deref(),
        });
        let trust = match &authorities {
            Some(authorities) => Trust::Authorities(authorities),
            None => Trust::Store(store),
        };
        self.check(identity.as_ref())?;
        let settings = ClientSettings { trust, identity, alpn };
        settings.build().map_err(|error| match &self.authority {
            Some(path) => TlsFilesError::Content(path.clone(), error),
            None => TlsFilesError::Settings(error),
        })
    }

    /// Adds the name of the file to an error.
    fn check(&self, identity: Option<&Identity<'_>>) -> Result<(), TlsFilesError> {
        let Some(identity) = identity else { return Ok(()) };
        let Err(error) = identity.check() else { return Ok(()) };
        let path = match identity.check_certificates() {
            Ok(()) => &self.key,
            Err(_) => &self.certificate,
        };
        Err(match path {
            Some(path) => TlsFilesError::Content(path.clone(), error),
            None => TlsFilesError::Settings(error),
        })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    fs::read(path).map_err(|error| TlsFilesError::Read(path.to_owned(), error))
}
