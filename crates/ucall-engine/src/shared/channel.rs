//! The channel of a connection: a pair of sockets that carries descriptors of memory, and nothing
//! else.
//!
//! The server makes it and sends the client one end with its preamble, the first bytes of the
//! connection. A preamble without a descriptor reports that there is no channel, because the two
//! processes are not of one user or the server has no descriptors left. The connection is then an
//! ordinary Unix socket. The client first sends a preamble itself, so that a server without shared
//! memory can refuse it.
//!
//! A descriptor is sent before the frame that refers to it, straight into the receiver's socket
//! queue, so it is there when the frame is read. Neither side ever waits on the channel.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair, sockopt,
};
use ucall_buffer::SharedMemoryError;

use crate::{Peer, peer_of};

const SEND: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
const RECEIVE: RecvFlags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);
/// One more than a message may have.
const DESCRIPTORS_MAX: usize = 2;

/// One end of a channel.
#[derive(Debug)]
pub struct Channel {
    socket: Arc<OwnedFd>,
    sent: u64,
    taken: u64,
}

/// A message of a channel.
#[derive(Debug)]
pub(super) enum ChannelMessage {
    /// Memory, with its number.
    Memory(u64, OwnedFd),
    /// A slot that the peer returns, after so many messages with bytes in it.
    Return { slot: u64, answers: u32 },
}

/// Returns slots over a channel for as long as that exists, from any thread.
#[derive(Clone, Debug)]
pub(super) struct SlotReturner(Weak<OwnedFd>);

impl SlotReturner {
    /// Returns the slot of this number, after so many messages with bytes in it.
    pub(super) fn send(&self, slot: u64, answers: u32) -> io::Result<()> {
        let socket = self.0.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        let number = u64::from(answers) << 32 | slot;
        send_with(socket.as_fd(), &number.to_le_bytes(), None)
    }
}

impl Channel {
    /// Both ends of a new channel.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(one), Self::new(other)))
    }

    fn new(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket), sent: 0, taken: 0 }
    }

    /// Sends a descriptor of memory; returns its number at the receiver.
    ///
    /// # Errors
    /// The channel is full or closed, or the system has no descriptors left.
    pub fn send(&mut self, memory: BorrowedFd<'_>) -> io::Result<u64> {
        let number = self.sent + 1;
        send_with(self.socket.as_fd(), &number.to_le_bytes(), Some(memory))?;
        self.sent = number;
        Ok(number)
    }

    /// Receives the descriptor with this number, which has to be the next one.
    ///
    /// # Errors
    /// It is not there, or this process has no room for it.
    pub fn take(&mut self, number: u64) -> Result<OwnedFd, SharedMemoryError> {
        let mut buffer = [0; 9];
        let received = receive_with(self.socket.as_fd(), &mut buffer);
        let (bytes, memory) = received.map_err(|_| SharedMemoryError::Invalid)?;
        self.taken += 1;
        let is_next = number == self.taken && buffer.get(..bytes) == Some(&number.to_le_bytes());
        match memory {
            Descriptor::One(memory) if is_next => Ok(memory),
            Descriptor::Lost if is_next => Err(SharedMemoryError::OutOfMemory),
            _ => Err(SharedMemoryError::Invalid),
        }
    }

    /// Receives the next message, if there is one.
    ///
    /// # Errors
    /// It is invalid, or this process has no room for its descriptor.
    pub(super) fn receive(&mut self) -> Result<Option<ChannelMessage>, SharedMemoryError> {
        let mut buffer = [0; 9];
        let (bytes, memory) = match receive_with(self.socket.as_fd(), &mut buffer) {
            Ok((0, _)) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Ok(received) => received,
            Err(_) => return Err(SharedMemoryError::Invalid),
        };
        let number = buffer.get(..bytes).and_then(|number| number.try_into().ok());
        let number = u64::from_le_bytes(number.ok_or(SharedMemoryError::Invalid)?);
        match memory {
            Descriptor::None => {
                let (slot, answers) = (number & u64::from(u32::MAX), (number >> 32) as u32);
                Ok(Some(ChannelMessage::Return { slot, answers }))
            }
            Descriptor::One(memory) if number == self.taken + 1 => {
                self.taken = number;
                Ok(Some(ChannelMessage::Memory(number, memory)))
            }
            Descriptor::Lost => Err(SharedMemoryError::OutOfMemory),
            Descriptor::One(_) | Descriptor::Several => Err(SharedMemoryError::Invalid),
        }
    }

    /// Sends what the peer reads by [`Channel::receive`].
    pub(super) fn returner(&self) -> SlotReturner {
        SlotReturner(Arc::downgrade(&self.socket))
    }
}

/// The first bytes of a server on a connection.
#[derive(Debug)]
pub enum Preamble<const BYTES: usize> {
    /// With our end of the channel, if the server has made one.
    With(Option<Channel>, [u8; BYTES]),
    /// It has a descriptor that is no channel, or several.
    Invalid,
}

/// Sends the preamble of a client.
///
/// # Errors
/// The connection has failed, or takes no more.
pub fn send_client_preamble(connection: BorrowedFd<'_>, preamble: &[u8]) -> io::Result<()> {
    send_with(connection, preamble, None)
}

/// Sends the preamble of a server, with a new channel to a process of our user; returns our end of
/// that.
///
/// # Errors
/// The connection has failed, or takes no more.
pub fn send_server_preamble(
    connection: BorrowedFd<'_>,
    preamble: &[u8],
) -> io::Result<Option<Channel>> {
    let pair = if is_same_user(connection) { Channel::pair().ok() } else { None };
    let theirs = pair.as_ref().map(|(_, theirs)| theirs.socket.as_fd());
    send_with(connection, preamble, theirs)?;
    Ok(pair.map(|(ours, _)| ours))
}

/// Receives the preamble of a server.
///
/// # Errors
/// `WouldBlock` until it has arrived, `UnexpectedEof` if it never will.
pub fn receive_server_preamble<const BYTES: usize>(
    connection: BorrowedFd<'_>,
) -> io::Result<Preamble<BYTES>> {
    let mut preamble = [0; BYTES];
    let (bytes, channel) = receive_with(connection, &mut preamble)?;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_channel = |socket: &OwnedFd| {
        sockopt::socket_domain(socket) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(socket) == Ok(SocketType::SEQPACKET)
    };
    Ok(match channel {
        Descriptor::None | Descriptor::Lost => Preamble::With(None, preamble),
        Descriptor::One(socket) if is_channel(&socket) => {
            let channel = is_same_user(connection).then(|| Channel::new(socket));
            Preamble::With(channel, preamble)
        }
        Descriptor::One(_) | Descriptor::Several => Preamble::Invalid,
    })
}

/// Whether the peer's process has our user.
fn is_same_user(connection: BorrowedFd<'_>) -> bool {
    let ours = rustix::process::geteuid().as_raw();
    matches!(peer_of(connection), Ok(Peer::Process { uid, .. }) if uid == ours)
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
