//! Listening sockets, set up the way every engine wants them.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Connections that may wait to be accepted; the system's own limit (`somaxconn`) cuts it.
pub(crate) const BACKLOG: i32 = 4096;
/// The time between keepalive probes of a silent peer, which is gone after three without an answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// The kernel closes the sockets of a killed server's io_uring a moment after its process has
/// ended. So a port in use is tried again this often, which is a fifth of a second in all.
const BIND_RETRIES: usize = 20;
/// The time between two tries.
const BIND_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Binds a TCP socket to `address` and listens. May sleep: a port in use is tried again for 0.2 s.
///
/// Accepted connections send without delay (`TCP_NODELAY`). With `share_port`, several sockets may
/// listen on one port and the system spreads connections over them (`SO_REUSEPORT`); without, a
/// second one fails with `AddrInUse`.
pub fn bind(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let mut retries = BIND_RETRIES;
    loop {
        match bind_once(address, share_port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && retries > 0 => {
                retries -= 1;
                thread::sleep(BIND_RETRY_INTERVAL);
            }
            bound => return bound,
        }
    }
}

fn bind_once(address: SocketAddr, share_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // Connections in TIME_WAIT do not prevent a new server from binding the port.
    socket.set_reuse_address(true)?;
    if share_port {
        socket.set_reuse_port(true)?;
    }
    set_up_accepted(&socket)?;
    socket.bind(&address.into()).map_err(|error| explain(error, address))?;
    socket.listen(BACKLOG).map_err(|error| explain(error, address))?;
    Ok(socket.into())
}

/// Sets the options of a listening socket that Linux copies to the sockets that it accepts, which
/// saves calls for each.
pub(crate) fn set_up_accepted(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Probes find peers that were cut off, or that have closed a connection on which the server
    // sends nothing.
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL);
    socket.set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE_INTERVAL).with_retries(3))
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

/// Which workers accept connections at a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// One.
    None,
    /// Those of several threads, which stop together.
    Threads,
    /// Those of several processes, of which each may stop while the others accept.
    Processes,
}

/// A bound, listening socket, of TCP or a Unix one.
///
/// The waiters at a shared socket take turns: the kernel wakes one of them for each connection, the
/// one that has waited for longest. So a waiter that leaves without accepting has to wake the
/// others ([`Listener::wake_all`]), or a connection waits until the next one arrives.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    sharing: Sharing,
    is_inherited: bool,
}

impl Listener {
    /// The same socket, which other workers listen on, too.
    #[must_use]
    pub fn shared(self, sharing: Sharing) -> Self {
        Self { sharing, ..self }
    }

    /// The same socket, which another program has bound and keeps open for further servers: what
    /// waits when the last worker stops is for the next server.
    #[must_use]
    pub fn inherited(self) -> Self {
        Self { is_inherited: true, ..self }
    }

    /// Whether another program keeps it open.
    pub fn is_inherited(&self) -> bool {
        self.is_inherited
    }

    /// Which other workers listen on it.
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Whether other workers may listen on it.
    pub fn is_shared(&self) -> bool {
        self.is_inherited || self.sharing != Sharing::None
    }

    /// Duplicates the socket.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, ..*self })
    }

    /// What it is bound to; `None` for a Unix socket.
    pub fn local_address(&self) -> io::Result<Option<SocketAddr>> {
        Ok(SockRef::from(&self.socket).local_addr()?.as_socket())
    }

    /// A connection that waits. Fails with `WouldBlock` when none does.
    pub fn accept(&self) -> io::Result<OwnedFd> {
        Ok(SockRef::from(&self.socket).accept()?.0.into())
    }

    /// Makes [`Listener::accept`] return at once.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        SockRef::from(&self.socket).set_nonblocking(true)
    }

    /// Wakes all waiters, of all processes.
    ///
    /// Linux wakes them when a socket is shut down. A socket that listens does not send, so the end
    /// of sending changes nothing. Other systems wake all waiters for each connection.
    pub fn wake_all(&self) {
        #[cfg(target_os = "linux")]
        SockRef::from(&self.socket).shutdown(std::net::Shutdown::Write).unwrap_or(());
    }

    /// Has the kernel queue no further connections, in no process. Those that wait can be accepted.
    ///
    /// A Unix socket refuses further ones. A TCP socket drops their first segment, which their
    /// clients send again after a second. So [`Listener::shut_down`] should follow at once.
    pub fn stop_queueing(&self) {
        #[cfg(target_os = "linux")]
        match self.local_address() {
            Ok(None) => SockRef::from(&self.socket).shutdown(std::net::Shutdown::Read),
            _ => SockRef::from(&self.socket).attach_filter(&syn_filter()),
        }
        // Where that fails, a connection may be reset that arrives before the shutdown.
        .unwrap_or(());
    }

    /// Ends the socket for all processes that have it: further connections are refused, and those
    /// that wait are reset.
    pub fn shut_down(&self) {
        SockRef::from(&self.socket).shutdown(std::net::Shutdown::Both).unwrap_or(());
    }

    /// Whether [`Listener::shut_down`] was called in any process.
    pub fn is_shut_down(&self) -> bool {
        #[cfg(target_os = "linux")]
        let ended = PollFlags::HUP | PollFlags::RDHUP;
        #[cfg(not(target_os = "linux"))]
        let ended = PollFlags::HUP;
        let mut polled = [PollFd::new(&self.socket, ended)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok() && polled[0].revents().intersects(ended)
    }
}

/// Drops segments that begin a connection. The others of a handshake pass.
#[cfg(target_os = "linux")]
fn syn_filter() -> [socket2::SockFilter; 4] {
    const FLAGS_OFFSET: u32 = 13;
    const SYN: u32 = 0x02;
    let filter = socket2::SockFilter::new;
    [
        filter((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, FLAGS_OFFSET),
        filter((libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16, 0, 1, SYN),
        filter((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
        filter((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
    ]
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<Listener> for OwnedFd {
    fn from(listener: Listener) -> Self {
        listener.socket
    }
}

impl From<OwnedFd> for Listener {
    fn from(descriptor: OwnedFd) -> Self {
        Self { socket: descriptor, sharing: Sharing::None, is_inherited: false }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        OwnedFd::from(listener).into()
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        OwnedFd::from(listener).into()
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
    fn a_port_that_becomes_free_is_bound() {
        // This thread may get no processor in time.
        let is_bound = |_| {
            let first = bind(ANY_PORT, false).unwrap();
            let address = first.local_addr().unwrap();
            let second = thread::spawn(move || bind(address, false));
            thread::sleep(3 * BIND_RETRY_INTERVAL);
            drop(first);
            second.join().unwrap().is_ok()
        };
        assert!((0..50).any(is_bound));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_socket_that_ends_accepts_what_waits_and_refuses_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (unix, _file) = crate::bind_unix(&path, 0o600).unwrap();
        for socket in [Listener::from(bind(ANY_PORT, false).unwrap()), Listener::from(unix)] {
            let connect = || {
                let address = SockRef::from(&socket).local_addr().unwrap();
                let peer = Socket::new(address.domain(), Type::STREAM, None).unwrap();
                peer.connect_timeout(&address, Duration::from_millis(20)).map(|()| peer)
            };
            let waiting = [connect().unwrap(), connect().unwrap()];
            socket.accept().unwrap();
            socket.wake_all();
            assert!(!socket.is_shut_down());
            socket.stop_queueing();
            assert!(connect().is_err());
            socket.accept().unwrap();
            assert_eq!(socket.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            socket.shut_down();
            assert!(socket.is_shut_down());
            assert_eq!(connect().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
            drop(waiting);
        }
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
