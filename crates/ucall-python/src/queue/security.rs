//! TLS settings of a queue, by their Python names.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::tls::{CertificateDer, ClientConfig, ServerName, TlsConnection, TlsError};
use ucall_queue::Security;
use ucall_server::{FileChangeDetector, Tls};

use crate::client_tls::ClientFiles;
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
    let name: String = settings.get_item("name")?.extract()?;
    Ok(Box::new(Client::load(&name, settings.extract()?, alpn)?))
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
    fn load(name: &str, files: ClientFiles, alpn: &'static [&'static [u8]]) -> PyResult<Self> {
        let name = ServerName::try_from(name.to_owned()).map_err(|_| {
            PyValueError::new_err(format!("security: {name:?} is no name that can be verified"))
        })?;
        let (store, watched) = (files.store(), FileChangeDetector::new(paths(&files)));
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

/// The files of a client that there are.
fn paths(files: &ClientFiles) -> Vec<PathBuf> {
    let paths = [&files.certificate, &files.key, &files.authority];
    paths.into_iter().flatten().cloned().collect()
}
