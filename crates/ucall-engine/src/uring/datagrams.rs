//! Datagram sockets. One receive operation reports datagrams until it is cancelled, each in a
//! buffer that the kernel picks from a ring of the socket's own; before Linux 6.0 each datagram
//! takes an operation. Sends are submitted with the next wait.
//!
//! **Sends.** The kernel runs a send while it is submitted, because `MSG_DONTWAIT` forbids it to
//! wait for room, and reports failures only. So the memory of sends is free when the queue of
//! submissions is empty.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use io_uring::types::{Fd, RecvMsgOut};
use io_uring::{Submitter, cqueue, opcode, squeue};
use socket2::{SockAddr, SockAddrStorage};

use super::buffers::{Buffers, GROUP};
use super::memory::StableBox;
use super::token::Operation;
use super::{Slot, Uring, features};
use crate::datagram::{self, CONTROL_BYTES, Control, DatagramDrops, DatagramPath};
use crate::{Completion, Id};

/// The head of a multishot arrival: `io_uring_recvmsg_out`, the sender and the control messages.
const ARRIVAL_HEAD_BYTES: usize = 16 + NAME_BYTES + CONTROL_BYTES;
const NAME_BYTES: usize = size_of::<SockAddrStorage>();
/// The largest datagram (the length field of RFC 768 has 16 bits) and the head, in whole pages.
const BUFFER_BYTES: usize = (1 << 16) + 4096;
const _: () = assert!(BUFFER_BYTES >= (1 << 16) + ARRIVAL_HEAD_BYTES);

/// The datagrams that wait for the next turn. Further ones wait in the socket.
type DatagramBuffers = Buffers<128, BUFFER_BYTES>;

pub(super) struct Datagrams {
    socket: UdpSocket,
    group: u16,
    buffers: DatagramBuffers,
    message: StableBox<IncomingMessage>,
    arrived: VecDeque<Arrived>,
    /// The buffer that was lent last.
    lent: Option<u16>,
    /// The caller knows of datagrams, and takes them until there are none.
    reported: bool,
    receiving: bool,
    paused: bool,
    pub(super) drops: DatagramDrops,
}

/// A datagram.
struct Arrived {
    /// `None` if it is empty, and came by an operation of its own.
    buffer: Option<u16>,
    start: u32,
    len: u32,
    path: DatagramPath,
}

/// What the kernel reads the sizes from and, before Linux 6.0, writes the addresses to.
struct IncomingMessage {
    header: libc::msghdr,
    part: libc::iovec,
    name: SockAddrStorage,
    control: [u8; CONTROL_BYTES],
}

/// The memory of sends.
#[derive(Default)]
pub(super) struct DatagramSends {
    free: Vec<StableBox<OutgoingDatagram>>,
    /// Pushed, and perhaps not submitted yet.
    pushed: Vec<StableBox<OutgoingDatagram>>,
}

struct OutgoingDatagram {
    header: libc::msghdr,
    part: libc::iovec,
    name: SockAddrStorage,
    control: [u8; CONTROL_BYTES],
    bytes: Vec<u8>,
}

impl Datagrams {
    fn new(socket: UdpSocket, group: u16, buffers: DatagramBuffers) -> Self {
        Self {
            socket,
            group,
            buffers,
            message: IncomingMessage::new(),
            arrived: VecDeque::new(),
            lent: None,
            reported: false,
            receiving: false,
            paused: false,
            drops: DatagramDrops::default(),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.receiving
    }

    fn recycle(&mut self, buffer: Option<u16>) {
        if let Some(buffer) = buffer {
            self.buffers.recycle(buffer);
        }
    }

    /// Takes the buffers from the kernel.
    pub(super) fn unregister(self, submitter: &Submitter<'_>) {
        if submitter.unregister_buf_ring(self.group).is_err() {
            self.buffers.leak();
        }
    }

    /// Notes a datagram of `len` bytes, addresses included.
    fn add(&mut self, buffer: Option<u16>, len: u32, is_multishot: bool) {
        let message = self.message.as_ref();
        let found = match buffer {
            Some(buffer) if is_multishot => {
                parse_arrival(self.buffers.bytes(buffer, 0, len), message)
            }
            _ => message.path().map(|(path, control)| (0, len, path, control)),
        };
        let Some((start, len, peer, control)) = found else { return self.recycle(buffer) };
        self.drops.received = control.drops.map_or(self.drops.received, u64::from);
        let path = DatagramPath { local: control.local, ..peer };
        self.arrived.push_back(Arrived { buffer, start, len, path });
    }
}

/// The start and the length of the datagram in a buffer, and its addresses.
fn parse_arrival(
    bytes: &[u8],
    message: &IncomingMessage,
) -> Option<(u32, u32, DatagramPath, Control)> {
    let arrival = RecvMsgOut::parse(bytes, &message.header).ok()?;
    let peer = address_of(arrival.name_data())?;
    let len = arrival.payload_data().len() as u32;
    let control = Control::read(arrival.control_data());
    Some((ARRIVAL_HEAD_BYTES as u32, len, peer.into(), control))
}

fn address_of(name: &[u8]) -> Option<std::net::SocketAddr> {
    let mut storage = SockAddrStorage::zeroed();
    let len = name.len().min(NAME_BYTES);
    // SAFETY: both ranges are valid for `len` bytes, and the storage takes any bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(name.as_ptr(), (&raw mut storage).cast::<u8>(), len);
        SockAddr::new(storage, len as libc::socklen_t).as_socket()
    }
}

