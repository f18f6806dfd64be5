//! TLS for Python: the settings of a server, and the session of a call's connection.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use ucall_proto::tls::{
    CertificateDer, CertificateSummary, ClientAuth, ClientConfig, ClientSettings, Identity,
    TicketSecret, TlsSession, Trust,
};
use ucall_server::{IdentityFiles, Tls, TlsFiles, TlsFilesError};

/// The settings that `ucall._tls.settings` returns.
#[derive(FromPyObject)]
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

/// The files of a client.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ClientFiles {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    password: Option<Vec<u8>>,
    authority: Option<PathBuf>,
}

impl ClientFiles {
    /// The files that there are.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        let paths = [&self.certificate, &self.key, &self.authority];
        paths.into_iter().flatten().cloned().collect()
    }

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
#[pyclass(frozen, module = "ucall", name = "TLS")]
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
        format!("<ucall.TLS {}, {}>", self.session.version, self.session.cipher)
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
