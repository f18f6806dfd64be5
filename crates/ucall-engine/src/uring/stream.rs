//! Stream sockets, and how they receive: one operation at a time.
//!
//! The receiving operation of a socket, as a table (`receiving`):
//!
//! | now      | event                             | next     |
//! |----------|-----------------------------------|----------|
//! | Idle     | `receive_next` with a target      | Target   |
//! | Idle     | `receive_next` without, not paused| Buffers  |
//! | Buffers  | last completion                   | Idle, then `receive_next` |
//! | Buffers  | paused, closed, or given a target | Buffers, cancelled |
//! | Target   | last completion                   | Idle, then `receive_next` |
//!
//! After the end of the stream, or an error, and when closed, it stays Idle.
//!
//! All streams share the buffers, and a multishot receive takes as many as the peer's bytes fill.
//! So a stream that was paused, or whose arrivals were not all taken in their turn, receives one
//! buffer at a time until the kernel has no more of its bytes. Otherwise a few fast peers would
//! hold all buffers, and the requests of others would wait for them.
//!
//! A multishot receive may miss a reset. If bytes and the reset arrive before the kernel handles
//! either, it delivers the bytes, reads that none are left (at an end it would read that instead),
//! and waits for an event that has already occurred (seen on Linux 6.18). So a stream whose last
//! arrival was bytes can be checked by a peek for more.

use std::io;

use io_uring::{cqueue, opcode, squeue};
use ucall_buffer::Target;

use super::buffers;
use super::delivery::DeliverySource;
use super::file::{File, OPERATION_BYTES_MAX, is_transient};
use super::ring::result_of;
use super::sending::Sending;
use super::token::Operation;
use super::{Slot, Uring};
use crate::{Completion, Id};

pub(super) struct Stream {
    pub(super) file: File,
    pub(super) target: Option<Target>,
    receiving: Receiving,
    /// The receive in progress has been cancelled.
    cancelled: bool,
    paused: bool,
    /// Receives one buffer at a time.
    is_slowed: bool,
    /// The peer has shut down its side or failed, and that is being reported.
    ended: bool,
    /// Bytes have arrived since the last check.
    unchecked: bool,
    /// A check is in progress.
    checking: bool,
    /// A poll for a reset after the end is in flight.
    polling: bool,
    pub(super) sending: Option<Sending>,
    pub(super) shutdown: ShutdownState,
}

/// The state of the shutdown of our side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ShutdownState {
    NotStarted,
    /// It follows the current send.
    AfterSend,
    InProgress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Idle,
    Buffers,
    Target,
}

impl Stream {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            target: None,
            receiving: Receiving::Idle,
            cancelled: false,
            paused: false,
            is_slowed: false,
            ended: false,
            unchecked: false,
            checking: false,
            polling: false,
            sending: None,
            shutdown: ShutdownState::NotStarted,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.receiving == Receiving::Idle
            && self.sending.is_none()
            && !self.checking
            && !self.polling
            && self.shutdown != ShutdownState::InProgress
    }

    /// The target, if the stream ended before it was given.
    pub(super) fn take_target_after_eof(&mut self) -> Option<Target> {
        if self.ended { self.target.take() } else { None }
    }

    /// The direct descriptor, unless it has to stay open: the kernel resolves it late in a
    /// shutdown, and would find another connection that got the number after a close.
    pub(super) fn closable_file(&self) -> Option<u32> {
        match self.file {
            File::Direct(file) if self.shutdown != ShutdownState::InProgress => Some(file),
            _ => None,
        }
    }

    /// The operation that receives just now.
    fn receive_operation(&self) -> Option<Operation> {
        match self.receiving {
            Receiving::Idle => None,
            Receiving::Buffers => Some(Operation::Receive),
            Receiving::Target => Some(Operation::Fill),
        }
    }

    fn target_entry(&mut self) -> Option<squeue::Entry> {
        let target = self.target.as_mut()?;
        let len = target.room().min(OPERATION_BYTES_MAX) as u32;
        // Without MSG_WAITALL, which would report nothing of a slow peer until the target is full.
        Some(opcode::Recv::new(self.file.descriptor(), target.rest().as_ptr(), len).build())
    }

    fn buffers_entry(&self, multishot: bool) -> squeue::Entry {
        let descriptor = self.file.descriptor();
        if multishot {
            return opcode::RecvMulti::new(descriptor, buffers::GROUP).build();
        }
        // A length of zero means the length of the buffer that the kernel selects.
        let entry = opcode::Recv::new(descriptor, std::ptr::null_mut(), 0);
        entry.buf_group(buffers::GROUP).build().flags(squeue::Flags::BUFFER_SELECT)
    }
}

