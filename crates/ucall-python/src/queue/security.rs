//! TLS settings of a queue, by their Python names.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::tls::{
    CertificateDer, ClientConfig, ClientSettings, Identity, ServerName, TlsConnection, TlsError,
    Trust,
};
use ucall_queue::Security;
use ucall_server::{FileChangeDetector, Tls, TlsFilesError};

use crate::tls::{TlsSettings, to_py_error};

/// The ALPN protocol of queues. A peer that offers only others is rejected.
const ALPN: &[&[u8]] = &[b"ucall-queue"];
/// The ALPN protocol of MQTT.
const BROKER_ALPN: &[&[u8]] = &[b"mqtt"];

/// The side of a TLS connection, and its peer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TlsRole {
    AsServer,
    ToServer,
    ToBroker,
}

/// Reads the result of `ucall.queue.core.options.tls_settings`.
pub(super) fn security(
    settings: &Bound<'_, PyAny>,
    tls_role: TlsRole,
) -> PyResult<Box<dyn Security>> {
    if tls_role == TlsRole::AsServer {
        return Ok(Box::new(Server(settings.extract::<TlsSettings>()?.load_for(ALPN)?)));
    }
    let alpn = if tls_role == TlsRole::ToBroker { BROKER_ALPN } else { ALPN };
    Ok(Box::new(Client::load(settings.extract::<ClientFiles>()?, alpn)?))
}

/// The certificates that the system trusts, in DER, without those that cannot be read.
#[pyfunction]
pub(crate) fn system_certificates(py: Python<'_>) -> Vec<Bound<'_, PyBytes>> {
    let certificates = rustls_native_certs::load_native_certs().certs;
    certificates.iter().map(|certificate| PyBytes::new(py, certificate)).collect()
}

struct Server(Arc<Tls>);

impl Security for Server {
    fn refresh(&self) -> Option<String> {
        self.0.refresh()?.err().map(|error| error.to_string())
    }

    fn begin(&self, _out: &mut Vec<u8>) -> Result<TlsConnection, TlsError> {
        self.0.accept()
    }
}

/// The files of a client, and the expected name of its server's certificate.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ClientFiles {
    name: String,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    password: Option<Vec<u8>>,
    authority: Option<PathBuf>,
}

struct Client {
    files: ClientFiles,
    name: ServerName<'static>,
    alpn: &'static [&'static [u8]],
    /// The system's certificates, if the client uses them.
    store: Vec<CertificateDer<'static>>,
    current: RefCell<Arc<ClientConfig>>,
    watched: FileChangeDetector,
}

impl Client {
    fn load(files: ClientFiles, alpn: &'static [&'static [u8]]) -> PyResult<Self> {
        let name = ServerName::try_from(files.name.clone()).map_err(|_| {
            let name = &files.name;
            PyValueError::new_err(format!("security: {name:?} is no name that can be verified"))
        })?;
        let store = match files.authority {
            // Certificates that cannot be read are skipped.
            None => rustls_native_certs::load_native_certs().certs,
            Some(_) => Vec::new(),
        };
        let paths = [&files.certificate, &files.key, &files.authority];
        let watched = FileChangeDetector::new(paths.into_iter().flatten().cloned().collect());
        let current = RefCell::new(files.config(&store, alpn).map_err(to_py_error)?);
        Ok(Self { files, name, alpn, store, current, watched })
    }
}

impl Security for Client {
    fn refresh(&self) -> Option<String> {
        if !self.watched.has_changed() {
            return None;
        }
        match self.files.config(&self.store, self.alpn) {
            Ok(config) => {
                self.current.replace(config);
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }

    fn begin(&self, out: &mut Vec<u8>) -> Result<TlsConnection, TlsError> {
        TlsConnection::client(self.current.borrow().clone(), self.name.clone(), out)
    }
}

impl ClientFiles {
    fn config(
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
