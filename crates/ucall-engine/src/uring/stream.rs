//! Stream sockets: one receive and at most one send under way.
//!
//! What a socket receives with, as a table (`receiving`):
//!
//! | now      | what happens                      | next     |
//! |----------|-----------------------------------|----------|
//! | Idle     | `receive_next` with a target      | Target   |
//! | Idle     | `receive_next` without, not paused| Buffers  |
//! | Buffers  | last completion                   | Idle, then `receive_next` |
//! | Buffers  | paused, closed, or given a target | Buffers, cancelled |
//! | Target   | last completion                   | Idle, then `receive_next` |
//!
//! After the end of the stream, or an error, and when closed, it stays Idle.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use io_uring::types::{Fd, Fixed};
use io_uring::{cqueue, opcode, squeue};
use rustix::net::Shutdown;
use ucall_buffer::{Payload, Target};

use super::buffers;
use super::delivery::Source;
use super::memory::Stable;
use super::message::Message;
use super::ring::result_of;
use super::token::{Operation, Token};
use super::{Slot, Uring};
use crate::{Completion, Id, SendState};

/// A peer that is gone is an error and not a signal, and a send goes on until all is out.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
/// The same, but a send that would have to wait for room ends there.
const SILENT_SEND_FLAGS: i32 = SEND_FLAGS | libc::MSG_DONTWAIT;
/// One operation moves at most this much: its result has 31 bits.
const OPERATION_BYTES_MAX: usize = 1 << 30;

pub(super) struct Stream {
    pub(super) file: File,
    pub(super) target: Option<Target>,
    receiving: Receiving,
    /// The receive under way has been cancelled.
    cancelled: bool,
    paused: bool,
    /// The peer's side has ended or broken, and that is on its way to the caller.
    ended: bool,
    sending: Option<Sending>,
    /// Shut down once the send under way is through.
    shutting_down: bool,
}

/// An open file as submissions name it.
pub(super) enum File {
    /// A place in the ring's table.
    Direct(u32),
    Plain(OwnedFd),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Receiving {
    Idle,
    Buffers,
    Target,
}

struct Sending {
    payload: Payload,
    sent: usize,
    /// Present when the payload has several parts.
    message: Option<Stable<Message>>,
    /// Submitted such that it ends while it is submitted, and completes only if it fails.
    silent: bool,
}

impl File {
    fn descriptor(&self) -> Fd {
        match self {
            File::Direct(index) => Fd(*index as i32),
            File::Plain(descriptor) => Fd(descriptor.as_raw_fd()),
        }
    }

    fn flags(&self) -> squeue::Flags {
        match self {
            File::Direct(_) => squeue::Flags::FIXED_FILE,
            File::Plain(_) => squeue::Flags::empty(),
        }
    }
}

impl Stream {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            target: None,
            receiving: Receiving::Idle,
            cancelled: false,
            paused: false,
            ended: false,
            sending: None,
            shutting_down: false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.receiving == Receiving::Idle && self.sending.is_none()
    }

    /// The target, if the stream ended before it was given.
    pub(super) fn take_hopeless_target(&mut self) -> Option<Target> {
        if self.ended { self.target.take() } else { None }
    }

    /// The operation that receives just now.
    fn receive_operation(&self) -> Option<Operation> {
        match self.receiving {
            Receiving::Idle => None,
            Receiving::Buffers => Some(Operation::Receive),
            Receiving::Target => Some(Operation::Fill),
        }
    }

    fn target_entry(&self, target: &mut Target) -> squeue::Entry {
        let len = target.remaining().min(OPERATION_BYTES_MAX) as u32;
        let rest = target.rest().as_ptr();
        opcode::Recv::new(self.file.descriptor(), rest, len).flags(libc::MSG_WAITALL).build()
    }

    fn buffers_entry(&self, multishot: bool) -> squeue::Entry {
        let descriptor = self.file.descriptor();
        if multishot {
            return opcode::RecvMulti::new(descriptor, buffers::GROUP).build();
        }
        // A length of zero stands for that of the buffer which the kernel picks.
        let entry = opcode::Recv::new(descriptor, std::ptr::null_mut(), 0);
        entry.buf_group(buffers::GROUP).build().flags(squeue::Flags::BUFFER_SELECT)
    }
}