impl Uring {
    /// Starts a receive, unless one is pending or receiving is paused.
    pub(super) fn receive_next(&mut self, index: u32) {
        let retired = self.slots.is_retired(index);
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        if retired || stream.ended || stream.receiving != Receiving::Idle {
            return;
        }
        let (entry, operation) = if let Some(entry) = stream.target_entry() {
            stream.receiving = Receiving::Target;
            (entry, Operation::Fill)
        } else if !stream.paused {
            stream.receiving = Receiving::Buffers;
            let multishot = self.features.multishot_receive && !stream.is_slowed;
            (stream.buffers_entry(multishot), Operation::Receive)
        } else {
            return;
        };
        stream.cancelled = false;
        let entry = entry.flags(stream.file.flags());
        // SAFETY: the memory is the buffer ring's, or the target's, which stays in the slot until
        // the completion; the slot is not freed before.
        unsafe { self.ring.push(entry, operation.at(index)) }
    }

    /// Cancels a pending ordinary receive. A target is still filled.
    fn cancel_receive(&mut self, index: u32) {
        if let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index)
            && stream.receiving == Receiving::Buffers
            && !std::mem::replace(&mut stream.cancelled, true)
        {
            self.ring.cancel(Operation::Receive.at(index));
        }
    }

    pub(super) fn pause_stream(&mut self, id: Id) {
        if let Some(Slot::Stream(stream)) = self.slots.get_mut(id) {
            (stream.paused, stream.is_slowed) = (true, true);
            self.cancel_receive(id.index);
        }
    }

    /// Receives one buffer at a time from now on: arrivals were not taken.
    pub(super) fn slow_down(&mut self, id: Id) {
        if let Some(Slot::Stream(stream)) = self.slots.get_mut(id)
            && !std::mem::replace(&mut stream.is_slowed, true)
        {
            self.cancel_receive(id.index);
        }
    }

    pub(super) fn resume_stream(&mut self, id: Id) {
        if let Some(Slot::Stream(stream)) = self.slots.get_mut(id) {
            stream.paused = false;
            self.restart.push(id);
        }
    }

    /// Gives a stream its target. Deliveries not yet taken go to it at the next wait; only then,
    /// and after the ordinary receive's last completion, may the kernel write to it.
    pub(super) fn fill(&mut self, id: Id, target: Target) {
        let result = match self.slots.get_mut(id) {
            Some(Slot::Stream(stream)) if stream.target.is_some() => {
                Err(io::ErrorKind::ResourceBusy.into())
            }
            Some(Slot::Stream(_)) if target.is_full() => Ok(()),
            Some(Slot::Stream(stream)) => {
                stream.target = Some(target);
                self.restart.push(id);
                return self.cancel_receive(id.index);
            }
            _ => Err(io::ErrorKind::NotConnected.into()),
        };
        self.deferred.push(Completion::Filled { socket: id, target, result });
    }

    #[inline(always)]
    pub(super) fn on_receive(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let (result, flags) = (entry.result(), entry.flags());
        if result > 0
            && cqueue::more(flags)
            && let Some(buffer) = cqueue::buffer_select(flags)
            && let Some((id, Slot::Stream(stream))) = self.slots.live_at_mut(index)
            && stream.target.is_none()
        {
            stream.unchecked = true;
            return self.report(id, DeliverySource::Buffer(buffer), result as u32, completions);
        }
        self.on_receive_general(index, entry, completions);
    }

    /// Handles a completion that is an error or an end, or belongs to a target.
    #[inline(never)]
    fn on_receive_general(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let Some((id, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        stream.unchecked = true;
        if entry.result() > 0 && !cqueue::sock_nonempty(entry.flags()) {
            stream.is_slowed = false;
        }
        let source = match (entry.result(), cqueue::buffer_select(entry.flags())) {
            (1.., Some(buffer)) => Some(DeliverySource::Buffer(buffer)),
            (_, Some(buffer)) => {
                self.buffers.recycle(buffer);
                (entry.result() == 0).then_some(DeliverySource::End)
            }
            (0.., None) => Some(DeliverySource::End),
            (errno, None) => DeliverySource::from_errno(-errno),
        };
        let is_last = matches!(source, Some(DeliverySource::End | DeliverySource::Failed(_)));
        // A check may have reported it already.
        let source = source.filter(|_| !(is_last && stream.ended));
        stream.ended |= is_last;
        let over = !cqueue::more(entry.flags());
        if over {
            stream.receiving = Receiving::Idle;
        }
        if let Some(source) = source {
            self.deliver(id, source, entry.result(), completions);
        }
        if over {
            if entry.result() == -libc::ENOBUFS {
                self.restart.push(id);
            } else {
                self.receive_next(index);
            }
            self.free_if_idle(index);
        }
    }

    /// Peeks for more if the last arrival was bytes and a multishot receive waits. After the end it
    /// polls for a reset.
    pub(super) fn check_stream(&mut self, id: Id) {
        let is_multishot = self.features.multishot_receive;
        let Some(Slot::Stream(stream)) = self.slots.get_mut(id) else { return };
        if stream.ended {
            return self.poll_hangup(id);
        }
        if !is_multishot
            || stream.checking
            || stream.receiving != Receiving::Buffers
            || !std::mem::take(&mut stream.unchecked)
        {
            return;
        }
        stream.checking = true;
        let entry = opcode::Recv::new(stream.file.descriptor(), self.buffers.peek_byte(), 1);
        let entry = entry.flags(libc::MSG_PEEK | libc::MSG_DONTWAIT).build();
        let entry = entry.flags(stream.file.flags());
        // SAFETY: the byte is the buffers', which live until all operations have ended.
        unsafe { self.ring.push(entry, Operation::Check.at(id.index)) }
    }

    pub(super) fn on_check(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let Some((id, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        stream.checking = false;
        let source = match entry.result() {
            0 => Some(DeliverySource::End),
            // More bytes have arrived, and the receive was notified.
            1.. => None,
            errno => DeliverySource::from_errno(-errno),
        };
        if let Some(source) = source.filter(|_| !stream.ended) {
            stream.ended = true;
            self.cancel_receive(index);
            self.deliver(id, source, 0, completions);
        }
        self.free_if_idle(index);
    }

    /// Has the kernel report each change of a stream that has ended, beginning with the end.
    fn poll_hangup(&mut self, id: Id) {
        let Some(Slot::Stream(stream)) = self.slots.get_mut(id) else { return };
        if !std::mem::replace(&mut stream.polling, true) {
            let entry = opcode::PollAdd::new(stream.file.descriptor(), 0).multi(true).build();
            let entry = entry.flags(stream.file.flags());
            // SAFETY: the entry names no memory.
            unsafe { self.ring.push(entry, Operation::Hangup.at(id.index)) }
        }
    }

    pub(super) fn on_hangup(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((id, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        stream.polling = cqueue::more(entry.flags());
        let events = u32::try_from(entry.result()).unwrap_or(0);
        if events & (libc::POLLERR | libc::POLLHUP) as u32 != 0 && !retired {
            self.deliver(id, DeliverySource::Failed(libc::ECONNRESET), 0, completions);
        }
        self.free_if_idle(index);
    }

    pub(super) fn on_fill(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((socket, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        stream.receiving = Receiving::Idle;
        let Some(mut target) = stream.target.take() else { return };
        let result = match result_of(entry) {
            Ok(count) => {
                // SAFETY: the kernel wrote `count` bytes to the front of the rest.
                unsafe { target.advance(count as usize) };
                if count == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
            }
            Err(error) => Err(error),
        };
        let retry = matches!(&result, Err(error) if is_transient(error));
        if !retired && (retry || (result.is_ok() && !target.is_full())) {
            stream.target = Some(target);
            return self.receive_next(index);
        }
        let result = if retired { Err(io::ErrorKind::Interrupted.into()) } else { result };
        completions.push(Completion::Filled { socket, target, result });
        // The caller may now set another target, and bytes in buffers would be copied there.
        self.filled.push(socket);
        self.free_if_idle(index);
    }

    /// Cancels the operations of a retired stream, then closes its file.
    pub(super) fn close_stream(&mut self, index: u32) {
        let Some((socket, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let receive = stream.receive_operation();
        let sending = stream.sending.is_some().then_some(Operation::Send);
        let polling = stream.polling.then_some(Operation::Hangup);
        let file = stream.closable_file();
        if receive != Some(Operation::Fill)
            && let Some(target) = stream.target.take()
        {
            let result = Err(io::ErrorKind::Interrupted.into());
            self.deferred.push(Completion::Filled { socket, target, result });
        }
        for operation in [receive, sending, polling].into_iter().flatten() {
            self.ring.cancel(operation.at(index));
        }
        if let Some(file) = file {
            self.close_file(file);
        }
    }
}
