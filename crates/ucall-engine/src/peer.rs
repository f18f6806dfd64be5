//! The other end of a stream socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Peer {
    /// Of a TCP socket: its address and port.
    Address(SocketAddr),
    /// On a Unix socket: the process that connected, as the kernel reports it.
    Process {
        /// Its id; 0 if it is in another namespace.
        pid: i32,
        /// Its effective user.
        uid: u32,
        /// Its effective group.
        gid: u32,
    },
    /// A client behind a proxy that does not name it.
    Unknown,
}

/// Who is at the other end of a connected socket.
pub fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let peer = socket2::SockRef::from(&socket).peer_addr()?;
    match peer.as_socket() {
        Some(address) => Ok(Peer::Address(address)),
        None => process_of(socket),
    }
}

/// See [`crate::Engine::limit_unsent`]. A Unix socket has no such option, and a limit of its own.
#[cfg(target_os = "linux")]
pub(crate) fn limit_unsent(socket: BorrowedFd<'_>, bytes_max: u32) {
    let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(bytes_max);
}

/// Does nothing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_unsent(_socket: BorrowedFd<'_>, _bytes_max: u32) {}

/// Whether the peer has closed or reset a connected socket. A TCP peer that has only shut down its
/// side looks like one that has closed, until it answers bytes or a keepalive probe with a reset.
#[cfg(target_os = "linux")]
pub(crate) fn has_left(socket: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Other systems report a shutdown as the end of both directions.
#[cfg(not(target_os = "linux"))]
pub(crate) fn has_left(socket: BorrowedFd<'_>) -> bool {
    let peer = socket2::SockRef::from(&socket).peer_addr();
    peer.is_err_and(|error| error.kind() == io::ErrorKind::NotConnected)
}

#[cfg(target_os = "linux")]
fn process_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    use std::os::fd::AsRawFd;
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of plain numbers to `found`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(Peer::Process { pid: found.pid, uid: found.uid, gid: found.gid }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn process_of(_: BorrowedFd<'_>) -> io::Result<Peer> {
    Err(io::ErrorKind::Unsupported.into())
}
