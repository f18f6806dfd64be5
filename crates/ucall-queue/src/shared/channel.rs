//! The channel of a link: a pair of sockets that carries descriptors of memory, and nothing else.
//!
//! The server makes it and sends the client one end with its preamble, the first 16 bytes of the
//! connection. A preamble without a descriptor reports that there is no channel, because the two
//! processes are not of one user or the server has no descriptors left. The link is then an
//! ordinary Unix socket. The client first sends a preamble of 16 bytes itself, so that a server
//! without shared memory can refuse it.
//!
//! A descriptor is sent before the frame that refers to it, straight into the receiver's socket
//! queue, so it is there when the frame is read. Neither side ever waits on the channel.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair, sockopt,
};
use ucall_engine::Peer;

use crate::frame::{self, ProtocolError};

const SERVER_PREAMBLE: [u8; 16] = *b"ucall-q1 memory\n";
const CLIENT_PREAMBLE: [u8; 16] = *b"ucall-q1 shared\n";
const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);
/// One more than a message may have.
const DESCRIPTORS_MAX: usize = 2;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    sent: u64,
    taken: u64,
}

impl Channel {
    /// Both ends of a new channel.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(one), Self::new(other)))
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket, sent: 0, taken: 0 }
    }

    /// Sends a descriptor of memory; returns its number at the receiver.
    pub(super) fn send(&mut self, memory: BorrowedFd<'_>) -> io::Result<u64> {
        let number = self.sent + 1;
        send_with(self.socket.as_fd(), &number.to_le_bytes(), Some(memory))?;
        self.sent = number;
        Ok(number)
    }

    /// Receives the descriptor with this number, which has to be the next one.
    pub(super) fn take(&mut self, number: u64) -> Result<OwnedFd, ProtocolError> {
        let mut buffer = [0; 9];
        let received = receive_with(self.socket.as_fd(), &mut buffer);
        let (bytes, memory) = received.map_err(|_| ProtocolError::InvalidSharedMemory)?;
        self.taken += 1;
        let is_next = number == self.taken && buffer.get(..bytes) == Some(&number.to_le_bytes());
        match memory {
            Descriptor::One(memory) if is_next => Ok(memory),
            Descriptor::Lost if is_next => Err(ProtocolError::OutOfMemory),
            _ => Err(ProtocolError::InvalidSharedMemory),
        }
    }
}

/// Sends the preamble of a client.
pub(crate) fn send_client_preamble(connection: BorrowedFd<'_>) -> io::Result<()> {
    send_with(connection, &CLIENT_PREAMBLE, None)
}

/// The number of these bytes that continue a client's preamble, of which `before` were received;
/// `None` if they do not continue it.
pub(crate) fn match_client_preamble(before: usize, bytes: &[u8]) -> Option<usize> {
    let rest = CLIENT_PREAMBLE.get(before..).unwrap_or_default();
    let count = rest.len().min(bytes.len());
    (rest.get(..count) == bytes.get(..count)).then_some(count)
}

/// Whether the first bytes of a connection are a preamble.
pub(crate) fn is_preamble(first: &[u8]) -> bool {
    first.starts_with(&CLIENT_PREAMBLE) || first.starts_with(&SERVER_PREAMBLE)
}

/// Sends the preamble of a server; returns its end of the channel, if there is one.
pub(crate) fn send_preamble(connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    let pair = if is_same_user(connection) { Channel::pair().ok() } else { None };
    let theirs = pair.as_ref().map(|(_, theirs)| theirs.socket.as_fd());
    send_with(connection, &SERVER_PREAMBLE, theirs)?;
    Ok(pair.map(|(ours, _)| ours))
}

/// Receives the preamble of a server; `WouldBlock` until it has arrived.
pub(crate) fn receive_preamble(connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    let mut buffer = [0; SERVER_PREAMBLE.len()];
    let (bytes, channel) = receive_with(connection, &mut buffer)?;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_channel = |socket: &OwnedFd| {
        sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
    };
    match channel {
        _ if frame::is_frame(&buffer) => Err(io::ErrorKind::Unsupported.into()),
        _ if buffer != SERVER_PREAMBLE => Err(io::ErrorKind::InvalidData.into()),
        Descriptor::None | Descriptor::Lost => Ok(None),
        Descriptor::One(socket) if is_channel(&socket) => {
            Ok(is_same_user(connection).then(|| Channel::new(socket)))
        }
        Descriptor::One(_) | Descriptor::Several => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Whether the peer's process has our user.
fn is_same_user(connection: BorrowedFd<'_>) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    matches!(ucall_engine::peer_of(connection), Ok(Peer::Process { uid, .. }) if uid == ours)
}

fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors {
        // There is room for one.
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SEND)? {
        sent if sent == bytes.len() => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The descriptors that were received with a message.
enum Descriptor {
    None,
    One(OwnedFd),
    Several,
    /// This process has no room for a descriptor.
    Lost,
}

fn receive_with(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Descriptor)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RECEIVE) {
            Err(Errno::INTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(those) = message {
            descriptors.extend(those);
        }
    }
    let is_cut = received.flags.contains(ReturnFlags::CTRUNC);
    let descriptor = match (descriptors.pop(), is_cut) {
        (Some(one), false) if descriptors.is_empty() => Descriptor::One(one),
        (Some(_), _) => Descriptor::Several,
        (None, true) => Descriptor::Lost,
        (None, false) => Descriptor::None,
    };
    Ok((received.bytes, descriptor))
}
