//! Sends on stream sockets: one payload at a time, without a completion where possible.

use std::io;

use io_uring::types::Fixed;
use io_uring::{cqueue, opcode, squeue};
use rustix::net::Shutdown;
use ucall_buffer::Payload;

use super::file::{File, is_transient};
use super::ring::result_of;
use super::sending::Sending;
use super::stream::{ShutdownState, Stream};
use super::token::Operation;
use super::{Slot, Uring};
use crate::{Completion, Id, SendState, completion};

impl Uring {
    /// Sends. `skip_success` requests no completion for a success, if possible; see
    /// [`Uring::reap_skipped_cqes`].
    #[inline(always)]
    pub(super) fn send_stream(
        &mut self,
        socket: Id,
        payload: Payload,
        skip_success: bool,
    ) -> SendState {
        if payload.is_empty() {
            return SendState::Done(payload);
        }
        let skip_success = skip_success && self.features.partial_sends;
        if let Some(Slot::Stream(stream)) = self.slots.get_mut(socket)
            && stream.sending.is_none()
        {
            stream.sending = Some(Sending { payload, sent: 0, message: None, skip_success });
            self.send_next(socket.index);
        } else {
            self.refuse_send(socket, payload);
        }
        SendState::Pending
    }

    #[cold]
    fn refuse_send(&mut self, socket: Id, payload: Payload) {
        let error = match self.slots.get(socket) {
            Some(Slot::Stream(_)) => io::ErrorKind::ResourceBusy,
            _ => io::ErrorKind::NotConnected,
        };
        let result = Err(error.into());
        self.deferred.push(Completion::Sent { socket, payload, result });
    }

    #[inline(always)]
    fn send_next(&mut self, index: u32) {
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(sending) = &mut stream.sending else { return };
        if !sending.payload.is_contiguous() {
            return self.send_parts(index);
        }
        // The common case is apart from sends of several parts, so the entry is built in place.
        let entry = sending.entry(&stream.file);
        let skip_success = sending.skip_success;
        self.submit_send(index, skip_success, entry);
    }

    #[cold]
    fn send_parts(&mut self, index: u32) {
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(sending) = &mut stream.sending else { return };
        let entry = sending.parts_entry(&stream.file, &mut self.cached_messages);
        let skip_success = sending.skip_success;
        self.submit_send(index, skip_success, entry);
    }

    #[inline(always)]
    fn submit_send(&mut self, index: u32, skip_success: bool, entry: squeue::Entry) {
        if skip_success {
            self.skip_success_sends.push(index);
        }
        // SAFETY: payload and message stay in the slot until the completion, and the bytes they
        // name do not move with them; the slot is not freed before.
        unsafe { self.ring.push(entry, Operation::Send.at(index)) }
    }

    #[inline(never)]
    pub(super) fn on_send(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(sending) = &mut stream.sending else { return };
        sending.skip_success = false;
        let result = match result_of(entry) {
            Ok(0) => Err(io::ErrorKind::WriteZero.into()),
            result => result.map(|count| sending.sent += count as usize),
        };
        let unfinished = match &result {
            Ok(()) => sending.sent < sending.payload.len(),
            Err(error) => is_transient(error),
        };
        if unfinished && !retired {
            return self.send_next(index);
        }
        let result = if unfinished { Err(io::ErrorKind::Interrupted.into()) } else { result };
        self.finish_send(index, result, completions);
        self.free_if_idle(index);
    }

    /// Handles the sends that ended without a completion. Such a send never waits: it ends while it
    /// is submitted, and completes only if bytes are left. So after all submissions and all
    /// completions, a send that did not complete has succeeded.
    #[inline(always)]
    pub(super) fn reap_skipped_cqes(&mut self, completions: &mut Vec<Completion>) {
        if self.skip_success_sends.is_empty() || !self.ring.is_flushed() {
            return;
        }
        while let Some(index) = self.skip_success_sends.pop() {
            if let Some((socket, Slot::Stream(stream))) = self.slots.live_at_mut(index)
                && stream.shutdown == ShutdownState::NotStarted
                && let Some(sending) = stream.sending.take_if(|sending| sending.is_plain())
            {
                let (payload, result) = (sending.payload, Ok(()));
                completion::push(completions, || Completion::Sent { socket, payload, result });
            } else {
                self.reap_skipped_general(index, completions);
            }
        }
    }

    /// Reaps a skipped completion that returns more than the payload.
    #[inline(never)]
    fn reap_skipped_general(&mut self, index: u32, completions: &mut Vec<Completion>) {
        let stream = self.slots.at_mut(index).map(|(_, slot)| slot);
        if let Some(Slot::Stream(Stream { sending: Some(sending), .. })) = stream
            && sending.skip_success
        {
            self.finish_send(index, Ok(()), completions);
            self.free_if_idle(index);
        }
    }

    #[inline(never)]
    fn finish_send(
        &mut self,
        index: u32,
        result: io::Result<()>,
        completions: &mut Vec<Completion>,
    ) {
        let Some((socket, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        let Some(Sending { payload, message, .. }) = stream.sending.take() else { return };
        let ends = stream.shutdown == ShutdownState::AfterSend;
        self.cached_messages.extend(message);
        completion::push(completions, || Completion::Sent { socket, payload, result });
        if ends {
            self.shut_down(socket);
        }
    }

    /// Ends our side, after the send in flight.
    pub(super) fn shut_down(&mut self, socket: Id) {
        let Some(Slot::Stream(stream)) = self.slots.get_mut(socket) else { return };
        if let Some(sending) = &stream.sending {
            stream.shutdown = ShutdownState::AfterSend;
            self.must_not_block |= sending.skip_success;
            return;
        }
        match &stream.file {
            File::Direct(_) if stream.shutdown == ShutdownState::InProgress => {}
            File::Direct(file) => {
                let entry = opcode::Shutdown::new(Fixed(*file), libc::SHUT_WR).build();
                stream.shutdown = ShutdownState::InProgress;
                // SAFETY: the entry names no memory.
                unsafe { self.ring.push(entry, Operation::Shutdown.at(socket.index)) }
            }
            File::Plain(descriptor) => {
                self.ring.system_calls += 1;
                // Fails only if the connection is already closed.
                rustix::net::shutdown(descriptor, Shutdown::Write).unwrap_or(());
            }
        }
    }

    /// Closes the descriptor that the shutdown had kept open.
    pub(super) fn on_shutdown(&mut self, index: u32) {
        let retired = self.slots.is_retired(index);
        let Some((_, Slot::Stream(stream))) = self.slots.at_mut(index) else { return };
        stream.shutdown = ShutdownState::NotStarted;
        let file = stream.closable_file().filter(|_| retired);
        if let Some(file) = file {
            self.close_file(file);
        }
        self.free_if_idle(index);
    }
}