impl IncomingMessage {
    fn new() -> StableBox<Self> {
        // SAFETY: zeros are a valid value of these plain structures.
        let (header, part) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let (name, control) = (SockAddrStorage::zeroed(), [0; CONTROL_BYTES]);
        let mut message = StableBox::new(Box::new(Self { header, part, name, control }));
        message.as_mut().reset();
        message
    }

    /// Makes the header name all of the memory again, after an operation has set the lengths.
    fn reset(&mut self) -> *mut libc::msghdr {
        // The kernel picks the buffer, no longer than this.
        self.part = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: BUFFER_BYTES };
        self.header.msg_name = (&raw mut self.name).cast();
        self.header.msg_namelen = NAME_BYTES as libc::socklen_t;
        self.header.msg_iov = &raw mut self.part;
        self.header.msg_iovlen = 1;
        self.control = [0; CONTROL_BYTES];
        self.header.msg_control = self.control.as_mut_ptr().cast();
        self.header.msg_controllen = CONTROL_BYTES as _;
        &raw mut self.header
    }

    /// The addresses that an operation has written here.
    fn path(&self) -> Option<(DatagramPath, Control)> {
        // SAFETY: the storage is plain bytes, in which the kernel has written an address.
        let name = unsafe { SockAddr::new(std::ptr::read(&self.name), self.header.msg_namelen) };
        Some((name.as_socket()?.into(), Control::read(&self.control)))
    }
}

impl OutgoingDatagram {
    fn new() -> StableBox<Self> {
        // SAFETY: zeros are a valid value of these plain structures.
        let (header, part) = unsafe { (mem::zeroed(), mem::zeroed()) };
        let (name, control) = (SockAddrStorage::zeroed(), [0; CONTROL_BYTES]);
        StableBox::new(Box::new(Self { header, part, name, control, bytes: Vec::new() }))
    }

    fn set(&mut self, bytes: &[u8], path: DatagramPath) -> *const libc::msghdr {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.part =
            libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: self.bytes.len() };
        let name = SockAddr::from(path.peer);
        self.header.msg_namelen = name.len();
        self.name = name.as_storage();
        self.header.msg_name = (&raw mut self.name).cast();
        self.header.msg_iov = &raw mut self.part;
        self.header.msg_iovlen = 1;
        let control_len = datagram::write_local(path.local, &mut self.control);
        self.header.msg_controllen = control_len as _;
        self.header.msg_control = match control_len {
            0 => std::ptr::null_mut(),
            _ => self.control.as_mut_ptr().cast(),
        };
        &raw const self.header
    }
}

impl Uring {
    /// Takes over a socket.
    pub(super) fn add_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id> {
        datagram::prepare(&socket)?;
        let (group, buffers) = self.datagram_buffers()?;
        let datagrams = Box::new(Datagrams::new(socket, group, buffers));
        let id = self.slots.insert(Slot::Datagrams(datagrams));
        self.receive_datagrams(id);
        Ok(id)
    }

    /// Buffers in a group that no other socket has.
    fn datagram_buffers(&mut self) -> io::Result<(u16, DatagramBuffers)> {
        loop {
            self.last_group = self.last_group.checked_add(1).unwrap_or(GROUP + 1);
            let (ring, group) = (&mut self.ring, self.last_group);
            match features::wait_for_memory(|| Buffers::new(&ring.submitter(), group)) {
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
                made => return Ok((group, made.map_err(features::explain)?)),
            }
        }
    }

    /// Receives datagrams from now on.
    pub(super) fn receive_datagrams(&mut self, id: Id) {
        let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(id) else { return };
        if datagrams.receiving || datagrams.paused {
            return;
        }
        datagrams.receiving = true;
        datagrams.buffers.publish();
        let header = datagrams.message.as_mut().reset();
        let (descriptor, group) = (Fd(datagrams.socket.as_raw_fd()), datagrams.group);
        let entry = match self.features.multishot_receive {
            true => opcode::RecvMsgMulti::new(descriptor, header, group).build(),
            false => opcode::RecvMsg::new(descriptor, header)
                .buf_group(group)
                .build()
                .flags(squeue::Flags::BUFFER_SELECT),
        };
        // SAFETY: the message is stable, and the slot that owns it and the buffers is not freed,
        // nor is the message used, before the last completion.
        unsafe { self.ring.push(entry, Operation::ReceiveFrom.at(id.index)) }
    }

