//! The TLS files of a server, and the configuration that is built from them.
//!
//! A worker checks in its sweeps and before a handshake, once a second at most, whether a file has
//! changed. If so, all are read again, and handshakes that begin from then on use the new
//! configuration. Files that do not match each other, because not all of them are written yet or by
//! mistake, are logged once and change nothing.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ucall_proto::Connection;
use ucall_proto::tls::{
    CertificateValidity, ClientAuth, Identity, ServerConfig, ServerSettings, SettingsError,
    TicketSecret, TlsConnection, TlsError,
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
    current: RwLock<Loaded>,
    changes: FileChangeDetector,
    /// Locked while files are checked and read, so that no worker begins a handshake by old ones
    /// meanwhile.
    refreshing: Mutex<()>,
}

/// What was built from the files.
#[derive(Clone, Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    /// Those of the server's certificates, with the files of these.
    validities: Arc<[(PathBuf, CertificateValidity)]>,
}

/// When a worker has checked the files of its server.
#[derive(Debug, Default)]
pub(crate) struct TlsChecks {
    last: Option<Instant>,
}

impl TlsChecks {
    /// The time between two checks, at least.
    const INTERVAL: Duration = Duration::from_secs(1);

    /// Checks the files unless they were a moment ago; returns what there is to warn of.
    pub(crate) fn check(
        &mut self,
        tls: &Tls,
        now: Instant,
        unix_time: impl FnOnce() -> Duration,
    ) -> Vec<String> {
        let before = self.last;
        if before.is_some_and(|it| now.saturating_duration_since(it) < Self::INTERVAL) {
            return Vec::new();
        }
        self.last = Some(now);
        match tls.refresh() {
            Some(Err(error)) => vec![format!("the files have changed but cannot be used: {error}")],
            None if before.is_some() => Vec::new(),
            _ => tls.invalid_certificates(unix_time()),
        }
    }
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
        let current = RwLock::new(files.load(&tickets)?);
        Ok(Self { files, tickets, current, changes, refreshing: Mutex::new(()) })
    }

    /// The TLS of a new connection.
    ///
    /// # Errors
    /// rustls rejects the configuration.
    pub fn accept(&self) -> Result<TlsConnection, TlsError> {
        TlsConnection::server(self.current().config)
    }

    /// Has a handshake of a connection that begins use the current files.
    pub(crate) fn renew(&self, connection: &mut Connection) -> Result<(), TlsError> {
        connection.renew_tls(&self.current().config)
    }

    fn current(&self) -> Loaded {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the files again if one of them has changed; `None` if none has. Waits for another
    /// worker that reads them.
    pub fn refresh(&self) -> Option<Result<(), TlsFilesError>> {
        let _refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.changes.has_changed() {
            return None;
        }
        Some(self.files.load(&self.tickets).map(|loaded| {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        }))
    }

    /// The files of certificates that are not valid at a time since 1970, and why.
    fn invalid_certificates(&self, unix_time: Duration) -> Vec<String> {
        let current = self.current();
        let validities = current.validities.iter();
        let problems = validities.filter_map(|(path, validity)| {
            Some(format!("{}: {}", path.display(), validity.problem(unix_time)?))
        });
        problems.collect()
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

    fn load(&self, tickets: &TicketSecret) -> Result<Loaded, TlsFilesError> {
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
        let config = settings.build().map_err(|error| self.locate_error(&identities, error))?;
        let validities = texts.into_iter().flat_map(|texts| texts.validities).collect();
        Ok(Loaded { config, validities })
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
    validities: Vec<(PathBuf, CertificateValidity)>,
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
        let texts = texts.collect::<Result<Vec<_>, _>>()?;
        let validities = self.certificates.iter().zip(&texts).flat_map(|(path, text)| {
            CertificateValidity::of_all(text).into_iter().map(|it| (path.clone(), it))
        });
        let validities = validities.collect();
        // The last line of a file may lack its newline.
        let certificates = texts.join(b"\n".as_slice());
        let private_key = self.key_path().map_or(Ok(Vec::new()), |path| read(path))?;
        Ok(IdentityTexts { certificates, private_key, validities })
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