impl Sending {
    /// What is left to send, as one submission.
    fn entry(&mut self, file: &File, spare: &mut Vec<Stable<Message>>) -> squeue::Entry {
        let mut slices = self.payload.slices_from(self.sent);
        let first = slices.next().unwrap_or(&[]);
        if slices.next().is_none() {
            let len = first.len().min(OPERATION_BYTES_MAX) as u32;
            let entry = opcode::Send::new(file.descriptor(), first.as_ptr(), len);
            return entry.flags(self.flags()).build();
        }
        let message = self.message.get_or_insert_with(|| spare.pop().unwrap_or_else(Message::new));
        let header = message.as_mut().outgoing(self.payload.slices_from(self.sent), None);
        opcode::SendMsg::new(file.descriptor(), header).flags(self.flags() as u32).build()
    }

    fn flags(&self) -> i32 {
        if self.silent { SILENT_SEND_FLAGS } else { SEND_FLAGS }
    }
}

impl Uring {
    /// Receives, unless that is under way already or must not be.
    pub(super) fn receive_next(&mut self, index: u32) {
        let retired = self.slots.is_retired(index);
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        if retired || stream.ended || stream.receiving != Receiving::Idle {
            return;
        }
        let entry = if let Some(mut target) = stream.target.take() {
            stream.receiving = Receiving::Target;
            let entry = stream.target_entry(&mut target);
            stream.target = Some(target);
            entry
        } else if !stream.paused {
            stream.receiving = Receiving::Buffers;
            stream.buffers_entry(self.features.multishot_receive)
        } else {
            return;
        };
        stream.cancelled = false;
        let entry = entry.flags(stream.file.flags());
        let token = stream.receive_operation().map_or(Token::IGNORED, |kind| kind.at(index));
        // SAFETY: the memory is the buffer ring's, or the target's, which stays in the slot until
        // the completion; the slot is not freed before.
        unsafe { self.ring.push(entry, token) }
    }

    /// Cancels an ordinary receive under way. A target is filled all the same.
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
            stream.paused = true;
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

