//! TLS for Python: the settings of a server, and the session of a call's connection.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ucall_proto::tls::{CertificateSummary, ClientAuth, TicketSecret, TlsSession};
use ucall_server::{IdentityFiles, Tls, TlsFiles, TlsFilesError};

/// The settings that `ucall._server.tls.settings` returns.
#[derive(Clone, FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TlsSettings {
    certificates: Vec<PathBuf>,
    private_keys: Vec<PathBuf>,
    password: Option<Vec<u8>>,
    client_authorities: Option<PathBuf>,
    client_auth: String,
    tickets: Option<[u8; TicketSecret::BYTES]>,
}

impl TlsSettings {
    /// Loads the files of an RPC server.
    pub(crate) fn load(self) -> PyResult<Arc<Tls>> {
        self.load_for(TlsFiles::HTTP)
    }

    /// Loads the files of a server whose protocol inside TLS has this name (ALPN).
    pub(crate) fn load_for(self, alpn: &'static [&'static [u8]]) -> PyResult<Arc<Tls>> {
        let client_auth = match self.client_auth.as_str() {
            "optional" => ClientAuth::Optional,
            "required" => ClientAuth::Required,
            _ => ClientAuth::None,
        };
        let mut keys = self.private_keys.into_iter();
        let identities = self
            .certificates
            .into_iter()
            .map(|path| IdentityFiles { certificates: vec![path], private_key: keys.next() });
        let files = TlsFiles {
            identities: identities.collect(),
            password: self.password,
            client_auth,
            client_authorities: self.client_authorities,
            alpn,
        };
        let no_randomness = || PyRuntimeError::new_err("the system's random source failed");
        let secret = self.tickets.map(TicketSecret::new).or_else(TicketSecret::random);
        Tls::load(files, secret.ok_or_else(no_randomness)?).map(Arc::new).map_err(to_py_error)
    }
}

/// The exception for a file that cannot be used.
pub(crate) fn to_py_error(error: TlsFilesError) -> PyErr {
    match error {
        TlsFilesError::Read(path, error) => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            // `OSError` picks its subclass, such as FileNotFoundError, by these arguments.
            PyOSError::new_err((error.raw_os_error(), text, path.into_os_string()))
        }
        error => PyValueError::new_err(error.to_string()),
    }
}

/// The TLS of a connection: ``ctx.tls``.
#[pyclass(frozen, module = "ucall", name = "TLSConnection")]
pub(crate) struct PyTls {
    session: Arc<TlsSession>,
}

impl PyTls {
    pub(crate) fn new(session: Arc<TlsSession>) -> Self {
        Self { session }
    }
}

#[pymethods]
impl PyTls {
    /// ``"TLSv1.2"`` or ``"TLSv1.3"``.
    #[getter]
    fn version(&self) -> &'static str {
        self.session.version
    }

    /// The cipher suite, such as ``"TLS_AES_256_GCM_SHA384"``.
    #[getter]
    fn cipher(&self) -> &str {
        &self.session.cipher
    }

    /// Whether the client resumed an earlier session.
    #[getter]
    fn is_resumed(&self) -> bool {
        self.session.is_resumed
    }

    /// The client's verified certificate; None if it sent none.
    #[getter]
    fn client_certificate(&self) -> Option<Certificate> {
        let der = self.session.peer_certificates.first()?;
        Some(Certificate { der: der.to_vec(), summary: CertificateSummary::of(der) })
    }

    fn __repr__(&self) -> String {
        format!("<ucall.TLSConnection {}, {}>", self.session.version, self.session.cipher)
    }
}

/// A client's certificate: ``ctx.tls.client_certificate``.
#[pyclass(frozen, module = "ucall")]
pub(crate) struct Certificate {
    der: Vec<u8>,
    summary: CertificateSummary,
}

#[pymethods]
impl Certificate {
    /// The certificate in DER.
    #[getter]
    fn der<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.der)
    }

    /// The subject, as in ``"CN=alice,O=Acme"`` (RFC 4514); empty if it has none.
    #[getter]
    fn subject(&self) -> &str {
        &self.summary.subject
    }

    /// The common name of the subject; None without one.
    #[getter]
    fn common_name(&self) -> Option<&str> {
        self.summary.common_name.as_deref()
    }

    /// The names, addresses and URIs that it is issued for.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.summary.names)
    }

    fn __repr__(&self) -> String {
        format!("<ucall.Certificate {}>", self.summary.subject)
    }
}
