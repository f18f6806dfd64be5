//! Listening sockets, set up the way every engine wants them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted; the system's own limit (`somaxconn`) cuts it.
const BACKLOG: i32 = 4096;

/// Binds a TCP socket to `address` and listens.
///
/// Accepted connections send without delay (`TCP_NODELAY`). With `share_port`, several sockets may
/// listen on one port and the system spreads connections over them (`SO_REUSEPORT`); without, a
/// second one fails with `AddrInUse`.
pub fn bind(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // What lingers from earlier connections on the port does not keep a new server from it.
    socket.set_reuse_address(true)?;
    if share_port {
        socket.set_reuse_port(true)?;
    }
    // Linux hands it on to accepted sockets, which saves a call each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into()).map_err(|error| explain(error, address))?;
    socket.listen(BACKLOG).map_err(|error| explain(error, address))?;
    Ok(socket.into())
}

/// The address of the other end of a connected socket.
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    let peer = socket2::SockRef::from(&socket).peer_addr()?;
    // A Unix socket's peer has none of this kind.
    peer.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Says which address it was, and what to do about it.
fn explain(error: io::Error, address: SocketAddr) -> io::Error {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: another process listens there already")
        }
        io::ErrorKind::PermissionDenied => {
            format!("{address} is not allowed: ports below 1024 need privileges")
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
    fn a_second_listener_is_told_that_the_port_is_taken() {
        let first = bind(ANY_PORT, false).unwrap();
        let address = first.local_addr().unwrap();
        let error = bind(address, false).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }

    #[test]
    fn a_shared_port_takes_two() {
        let first = bind(ANY_PORT, true).unwrap();
        bind(first.local_addr().unwrap(), true).unwrap();
    }
}