    pub(super) fn on_receive(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let Some((id, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let source = match (entry.result(), cqueue::buffer_select(entry.flags())) {
            (1.., Some(buffer)) => Some(Source::Buffer(buffer)),
            (_, Some(buffer)) => {
                self.buffers.give_back(buffer);
                (entry.result() == 0).then_some(Source::End)
            }
            (0.., None) => Some(Source::End),
            (errno, None) => Source::from_errno(-errno),
        };
        stream.ended |= matches!(source, Some(Source::End | Source::Failed(_)));
        let over = !cqueue::more(entry.flags());
        if over {
            stream.receiving = Receiving::Idle;
        }
        if let Some(source) = source {
            self.deliver(source.delivery(id, entry.result()), completions);
        }
        if over && entry.result() == -libc::ENOBUFS {
            self.restart.push(id);
        } else if over {
            self.receive_next(index);
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
        let retry = matches!(&result, Err(error) if is_passing(error));
        if retired {
            let result = Err(io::ErrorKind::Interrupted.into());
            completions.push(Completion::Filled { socket, target, result });
        } else if retry || (result.is_ok() && !target.is_full()) {
            stream.target = Some(target);
        } else {
            completions.push(Completion::Filled { socket, target, result });
        }
        self.receive_next(index);
        self.free_if_idle(index);
    }

    /// Sends. `silent` asks for no completion where that can be had; see [`Uring::hear_silence`].
    pub(super) fn send_stream(&mut self, socket: Id, payload: Payload, silent: bool) -> SendState {
        if payload.is_empty() {
            return SendState::Done(payload);
        }
        let silent = silent && self.features.partial_sends && payload.len() <= OPERATION_BYTES_MAX;
        let error = match self.slots.get_mut(socket) {
            Some(Slot::Stream(stream)) if stream.sending.is_none() => {
                stream.sending = Some(Sending { payload, sent: 0, message: None, silent });
                self.send_next(socket.index);
                return SendState::Pending;
            }
            Some(Slot::Stream(_)) => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::NotConnected,
        };
        let result = Err(error.into());
        self.deferred.push(Completion::Sent { socket, payload, result });
        SendState::Pending
    }

    fn send_next(&mut self, index: u32) {
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(sending) = &mut stream.sending else { return };
        let entry = sending.entry(&stream.file, &mut self.spare_messages);
        let mut flags = stream.file.flags();
        if sending.silent {
            flags |= squeue::Flags::SKIP_SUCCESS;
            self.silent.push(index);
        }
        let entry = entry.flags(flags);
        // SAFETY: payload and message stay in the slot until the completion, and the bytes they
        // name do not move with them; the slot is not freed before.
        unsafe { self.ring.push(entry, Operation::Send.at(index)) }
    }

    pub(super) fn on_send(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(sending) = &mut stream.sending else { return };
        sending.silent = false;
        let result = match result_of(entry) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            result => result.map(|count| sending.sent += count as usize),
        };
        let unfinished = match &result {
            Ok(()) => sending.sent < sending.payload.len(),
            Err(error) => is_passing(error),
        };
        if unfinished && !retired {
            return self.send_next(index);
        }
        let result = if unfinished { Err(io::ErrorKind::Interrupted.into()) } else { result };
        self.finish_send(index, result, completions);
        self.free_if_idle(index);
    }

    /// Takes note of the silent sends that are through. Such a send never waits: it ended while it
    /// was submitted, and completed only if something of it is left. So once all submissions and
    /// all completions have been seen, those that did not complete are out.
    pub(super) fn hear_silence(&mut self, completions: &mut Vec<Completion>) {
        if self.silent.is_empty() || !self.ring.is_flushed() {
            return;
        }
        while let Some(index) = self.silent.pop() {
            let stream = self.slots.at_mut(index).map(|(_, slot)| slot);
            if let Some(Slot::Stream(Stream { sending: Some(sending), .. })) = stream
                && sending.silent
            {
                self.finish_send(index, Ok(()), completions);
                self.free_if_idle(index);
            }
        }
    }

    fn finish_send(
        &mut self,
        index: u32,
        result: io::Result<()>,
        completions: &mut Vec<Completion>,
    ) {
        let Some((socket, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(Sending { payload, message, .. }) = stream.sending.take() else { return };
        let shutting_down = std::mem::take(&mut stream.shutting_down);
        self.spare_messages.extend(message);
        completions.push(Completion::Sent { socket, payload, result });
        if shutting_down {
            self.shut_down(socket);
        }
    }

    /// Ends our side, after the send under way.
    pub(super) fn shut_down(&mut self, socket: Id) {
        let Some(Slot::Stream(stream)) = self.slots.get_mut(socket) else { return };
        stream.shutting_down = stream.sending.is_some();
        if stream.shutting_down {
            return;
        }
        match &stream.file {
            File::Direct(file) => {
                let entry = opcode::Shutdown::new(Fixed(*file), libc::SHUT_WR).build();
                // SAFETY: the entry names no memory.
                unsafe { self.ring.push(entry, Token::IGNORED) }
            }
            // Queued, it might meet a stranger who got the number after a close.
            File::Plain(descriptor) => {
                self.ring.system_calls += 1;
                // It fails only when the connection is gone already.
                rustix::net::shutdown(descriptor, Shutdown::Write).unwrap_or(());
            }
        }
    }

    /// Cancels what is under way for a stream that was retired, then closes its file.
    pub(super) fn close_stream(&mut self, index: u32) {
        let Some((socket, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let receive = stream.receive_operation();
        let sending = stream.sending.is_some().then_some(Operation::Send);
        let direct = if let File::Direct(file) = stream.file { Some(file) } else { None };
        if receive != Some(Operation::Fill)
            && let Some(target) = stream.target.take()
        {
            let result = Err(io::ErrorKind::Interrupted.into());
            self.deferred.push(Completion::Filled { socket, target, result });
        }
        for operation in [receive, sending].into_iter().flatten() {
            self.ring.cancel(operation.at(index));
        }
        if let Some(file) = direct {
            self.close_file(file);
        }
    }
}

/// Whether an operation that ended with this error may simply be tried again, unless it was us who
/// cancelled it.
fn is_passing(error: &io::Error) -> bool {
    let passing = [libc::EINTR, libc::EAGAIN, libc::ECANCELED];
    error.raw_os_error().is_some_and(|errno| passing.contains(&errno))
}
