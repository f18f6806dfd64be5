//! TLS of a server: its files, and the configuration that is made of them.
//!
//! Files are looked at about once a second, while there is something to do. When one has changed,
//! all are read again, and connections accepted from then on use what is new; those that are open
//! go on as they are. Files that do not fit together, because only some are written yet or because
//! somebody erred, change nothing, and are told once.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use ucall_proto::tls::{
    ClientAuth, Identity, ServerConfig, ServerSettings, SettingsError, TicketSecret, TlsConnection,
    TlsError,
};

use crate::file_changes::FileChangeDetector;

/// The files that a server reads, and how to read them. All are PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Who the server is. The name that a client asks for chooses one; the first is shown to those
    /// who ask for none of them.
    pub identities: Vec<IdentityFiles>,
    /// The password of encrypted keys.
    pub password: Option<Vec<u8>>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// Who signs those of clients.
    pub client_authorities: Option<PathBuf>,
    /// What is spoken inside, the preferred one first (RFC 7301); none: anything.
    pub alpn: &'static [&'static [u8]],
}

/// A certificate and its key.
#[derive(Clone, Debug, Default)]
pub struct IdentityFiles {
    /// The certificate and those that lead from it to the authority, in this order, in one file or
    /// in several.
    pub certificates: Vec<PathBuf>,
    /// The key; `None` if it is in the first of those.
    pub private_key: Option<PathBuf>,
}

/// Why there is no configuration.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsFilesError {
    /// A file cannot be read.
    Read(PathBuf, io::Error),
    /// What is in a file cannot be used.
    Content(PathBuf, SettingsError),
    /// Files cannot be used together.
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
    /// A file cannot be read, or used.
    pub fn load(files: TlsFiles, tickets: TicketSecret) -> Result<Self, TlsFilesError> {
        // Looked at before they are read: what changes meanwhile is found the next time.
        let changes = FileChangeDetector::new(files.paths());
        let current = files.config(&tickets)?;
        Ok(Self { files, tickets, current: RwLock::new(current), changes })
    }

    /// The server's end of a connection that was accepted just now.
    ///
    /// # Errors
    /// rustls refuses to make one.
    pub fn accept(&self) -> Result<TlsConnection, TlsError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        TlsConnection::server(current)
    }

    /// Reads the files again if one of them has changed. `None` when none has, or when another
    /// worker is at it.
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
    /// What servers of functions speak inside.
    pub const HTTP: &'static [&'static [u8]] = &[b"http/1.1"];

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

    /// Names the file that an error comes from.
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

/// What is in the files of an identity.
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
        // A file need not end its last line.
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
