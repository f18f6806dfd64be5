//! Datagram sockets.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recvfrom, sendto};
use ucall_buffer::Payload;

use super::ReadReadiness;
use super::stream::{SEND_FLAGS, SendOutcome, retry};
use crate::{Arrival, Completion, Id};

/// Datagrams announced in one turn. A short read does not show that none are left, unlike on a
/// stream, so the engine announces this many; after the first that is missing, the others cost
/// nothing.
const REPORTED_PER_TURN: usize = 16;

pub(super) struct Datagrams {
    pub(super) socket: UdpSocket,
    waiting: VecDeque<(Payload, SocketAddr)>,
}

/// Announces datagrams.
pub(super) fn report(id: Id, completions: &mut Vec<Completion>) {
    let arrival = || Completion::Datagram(Arrival { socket: id, delivery_index: 0 });
    completions.extend(std::iter::repeat_with(arrival).take(REPORTED_PER_TURN));
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self { socket, waiting: VecDeque::new() }
    }

    pub(super) fn read(
        &mut self,
        readiness: &mut ReadReadiness,
        buffer: &mut [u8],
        calls: &mut u64,
    ) -> io::Result<(usize, SocketAddr)> {
        if !readiness.readable {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        *calls += 1;
        let received = retry(|| recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()));
        readiness.readable = !matches!(received, Err(Errno::AGAIN));
        let (count, _, peer) = received?;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Ok((count, peer.ok_or(io::ErrorKind::InvalidData)?))
    }

    pub(super) fn send(
        &mut self,
        payload: Payload,
        peer: SocketAddr,
        calls: &mut u64,
    ) -> SendOutcome {
        if !self.waiting.is_empty() {
            self.waiting.push_back((payload, peer));
            return SendOutcome::Queued;
        }
        match self.try_send(&payload, peer, calls) {
            Ok(()) => SendOutcome::Done(payload),
            Err(Errno::AGAIN) => {
                self.waiting.push_back((payload, peer));
                SendOutcome::Queued
            }
            Err(errno) => SendOutcome::Failed(payload, errno.into()),
        }
    }

    /// Sends waiting datagrams, after the socket became writable.
    pub(super) fn continue_sending(
        &mut self,
        id: Id,
        calls: &mut u64,
        completions: &mut Vec<Completion>,
    ) {
        while let Some((payload, peer)) = self.waiting.pop_front() {
            let result = match self.try_send(&payload, peer, calls) {
                Err(Errno::AGAIN) => return self.waiting.push_front((payload, peer)),
                result => result.map_err(io::Error::from),
            };
            completions.push(Completion::Sent { socket: id, payload, result });
        }
    }

    fn try_send(&self, payload: &Payload, peer: SocketAddr, calls: &mut u64) -> Result<(), Errno> {
        *calls += 1;
        // A datagram in parts is rare and small: one copy is simpler than a second way to send.
        let joined: Vec<u8>;
        let bytes = if payload.is_contiguous() {
            payload.head()
        } else {
            joined = payload.slices_from(0).collect::<Vec<_>>().concat();
            &joined
        };
        retry(|| sendto(&self.socket, bytes, SEND_FLAGS, &peer)).map(drop)
    }

    /// Closes the socket, and returns its payloads.
    pub(super) fn release(self, id: Id, completions: &mut Vec<Completion>) {
        completions.extend(self.waiting.into_iter().map(|(payload, _)| Completion::Sent {
            socket: id,
            payload,
            result: Err(io::ErrorKind::Interrupted.into()),
        }));
    }
}
