//! Connections to other servers, begun without waiting.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use socket2::{SockAddr, SockRef, Socket, Type};

/// Begins to connect a stream socket. It is writable once that has succeeded or failed, and
/// [`finish_connect`] then returns which.
pub fn begin_connect(address: &SockAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    if !address.is_unix() {
        socket.set_tcp_nodelay(true)?;
    }
    match socket.connect(address) {
        Err(error) if error.raw_os_error() != Some(Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// The connected socket, as [`Engine::adopt`](crate::Engine::adopt) takes it, or why there is none.
pub fn finish_connect(socket: OwnedFd) -> io::Result<OwnedFd> {
    let inner = SockRef::from(&socket);
    if let Some(error) = inner.take_error()? {
        return Err(error);
    }
    let (peer, own) = (inner.peer_addr()?, inner.local_addr()?);
    // The system may pick a local port without a listener for the socket itself.
    if !peer.is_unix() && peer == own {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    // io_uring would report a socket that does not block as ready at once.
    inner.set_nonblocking(false)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn connect(address: &SockAddr) -> io::Result<OwnedFd> {
        let socket = begin_connect(address)?;
        let ready = PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT);
        poll(&mut [ready], None)?;
        finish_connect(socket)
    }

    #[test]
    fn a_connect_ends_with_a_socket_or_an_error() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound").into();
        assert!(connect(&address).is_ok());
        drop(listener);
        let error = connect(&address).expect_err("no listener");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