    pub(super) fn pause_datagrams(&mut self, id: Id) {
        if let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(id) {
            datagrams.paused = true;
            if datagrams.receiving {
                self.ring.cancel(Operation::ReceiveFrom.at(id.index));
            }
        }
    }

    pub(super) fn resume_datagrams(&mut self, id: Id) {
        if let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(id) {
            datagrams.paused = false;
            // The caller may have taken all without finding out.
            datagrams.reported = !datagrams.arrived.is_empty();
            if datagrams.reported {
                self.deferred.push(Completion::Datagrams(id));
            }
            self.receive_datagrams(id);
        }
    }

    pub(super) fn on_receive_from(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let is_multishot = self.features.multishot_receive;
        let is_retired = self.slots.is_retired(index);
        let Some((id, Slot::Datagrams(datagrams))) = self.slots.at_mut(index) else { return };
        datagrams.receiving = cqueue::more(entry.flags());
        let buffer = cqueue::buffer_select(entry.flags());
        if let Ok(len) = u32::try_from(entry.result())
            && (buffer.is_some() || !is_multishot)
        {
            datagrams.add(buffer, len, is_multishot);
        }
        let has_datagrams = !datagrams.arrived.is_empty();
        // A failure is reported to the caller, so that a lasting one does not loop in here: the
        // operation starts again when the caller has found no datagram.
        let (has_failed, starts_again) = match -entry.result() {
            ..=0 | libc::ECANCELED => (false, true),
            libc::ENOBUFS => (false, !has_datagrams),
            _ => (true, false),
        };
        let reports = (has_datagrams || has_failed) && !is_retired;
        if reports && !mem::replace(&mut datagrams.reported, true) {
            completions.push(Completion::Datagrams(id));
        }
        if starts_again {
            self.receive_datagrams(id);
        }
        self.free_if_idle(index);
    }

    /// The next datagram that has arrived.
    pub(super) fn next_datagram(&mut self, id: Id) -> io::Result<(&mut [u8], DatagramPath)> {
        let is_empty = match self.slots.get_mut(id) {
            Some(Slot::Datagrams(datagrams)) => {
                let lent = datagrams.lent.take();
                datagrams.recycle(lent);
                datagrams.arrived.is_empty()
            }
            _ => return Err(io::ErrorKind::WouldBlock.into()),
        };
        if is_empty {
            // The buffers are the kernel's again, which may have lacked them.
            self.receive_datagrams(id);
        }
        let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(id) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let Some(Arrived { buffer, start, len, path }) = datagrams.arrived.pop_front() else {
            datagrams.reported = false;
            datagrams.buffers.publish();
            return Err(io::ErrorKind::WouldBlock.into());
        };
        datagrams.lent = buffer;
        let bytes = buffer.map(|buffer| datagrams.buffers.bytes(buffer, start, len));
        Ok((bytes.unwrap_or_default(), path))
    }

    pub(super) fn send_datagram(&mut self, id: Id, bytes: &[u8], path: DatagramPath) {
        let Some(Slot::Datagrams(datagrams)) = self.slots.get(id) else { return };
        let descriptor = Fd(datagrams.socket.as_raw_fd());
        if self.datagram_sends.free.is_empty() && self.ring.is_flushed() {
            self.datagram_sends.free.append(&mut self.datagram_sends.pushed);
        }
        let free = self.datagram_sends.free.pop();
        let mut outgoing = free.unwrap_or_else(OutgoingDatagram::new);
        let header = outgoing.as_mut().set(bytes, path);
        let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as u32;
        let entry = opcode::SendMsg::new(descriptor, header).flags(flags).build();
        let entry = entry.flags(squeue::Flags::SKIP_SUCCESS);
        self.datagram_sends.pushed.push(outgoing);
        // SAFETY: the message is in the list of pushed ones, at a stable address, until the kernel
        // has run the operation, which it does when it is submitted.
        unsafe { self.ring.push(entry, Operation::SendTo.at(id.index)) }
    }

    /// A send has failed; others are not reported.
    pub(super) fn on_send_to(&mut self, index: u32) {
        if let Some((_, Slot::Datagrams(datagrams))) = self.slots.at_mut(index) {
            datagrams.drops.sent += 1;
        }
    }

    /// Submits the sends of a retired socket, while its descriptor is open, and cancels its
    /// receive.
    pub(super) fn close_datagrams(&mut self, id: Id) {
        if !self.datagram_sends.pushed.is_empty() {
            self.ring.submit().unwrap_or(());
        }
        if let Some((_, Slot::Datagrams(datagrams))) = self.slots.at_mut(id.index)
            && datagrams.receiving
        {
            self.ring.cancel(Operation::ReceiveFrom.at(id.index));
        }
    }
}
