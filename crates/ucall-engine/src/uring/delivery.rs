//! Reported arrivals, until the caller takes them.
//!
//! Each wait settles the arrivals of the previous one, oldest first: the buffers of taken ones
//! return to the kernel; others move into the socket's target, if it has one by now, or are
//! reported again.

use std::io;
use std::mem;

use super::{Slot, Uring};
use crate::{Arrival, Completion, Id, completion};

#[derive(Clone, Copy)]
pub(super) struct Delivery {
    socket: Id,
    source: DeliverySource,
    /// The bytes not yet taken, within the source.
    start: u32,
    len: u32,
    taken: bool,
}

#[derive(Clone, Copy)]
pub(super) enum DeliverySource {
    /// One of the ring's buffers.
    Buffer(u16),
    /// The end of the stream.
    End,
    /// An error, by its number.
    Failed(i32),
}

impl DeliverySource {
    /// Converts an error for the caller; returns none if receiving continues by itself.
    pub(super) fn from_errno(errno: i32) -> Option<Self> {
        match errno {
            libc::ECANCELED | libc::ENOBUFS | libc::EAGAIN | libc::EINTR => None,
            errno => Some(DeliverySource::Failed(errno)),
        }
    }

    #[inline(always)]
    fn delivery(self, socket: Id, len: u32) -> Delivery {
        Delivery { socket, source: self, start: 0, len, taken: false }
    }
}

impl Uring {
    /// Reports an arrival on a stream without a target.
    #[inline(always)]
    pub(super) fn report(
        &mut self,
        socket: Id,
        source: DeliverySource,
        len: u32,
        completions: &mut Vec<Completion>,
    ) {
        let arrival = Arrival { socket, delivery_index: self.deliveries.len() as u32 };
        completion::push(completions, || Completion::Received(arrival));
        completion::push(&mut self.deliveries, || source.delivery(socket, len));
    }

    /// Reports an arrival, unless the socket's target takes all of it.
    pub(super) fn deliver(
        &mut self,
        socket: Id,
        source: DeliverySource,
        result: i32,
        completions: &mut Vec<Completion>,
    ) {
        let len = u32::try_from(result).unwrap_or(0);
        self.redeliver(source.delivery(socket, len), completions);
    }

    /// Delivers an arrival that was reported before and not received.
    #[cold]
    fn redeliver(&mut self, mut delivery: Delivery, completions: &mut Vec<Completion>) {
        let arrival =
            Arrival { socket: delivery.socket, delivery_index: self.deliveries.len() as u32 };
        match self.slots.get(delivery.socket) {
            Some(Slot::Stream(_)) => {
                self.fill_target(&mut delivery, completions);
                if delivery.taken {
                    return self.release(&delivery);
                }
                completions.push(Completion::Received(arrival));
            }
            _ => return self.release(&delivery),
        }
        self.deliveries.push(delivery);
    }

    fn fill_target(&mut self, delivery: &mut Delivery, completions: &mut Vec<Completion>) {
        let Some(Slot::Stream(stream)) = self.slots.get_mut(delivery.socket) else { return };
        let Some(mut target) = stream.target.take() else { return };
        let result = match delivery.source {
            DeliverySource::Buffer(buffer) => {
                let bytes = self.buffers.bytes(buffer, delivery.start, delivery.len);
                let count = target.write(bytes) as u32;
                delivery.start += count;
                delivery.len -= count;
                delivery.taken = delivery.len == 0;
                if !target.is_full() {
                    stream.target = Some(target);
                    return;
                }
                Ok(())
            }
            DeliverySource::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
            DeliverySource::End => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        let socket = delivery.socket;
        completions.push(Completion::Filled { socket, target, result });
        self.restart.push(socket);
    }

    /// Settles the arrivals that the previous wait has reported.
    pub(super) fn recycle_deliveries(&mut self, completions: &mut Vec<Completion>) {
        mem::swap(&mut self.deliveries, &mut self.previous_deliveries);
        let mut next = 0;
        while let Some(delivery) = self.previous_deliveries.get(next) {
            next += 1;
            match *delivery {
                Delivery { taken: true, source: DeliverySource::Buffer(buffer), .. } => {
                    self.buffers.recycle(buffer);
                }
                delivery if delivery.taken => self.release(&delivery),
                delivery => {
                    self.slow_down(delivery.socket);
                    self.redeliver(delivery, completions);
                }
            }
        }
        self.previous_deliveries.clear();
    }

    /// Gives the memory of a delivery back for the next one.
    #[cold]
    fn release(&mut self, delivery: &Delivery) {
        match delivery.source {
            DeliverySource::Buffer(buffer) => self.buffers.recycle(buffer),
            DeliverySource::End | DeliverySource::Failed(_) => {}
        }
    }

    /// The bytes of an arrival of the last wait, unless they were taken or belong to a target.
    #[inline(always)]
    pub(super) fn take(&mut self, arrival: &Arrival) -> io::Result<&mut [u8]> {
        if let Some(Slot::Stream(stream)) = self.slots.get(arrival.socket)
            && stream.target.is_none()
            && let Some(delivery) = self.deliveries.get_mut(arrival.delivery_index as usize)
            && delivery.socket == arrival.socket
            && let DeliverySource::Buffer(buffer) = delivery.source
            && !mem::replace(&mut delivery.taken, true)
        {
            return Ok(self.buffers.bytes(buffer, delivery.start, delivery.len));
        }
        self.take_general(arrival)
    }

    /// What is not the bytes of a stream.
    #[inline(never)]
    fn take_general(&mut self, arrival: &Arrival) -> io::Result<&mut [u8]> {
        let nothing = || io::Error::from(io::ErrorKind::WouldBlock);
        let delivery =
            self.deliveries.get_mut(arrival.delivery_index as usize).ok_or_else(nothing)?;
        let open = match self.slots.get_mut(arrival.socket) {
            Some(Slot::Stream(stream)) => stream.target.is_none(),
            _ => false,
        };
        if delivery.socket != arrival.socket || !open || mem::replace(&mut delivery.taken, true) {
            return Err(nothing());
        }
        match delivery.source {
            DeliverySource::Buffer(buffer) => {
                Ok(self.buffers.bytes(buffer, delivery.start, delivery.len))
            }
            DeliverySource::End => Ok(&mut []),
            DeliverySource::Failed(errno) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}
