//! The TLS files of a server, and the configuration that is built from them.
//!
//! A sweep checks about once a second whether a file has changed. If so, all are read again, and
//! connections that are accepted from then on use the new configuration. Files that do not match
//! each other, because not all of them are written yet or by mistake, are logged once and change
//! nothing.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, PoisonError, RwLock};

use ucall_proto::tls::{
    ClientAuth, Identity, ServerConfig, ServerSettings, SettingsError, TicketSecret, TlsConnection,
    TlsError,
};

use crate::file_changes::FileChangeDetector;

/// The files that a server reads, and how to read them. All are PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// The identities of the server. The name in the client's handshake selects one; the first is
    /// for clients that name none of them.
    pub identities: Vec<IdentityFiles>,
    /// The password of encrypted keys.
    pub password: Option<Vec<u8>>,
    /// Whether clients authenticate by a certificate.
    pub client_auth: ClientAuth,
    /// The authorities that sign the certificates of clients.
    pub client_authorities: Option<PathBuf>,
    /// The application protocols (RFC 7301), the preferred one first; if empty, any.
    pub alpn: &'static [&'static [u8]],
}

/// A certificate and its key.
#[derive(Clone, Debug, Default)]
pub struct IdentityFiles {
    /// The chain from the certificate towards the authority, in this order, in one file or in
    /// several.
    pub certificates: Vec<PathBuf>,
    /// The private key; `None` if it is in the first file of the chain.
    pub private_key: Option<PathBuf>,
}

/// Why no configuration could be built.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsFilesError {
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// The content of a file cannot be used.
    Content(PathBuf, SettingsError),
    /// The files cannot be used together.
    Settings(SettingsError),
}

impl fmt::Display for TlsFilesError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(path, error) => write!(formatter, "{}: {error}", path.display()),
            Self::Content(path, error) => write!(formatter, "{}: {error}", path.display()),
            Self::Settings(error) => error.fmt(formatter),
        }
    }
}

impl std::error::Error for TlsFilesError {}

/// TLS of one server, shared by its workers.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    tickets: TicketSecret,
    current: RwLock<Arc<ServerConfig>>,
    changes: FileChangeDetector,
}

impl Tls {
    /// Reads the files. Servers with the same `tickets` resume each other's sessions.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn load(mut files: TlsFiles, tickets: TicketSecret) -> Result<Self, TlsFilesError> {
        files.make_absolute();
        // Before the files are read: the next refresh finds a change during the read.
        let changes = FileChangeDetector::new(files.paths());
        let current = files.config(&tickets)?;
        Ok(Self { files, tickets, current: RwLock::new(current), changes })
    }

    /// The TLS of a new connection.
    ///
    /// # Errors
    /// rustls rejects the configuration.
    pub fn accept(&self) -> Result<TlsConnection, TlsError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsConnection::server(current)
    }

    /// Reads the files again if one of them has changed. `None` if none has, or if another worker
    /// is reading them.
    pub fn refresh(&self) -> Option<Result<(), TlsFilesError>> {
        if !self.changes.has_changed() {
            return None;
        }
        Some(self.files.config(&self.tickets).map(|config| {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        }))
    }
}

impl TlsFiles {
    /// The application protocols of a server of functions.
    pub const HTTP: &'static [&'static [u8]] = &[b"http/1.1"];

    /// Has the files found again after the process has changed its directory, as daemon(3) does.
    fn make_absolute(&mut self) {
        let of_identities = self
            .identities
            .iter_mut()
            .flat_map(|files| files.certificates.iter_mut().chain(&mut files.private_key));
        for path in of_identities.chain(&mut self.client_authorities) {
            if let Ok(found) = absolute(&*path) {
                *path = found;
            }
        }
    }

    fn paths(&self) -> Vec<PathBuf> {
        let paths = self.identities.iter().flat_map(IdentityFiles::paths);
        paths.chain(&self.client_authorities).cloned().collect()
    }

    fn config(&self, tickets: &TicketSecret) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let texts = self.identities.iter().map(IdentityFiles::read);
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let authorities = self.client_authorities.as_deref().map(read).transpose()?;
        let password = self.password.as_deref();
        let identities: Vec<_> = texts.iter().map(|texts| texts.identity(password)).collect();
        let settings = ServerSettings {
            identities: &identities,
            client_auth: self.client_auth,
            client_authorities: authorities.as_deref(),
            alpn: self.alpn,
            tickets,
        };
        settings.build().map_err(|error| self.locate_error(&identities, error))
    }

    /// Adds the path of the file that an error comes from.
    fn locate_error(&self, identities: &[Identity<'_>], error: SettingsError) -> TlsFilesError {
        for (identity, files) in identities.iter().zip(&self.identities) {
            if let Err(error) = identity.check() {
                let path = match identity.check_certificates() {
                    Ok(()) => files.key_path(),
                    Err(_) => files.certificates.first(),
                };
                return match path {
                    Some(path) => TlsFilesError::Content(path.clone(), error),
                    None => TlsFilesError::Settings(error),
                };
            }
        }
        match &self.client_authorities {
            Some(path) => TlsFilesError::Content(path.clone(), error),
            None => TlsFilesError::Settings(error),
        }
    }
}

/// The contents of an identity's files.
struct IdentityTexts {
    certificates: Vec<u8>,
    private_key: Vec<u8>,
}

impl IdentityFiles {
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.certificates.iter().chain(&self.private_key)
    }

    fn key_path(&self) -> Option<&PathBuf> {
        self.private_key.as_ref().or_else(|| self.certificates.first())
    }

    fn read(&self) -> Result<IdentityTexts, TlsFilesError> {
        let texts = self.certificates.iter().map(|path| read(path));
        // The last line of a file may lack its newline.
        let certificates = texts.collect::<Result<Vec<_>, _>>()?.join(b"\n".as_slice());
        let private_key = self.key_path().map_or(Ok(Vec::new()), |path| read(path))?;
        Ok(IdentityTexts { certificates, private_key })
    }
}

impl IdentityTexts {
    fn identity<'a>(&'a self, password: Option<&'a [u8]>) -> Identity<'a> {
        Identity { certificates: &self.certificates, private_key: &self.private_key, password }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    fs::read(path).map_err(|error| TlsFilesError::Read(path.to_owned(), error))
}
