//! Listening sockets, set up the way every engine wants them.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Connections that may wait to be accepted; the system's own limit (`somaxconn`) cuts it.
pub(crate) const BACKLOG: i32 = 4096;
/// The time between keepalive probes of a silent peer, which is gone after three without an answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// Binds a TCP socket to `address` and listens.
///
/// Accepted connections send without delay (`TCP_NODELAY`). With `share_port`, several sockets may
/// listen on one port and the system spreads connections over them (`SO_REUSEPORT`); without, a
/// second one fails with `AddrInUse`.
pub fn bind(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Connections in TIME_WAIT do not prevent a new server from binding the port.
    socket.set_reuse_address(true)?;
    if share_port {
        socket.set_reuse_port(true)?;
    }
    // Linux copies the option to accepted sockets, which saves a call for each.
    socket.set_tcp_nodelay(true)?;
    // Linux copies these, too. Probes find peers that were cut off, or that have closed a
    // connection on which the server sends nothing.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE_INTERVAL).with_retries(3))?;
    socket.bind(&address.into()).map_err(|error| explain(error, address))?;
    socket.listen(BACKLOG).map_err(|error| explain(error, address))?;
    Ok(socket.into())
}

/// Binds a UDP socket to `address`. With `share_port`, several sockets may be bound to one port,
/// and the system assigns each source to one of them.
pub fn bind_udp(address: SocketAddr, share_port: bool) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if share_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&address.into()).map_err(|error| explain(error, address))?;
    Ok(socket.into())
}

/// A bound, listening socket, of TCP or a Unix one.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Duplicates the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// What it is bound to; `None` for a Unix socket.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        Ok(SockRef::from(&self.0).local_addr()?.as_socket())
    }

    /// A connection that waits. Fails with `WouldBlock` when none does.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(SockRef::from(&self.0).accept()?.0.into())
    }

    /// Makes [`Listener::accept`] return at once.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        SockRef::from(&self.0).set_nonblocking(true)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.0
    }
}

impl From<OwnedFd> for Listener {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self(listener.into())
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self(listener.into())
    }
}

/// Adds the address to the error, and what to do about it.
fn explain(error: io::Error, address: SocketAddr) -> io::Error {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: another process listens there already")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{address} is not allowed: ports below 1024 need privileges")
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("{address} cannot be listened on: this machine has no such address")
        }
        _ => format!("cannot listen on {address}: {error}"),
    };
    io::Error::new(error.kind(), reason)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    #[test]
    fn a_second_listener_fails_because_the_port_is_in_use() {
        let first = bind(ANY_PORT, false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }

    #[test]
    fn accepted_connections_probe_silent_peers() {
        let listener = bind(ANY_PORT, false).unwrap();
        let _peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = Listener::from(listener).accept().unwrap();
        let accepted = SockRef::from(&accepted);
        assert!(accepted.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        assert_eq!(accepted.tcp_keepalive_time().unwrap(), KEEPALIVE_INTERVAL);
    }

    #[test]
    fn a_shared_port_accepts_two_listeners() {
        let first = bind(ANY_PORT, true).unwrap();
        bind(first.local_addr().unwrap(), true).unwrap();
    }
}
