//! Datagram sockets: one receive under way, into memory of the socket's own that holds the largest
//! datagram there is, and any number of sends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use ucall_buffer::Payload;

use super::delivery::DeliverySource;
use super::memory::StableBox;
use super::message_header::MessageHeader;
use super::ring::result_of;
use super::token::Operation;
use super::{Slot, Uring};
use crate::{Completion, Id, SendState};

/// No datagram is longer (the length field of RFC 768 has 16 bits).
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

pub(super) struct Datagrams {
    socket: UdpSocket,
    message: StableBox<MessageHeader>,
    bytes: StableBox<[u8]>,
    receiving: bool,
    /// Sends under way; each names the descriptor, which therefore stays open.
    sending: u32,
    /// The last datagram is in `bytes`, and was not taken yet.
    has_untaken: bool,
    paused: bool,
}

/// A datagram on its way out.
pub(super) struct OutgoingDatagram {
    socket: Id,
    payload: Payload,
    message: StableBox<MessageHeader>,
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self {
            socket,
            message: MessageHeader::new(),
            bytes: StableBox::new(vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice()),
            receiving: false,
            sending: 0,
            has_untaken: false,
            paused: false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.receiving && self.sending == 0
    }

    pub(super) fn bytes(&mut self, len: u32) -> &mut [u8] {
        &mut self.bytes.as_mut()[..len as usize]
    }

    pub(super) fn sender(&self) -> io::Result<SocketAddr> {
        self.message.as_ref().sender().ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Uring {
    /// Receives the next datagram; `was_taken` is whether the previous one was taken.
    pub(super) fn receive_datagram(&mut self, id: Id, was_taken: bool) {
        let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(id) else { return };
        datagrams.has_untaken &= !was_taken;
        if datagrams.receiving || datagrams.has_untaken || datagrams.paused {
            return;
        }
        datagrams.receiving = true;
        let header = datagrams.message.as_mut().incoming(datagrams.bytes.as_ptr());
        let entry = opcode::RecvMsg::new(Fd(datagrams.socket.as_raw_fd()), header).build();
        // SAFETY: message and bytes are stable, and the slot that owns them is not freed, nor are
        // they used, before the completion.
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
            self.receive_datagram(id, false);
        }
    }

    pub(super) fn on_receive_from(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let Some((id, Slot::Datagrams(datagrams))) = self.slots.at_mut(index) else { return };
        datagrams.receiving = false;
        let source = match entry.result() {
            0.. => Some(DeliverySource::Inbox),
            errno => DeliverySource::from_errno(-errno),
        };
        if let Some(source) = source {
            datagrams.has_untaken = matches!(source, DeliverySource::Inbox);
            self.deliver(id, source, entry.result(), completions);
        }
        self.receive_datagram(id, false);
        self.free_if_idle(index);
    }

    pub(super) fn send_datagram(
        &mut self,
        socket: Id,
        payload: Payload,
        peer: SocketAddr,
    ) -> SendState {
        let Some(Slot::Datagrams(datagrams)) = self.slots.get_mut(socket) else {
            let result = Err(io::ErrorKind::NotConnected.into());
            self.deferred.push(Completion::Sent { socket, payload, result });
            return SendState::Pending;
        };
        let mut message = self.cached_messages.pop().unwrap_or_else(MessageHeader::new);
        let (header, _) = message.as_mut().outgoing(payload.slices_from(0), Some(peer));
        let entry = opcode::SendMsg::new(Fd(datagrams.socket.as_raw_fd()), header);
        let entry = entry.flags(libc::MSG_NOSIGNAL as u32).build();
        datagrams.sending += 1;
        let id = self.outgoing.insert(OutgoingDatagram { socket, payload, message });
        // SAFETY: payload and message stay in the table until the completion, and the bytes they
        // name do not move with them.
        unsafe { self.ring.push(entry, Operation::SendTo.at(id.index)) }
        SendState::Pending
    }

    pub(super) fn on_send_to(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let Some(OutgoingDatagram { socket, payload, message }) = self.outgoing.free(index) else {
            return;
        };
        self.cached_messages.push(message);
        if let Some((_, Slot::Datagrams(datagrams))) = self.slots.at_mut(socket.index) {
            datagrams.sending -= 1;
        }
        let result = match result_of(entry) {
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => {
                Err(io::ErrorKind::Interrupted.into())
            }
            result => result.map(drop),
        };
        completions.push(Completion::Sent { socket, payload, result });
        self.free_if_idle(socket.index);
    }

    /// Cancels the operations of a retired datagram socket.
    pub(super) fn close_datagrams(&mut self, id: Id) {
        if let Some((_, Slot::Datagrams(datagrams))) = self.slots.at_mut(id.index)
            && datagrams.receiving
        {
            self.ring.cancel(Operation::ReceiveFrom.at(id.index));
        }
        for outgoing in self.outgoing.ids() {
            if self.outgoing.get(outgoing).is_some_and(|found| found.socket == id) {
                self.ring.cancel(Operation::SendTo.at(outgoing.index));
            }
        }
    }
}
