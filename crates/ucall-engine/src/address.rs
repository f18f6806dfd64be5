//! Where a server listens.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use socket2::{SockRef, Type};

use crate::listen::set_up_accepted;
use crate::unix::refuse_descriptors;
use crate::{Listener, UnixFile, bind, bind_unix};

/// The prefix of a Unix socket's path, in place of a host.
const UNIX: &str = "unix:";

/// An address of TCP, or the path of a Unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// An address and a port; the port 0 picks a free one.
    Tcp(SocketAddr),
    /// The path of its file, and the permissions that the file gets.
    Unix {
        /// Where the file is.
        path: PathBuf,
        /// Who may connect, such as `0o600`.
        mode: u32,
    },
}

/// A socket that listens.
#[derive(Debug)]
pub struct Bound {
    /// The socket.
    pub listener: Listener,
    /// With the port that was picked.
    pub address: Address,
    /// The file of a Unix socket, which is removed on drop.
    pub file: Option<UnixFile>,
}

impl Bound {
    /// A socket that another process has bound, set up as [`bind`] does.
    ///
    /// # Errors
    /// `InvalidInput` if it is no stream socket that listens.
    pub fn inherit(listener: Listener) -> io::Result<Self> {
        let socket = SockRef::from(&listener);
        if socket.r#type()? != Type::STREAM || !is_listener(&socket)? {
            let reason = "it is no socket that listens for connections";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
        }
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        let address = if let Some(address) = local.as_socket() {
            set_up_accepted(&socket)?;
            Address::Tcp(address)
        } else {
            refuse_descriptors(&socket);
            let path = local.as_pathname().map(Path::to_owned).unwrap_or_default();
            Address::Unix { path, mode: 0 }
        };
        Ok(Self { listener, address, file: None })
    }
}

/// Whether a socket listens.
#[cfg(not(target_vendor = "apple"))]
fn is_listener(socket: &SockRef<'_>) -> io::Result<bool> {
    socket.is_listener()
}

/// macOS does not say. The first `accept` fails.
#[cfg(target_vendor = "apple")]
fn is_listener(_: &SockRef<'_>) -> io::Result<bool> {
    Ok(true)
}

impl Address {
    /// What needs no name server: `unix:/path`, or a numeric address. `None` for a name.
    pub fn parse(host: &str, port: u16, mode: u32) -> io::Result<Option<Self>> {
        match host.strip_prefix(UNIX) {
            Some("") => {
                let reason = "expected the path of a socket, as in unix:/run/app.sock, got none";
                Err(io::Error::new(io::ErrorKind::InvalidInput, reason))
            }
            Some(path) => Ok(Some(Self::Unix { path: path.into(), mode })),
            None => Ok(host.parse().ok().map(|ip| Self::Tcp(SocketAddr::new(ip, port)))),
        }
    }

    /// Resolves a host and a port, or `unix:/path`. A name may have several addresses: IPv4 comes
    /// first, because `localhost` mostly means it.
    pub fn resolve(host: &str, port: u16, mode: u32) -> io::Result<Self> {
        if let Some(address) = Self::parse(host, port, mode)? {
            return Ok(address);
        }
        let unknown = |error: io::Error| io::Error::new(error.kind(), format!("{host}: {error}"));
        let mut addresses: Vec<_> = (host, port).to_socket_addrs().map_err(unknown)?.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        addresses.first().copied().map(Self::Tcp).ok_or_else(none)
    }

    /// Binds and listens; `share_port` as for [`bind`].
    pub fn bind(&self, share_port: bool) -> io::Result<Bound> {
        match self {
            Self::Tcp(address) => {
                let listener = bind(*address, share_port)?;
                let address = Self::Tcp(listener.local_addr()?);
                Ok(Bound { listener: listener.into(), address, file: None })
            }
            Self::Unix { path, mode } => {
                let (listener, file) = bind_unix(path, *mode)?;
                let address = self.clone();
                Ok(Bound { listener: listener.into(), address, file: Some(file) })
            }
        }
    }

    /// Whether it is reached by this machine alone, and by the browsers on it. No browser reaches a
    /// Unix socket.
    pub fn is_loopback(&self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().is_loopback())
    }

    /// The part of an address that [`Address::resolve`] uses as the host.
    pub fn host(&self) -> String {
        match self {
            Self::Tcp(address) => address.ip().to_string(),
            Self::Unix { path, .. } => format!("{UNIX}{}", path.display()),
        }
    }

    /// The port; 0 for a Unix socket.
    pub fn port(&self) -> u16 {
        match self {
            Self::Tcp(address) => address.port(),
            Self::Unix { .. } => 0,
        }
    }

    /// The permissions of a Unix socket's file; 0 for TCP.
    pub fn mode(&self) -> u32 {
        match self {
            Self::Tcp(_) => 0,
            Self::Unix { mode, .. } => *mode,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(formatter),
            Self::Unix { .. } => formatter.write_str(&self.host()),
        }
    }
}
