//! TLS of a server: its files, and the configuration that is made of them.
//!
//! Files are looked at about once a second, while there is something to do. When one has changed,
//! all are read again, and connections accepted from then on use what is new; those that are open
//! go on as they are. Files that do not fit together, because only some are written yet or because
//! somebody erred, change nothing, and are told once.

use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError};

use ucall_proto::Connection;
use ucall_proto::tls::{
    ClientAuth, Identity, ServerConfig, ServerSettings, SettingsError, Stage, TicketSecret,
    TlsError,
};

use crate::dispatch::Office;
use crate::{Config, Handler};

/// What is spoken inside.
const ALPN: &[&[u8]] = &[b"http/1.1"];

/// The files that a server reads, and how to read them. All are PEM.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    /// Certificate chains, the server's own certificate first in each. The client's choice of a
    /// name chooses one; the first is shown to those who ask for none of them.
    pub certificates: Vec<PathBuf>,
    /// The key of each chain, in the same order. A chain without one has it in its own file.
    pub private_keys: Vec<PathBuf>,
    /// The password of encrypted keys.
    pub password: Option<Vec<u8>>,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// Who signs those of clients.
    pub client_authorities: Option<PathBuf>,
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
    /// What tells the files that were read from others.
    seen: Mutex<Vec<Option<Stamp>>>,
}

/// What changes when a file does.
type Stamp = (u64, u64, i64, i64);

impl Tls {
    /// Reads the files. Servers with the same `tickets` resume each other's sessions.
    ///
    /// # Errors
    /// A file cannot be read, or used.
    pub fn load(files: TlsFiles, tickets: TicketSecret) -> Result<Self, TlsFilesError> {
        let seen = files.stamps();
        let current = files.config(&tickets)?;
        Ok(Self { files, tickets, current: RwLock::new(current), seen: Mutex::new(seen) })
    }

    /// The server's end of a connection that was accepted just now.
    ///
    /// # Errors
    /// rustls refuses to make one.
    pub fn stage(&self) -> Result<Stage, TlsError> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        Stage::server(current)
    }

    /// Reads the files again if one of them has changed. `None` when none has, or when another
    /// worker is at it.
    pub fn refresh(&self) -> Option<Result<(), TlsFilesError>> {
        let mut seen = match self.seen.try_lock() {
            Ok(seen) => seen,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        // Looked at before they are read: what changes meanwhile is found the next time.
        let stamps = self.files.stamps();
        if *seen == stamps {
            return None;
        }
        *seen = stamps;
        Some(self.files.config(&self.tickets).map(|config| {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        }))
    }
}

impl TlsFiles {
    fn stamps(&self) -> Vec<Option<Stamp>> {
        let paths = self.certificates.iter().chain(&self.private_keys);
        paths.chain(&self.client_authorities).map(|path| stamp(path)).collect()
    }

    fn config(&self, tickets: &TicketSecret) -> Result<Arc<ServerConfig>, TlsFilesError> {
        let chains = self.certificates.iter().map(|path| read(path));
        let chains = chains.collect::<Result<Vec<_>, _>>()?;
        let keys = self.private_keys.iter().map(|path| read(path));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let authorities = self.client_authorities.as_deref().map(read).transpose()?;
        let identities: Vec<Identity<'_>> = chains
            .iter()
            .enumerate()
            .map(|(index, chain)| Identity {
                certificates: chain,
                private_key: keys.get(index).unwrap_or(chain),
                password: self.password.as_deref(),
            })
            .collect();
        let settings = ServerSettings {
            identities: &identities,
            client_auth: self.client_auth,
            client_authorities: authorities.as_deref(),
            alpn: ALPN,
            tickets,
        };
        settings.build().map_err(|error| self.blame(&identities, error))
    }

    /// Names the file that an error comes from.
    fn blame(&self, identities: &[Identity<'_>], error: SettingsError) -> TlsFilesError {
        let found = identities.iter().zip(&self.certificates).enumerate();
        for (index, (identity, path)) in found {
            if let Err(error) = identity.check() {
                let is_certificate = identity.check_certificates().is_err();
                let path = if is_certificate { path } else { self.key_path(index, path) };
                return TlsFilesError::Content(path.clone(), error);
            }
        }
        match &self.client_authorities {
            Some(path) => TlsFilesError::Content(path.clone(), error),
            None => TlsFilesError::Settings(error),
        }
    }

    fn key_path<'a>(&'a self, index: usize, certificates: &'a PathBuf) -> &'a PathBuf {
        self.private_keys.get(index).unwrap_or(certificates)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsFilesError> {
    fs::read(path).map_err(|error| TlsFilesError::Read(path.to_owned(), error))
}

fn stamp(path: &Path) -> Option<Stamp> {
    let of = |data: Metadata| (data.ino(), data.len(), data.mtime(), data.mtime_nsec());
    fs::metadata(path).ok().map(of)
}

impl<H: Handler> Office<H> {
    /// A connection that was accepted just now.
    pub(crate) fn new_connection(&mut self) -> Option<Connection> {
        let Config { limits, tls, .. } = &self.config;
        let Some(tls) = tls else { return Some(Connection::new(self.now, limits)) };
        match tls.stage() {
            Ok(stage) => Some(Connection::secure(self.now, limits, stage)),
            Err(error) => {
                self.handler.warn(&format!("cannot begin TLS: {error}"));
                None
            }
        }
    }

    /// Reads files of TLS that have changed.
    pub(crate) fn refresh_tls(&mut self) {
        let Some(tls) = &self.config.tls else { return };
        if let Some(Err(error)) = tls.refresh() {
            let line = format!("the files of TLS have changed and cannot be used: {error}");
            self.handler.warn(&line);
        }
    }
}
