//! How `ucall-xdp-setup`, which has privileges, hands AF_XDP over to a server that has none.
//!
//! The server sends its UDP socket. It can bind that only where the system lets it, so it can steer
//! to itself only datagrams that it would receive anyway. The other side attaches the program for
//! the socket's address, and returns the link, the map and a socket for each queue, of which it
//! keeps none: the kernel detaches the program when the server ends.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{SETUP_PREFIX, XdpProgram, queue};

/// The first byte of each message, so that another version is refused.
const VERSION: u8 = 1;
/// The second byte of an answer.
const GRANTED: u8 = 1;
const REFUSED: u8 = 0;
const ANSWER_BYTES_MAX: usize = 1024;
/// The kernel passes at most 253 at once. The link and the map are two of them.
const DESCRIPTORS_MAX: usize = 253;
/// Of <asm-generic/socket.h>.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Requests the program and the sockets from the process that listens at `path`.
pub(super) fn request(
    path: &str,
    socket: &UdpSocket,
    busy_poll: bool,
) -> io::Result<(XdpProgram, Vec<OwnedFd>)> {
    let explain =
        |why: &dyn std::fmt::Display| io::Error::other(format!("xdp: {SETUP_PREFIX}{path}: {why}"));
    let connection = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    connection.connect(&SockAddr::unix(path)?).map_err(|error| explain(&error))?;
    send(&connection, &[VERSION, u8::from(busy_poll)], &[socket.as_fd()])?;
    let (answer, mut descriptors) = receive(&connection).map_err(|error| explain(&error))?;
    let (is_native, name) = match *answer {
        [VERSION, GRANTED, is_native, ref name @ ..] => (is_native == 1, name),
        [VERSION, REFUSED, ref why @ ..] => return Err(explain(&String::from_utf8_lossy(why))),
        [] => return Err(explain(&"the process there has closed the connection")),
        _ => return Err(explain(&"the process there is of another version")),
    };
    let sockets = descriptors.split_off(descriptors.len().min(2));
    let [link, map] = <[OwnedFd; 2]>::try_from(descriptors)
        .map_err(|_| explain(&"descriptors are missing: the limit of open files is too low"))?;
    let mut program = XdpProgram::share(&String::from_utf8_lossy(name), map, is_native)?;
    program.link = Some(link);
    if sockets.len() != program.queues() as usize {
        return Err(explain(
            &"the number of queues has changed, or the limit of open files is low",
        ));
    }
    Ok((program, sockets))
}

/// Attaches the program to the interface of this name for the server at the other end of
/// `connection`, a socket that keeps the bounds of messages.
///
/// # Errors
/// The reason, which the server is sent as well.
pub fn hand_over(name: &str, connection: BorrowedFd<'_>) -> io::Result<()> {
    match make(name, connection) {
        Ok((program, sockets)) => {
            let head = [VERSION, GRANTED, u8::from(program.is_native)];
            let link = program.link.as_ref().map(AsFd::as_fd);
            let descriptors = link.into_iter().chain([program.sockets()]);
            let descriptors: Vec<_> = descriptors.chain(sockets.iter().map(AsFd::as_fd)).collect();
            send(connection, &[&head[..], name.as_bytes()].concat(), &descriptors)
        }
        Err(error) => {
            let mut message = [&[VERSION, REFUSED][..], error.to_string().as_bytes()].concat();
            message.truncate(ANSWER_BYTES_MAX);
            send(connection, &message, &[])?;
            Err(error)
        }
    }
}

fn make(name: &str, connection: BorrowedFd<'_>) -> io::Result<(XdpProgram, Vec<OwnedFd>)> {
    let (request, descriptors) = receive(connection)?;
    let busy_poll = match *request {
        [VERSION, busy_poll] => busy_poll == 1,
        _ => return Err(io::Error::other("the server is of another version")),
    };
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| io::Error::other("expected one UDP socket"))?;
    check_socket(name, &socket)?;
    let program = XdpProgram::attach(name, UdpSocket::from(socket).local_addr()?)?;
    if program.queues() as usize + 2 > DESCRIPTORS_MAX {
        let max = DESCRIPTORS_MAX - 2;
        return Err(io::Error::other(format!("{name} has more than {max} queues")));
    }
    let sockets = (0..program.queues()).map(|_| queue::socket(busy_poll));
    let sockets = sockets.collect::<io::Result<_>>();
    Ok((program, sockets.map_err(|error| super::explain(name, &error))?))
}

/// The right to a port is of one network namespace, of UDP, and of one interface if the socket is
/// bound to that (`SO_BINDTODEVICE`).
fn check_socket(name: &str, socket: &OwnedFd) -> io::Result<()> {
    let given = SockRef::from(socket);
    let domain = given.domain()?;
    let is_udp = [Domain::IPV4, Domain::IPV6].contains(&domain)
        && given.r#type()? == Type::DGRAM
        && given.protocol()? == Some(Protocol::UDP);
    if !is_udp {
        return Err(io::Error::other("expected a UDP socket"));
    }
    if given.device()?.is_some_and(|device| device != name.as_bytes()) {
        return Err(io::Error::other("the server's socket is bound to another interface"));
    }
    let own = Socket::new(Domain::IPV4, Type::DGRAM, None)?;
    if network_cookie(socket.as_fd())? != network_cookie(own.as_fd())? {
        return Err(io::Error::other("the server is in another network namespace"));
    }
    Ok(())
}

fn network_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut cookie, mut len) = (0u64, size_of::<u64>() as libc::socklen_t);
    let place = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most `len` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, place, &raw mut len)
    };
    match result {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    loop {
        let sent = sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL);
        match sent {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(io::Error::from),
        }
    }
}

/// A message and its descriptors; empty at the end of the connection.
fn receive(socket: impl AsFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut slices = [IoSliceMut::new(&mut bytes)];
        match recvmsg(&socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(found) = message {
            descriptors.extend(found);
        }
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap()
    }

    #[test]
    fn a_server_learns_why_it_gets_nothing() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let unix = Socket::new(Domain::UNIX, Type::DGRAM, None).unwrap();
        let of_loopback = UdpSocket::bind("127.0.0.1:0").unwrap();
        SockRef::from(&of_loopback).bind_device(Some(b"lo")).unwrap();
        for (request, given, expected) in [
            (&[VERSION, 0][..], vec![udp.as_fd()], "xdp: no-such-card: "),
            (&[VERSION, 0][..], vec![other.as_fd()], "expected a UDP socket"),
            (&[VERSION, 0][..], vec![unix.as_fd()], "expected a UDP socket"),
            (&[VERSION, 0][..], vec![of_loopback.as_fd()], "bound to another interface"),
            (&[VERSION, 0][..], vec![], "expected one UDP socket"),
            (&[VERSION, 0][..], vec![udp.as_fd(), udp.as_fd()], "expected one UDP socket"),
            (&[VERSION + 1, 0][..], vec![udp.as_fd()], "another version"),
            (&[VERSION][..], vec![udp.as_fd()], "another version"),
        ] {
            let (server, setup) = pair();
            send(&server, request, &given).unwrap();
            let error = hand_over("no-such-card", setup.as_fd()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            let (answer, descriptors) = receive(&server).unwrap();
            assert_eq!(answer, [&[VERSION, REFUSED][..], error.as_bytes()].concat());
            assert!(descriptors.is_empty());
        }
    }

    #[test]
    fn a_socket_that_nobody_serves_is_named() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = request("/no/such/file", &socket, false).err().unwrap().to_string();
        assert!(error.starts_with("xdp: unix:/no/such/file: "), "{error}");
    }
}
