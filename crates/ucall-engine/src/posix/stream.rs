//! Stream sockets: the read and the write of each turn.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, send, sendmsg};
use ucall_buffer::{Payload, Target};

use super::ReadReadiness;
use crate::{Arrival, Completion, Id, completion};

/// Parts handed to one system call.
const PARTS_MAX: usize = 64;

/// A failed peer is an error, not a signal.
#[cfg(not(target_vendor = "apple"))]
pub(super) const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
/// On these systems it is an option of the socket; see [`prepare`].
#[cfg(target_vendor = "apple")]
pub(super) const SEND_FLAGS: SendFlags = SendFlags::empty();

pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    pub(super) target: Option<Target>,
    /// The peer has shut down its side, or the stream has failed: a read after the last bytes
    /// reports it, and no further event does.
    pub(super) ending: bool,
    /// That was reported.
    pub(super) ended: bool,
    sending: Option<Sending>,
    /// Shut down after the current send.
    shutting_down: bool,
}

struct Sending {
    payload: Payload,
    sent: usize,
}

/// What became of a send.
pub(super) enum SendOutcome {
    Done(Payload),
    Queued,
    Failed(Payload, io::Error),
}

impl Stream {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            target: None,
            ending: false,
            ended: false,
            sending: None,
            shutting_down: false,
        }
    }

    pub(super) fn sent_bytes(&self) -> usize {
        self.sending.as_ref().map_or(0, |sending| sending.sent)
    }

    pub(super) fn filled_bytes(&self) -> usize {
        self.target.as_ref().map_or(0, Target::filled)
    }

    pub(super) fn adopted(socket: OwnedFd) -> io::Result<Self> {
        prepare(&socket)?;
        Ok(Self::new(socket))
    }

    /// Records an event of the poll, and continues a send that waits for buffer space.
    #[inline(always)]
    pub(super) fn handle_event(
        &mut self,
        id: Id,
        event: &mio::event::Event,
        readiness: &mut ReadReadiness,
        calls: &mut u64,
        completions: &mut Vec<Completion>,
    ) {
        let ending = event.is_read_closed() || event.is_error();
        self.ending |= ending;
        readiness.readable |= match self.ended {
            false => ending || event.is_readable(),
            // A peer that has shut down its side may leave later.
            true => event.is_error() || event.is_write_closed(),
        };
        // Nearly every event is writable, but few sends wait.
        if self.sending.is_some() {
            let broken = event.is_write_closed() || event.is_error();
            if event.is_writable() || broken {
                self.continue_sending(id, calls, completions);
            }
        }
    }

    /// Whether there may be something that may be taken.
    pub(super) fn may_have_input(&self, readiness: &ReadReadiness) -> bool {
        readiness.readable && (!readiness.paused || self.target.is_some())
    }

    /// Fills the target, if there is one, from the kernel's buffer, and reports the rest.
    #[inline(always)]
    pub(super) fn report(
        &mut self,
        id: Id,
        readiness: &mut ReadReadiness,
        calls: &mut u64,
        completions: &mut Vec<Completion>,
    ) {
        if self.target.is_none() || self.continue_filling(id, readiness, calls, completions) {
            let arrival = Arrival { socket: id, delivery_index: 0 };
            completion::push(completions, || Completion::Received(arrival));
        }
    }

    /// `true` when the target is full and there may be more.
    #[inline(never)]
    fn continue_filling(
        &mut self,
        id: Id,
        readiness: &mut ReadReadiness,
        calls: &mut u64,
        completions: &mut Vec<Completion>,
    ) -> bool {
        let Some(target) = self.target.take() else { return false };
        match self.fill(target, readiness, calls) {
            FillOutcome::Partial(target) => {
                self.target = Some(target);
                false
            }
            FillOutcome::Done(target, result) => {
                completions.push(filled(id, target, result));
                readiness.readable && !readiness.paused
            }
        }
    }

    /// One read. Fewer bytes than requested mean that the kernel has no more, which saves the read
    /// that would report that.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        readiness: &mut ReadReadiness,
        buffer: &mut [u8],
        calls: &mut u64,
    ) -> io::Result<usize> {
        if self.target.is_some() || !readiness.readable {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        *calls += 1;
        match retry(|| recv(&self.socket, &mut *buffer, RecvFlags::empty())) {
            Ok((count, _)) => {
                readiness.readable = count == buffer.len() || (count > 0 && self.ending);
                self.ended = count == 0;
                Ok(count)
            }
            Err(errno) => {
                readiness.readable = false;
                self.ended = errno != Errno::AGAIN;
                Err(errno.into())
            }
        }
    }

    /// Takes a target for the next bytes; returns the completion if the stream has already ended.
    pub(super) fn fill_next(&mut self, id: Id, target: Target) -> Option<Completion> {
        let over = if self.target.is_some() {
            Err(io::ErrorKind::ResourceBusy.into())
        } else if target.is_full() {
            Ok(())
        } else if self.ended {
            Err(io::ErrorKind::UnexpectedEof.into())
        } else {
            self.target = Some(target);
            return None;
        };
        Some(filled(id, target, over))
    }

    fn fill(
        &self,
        mut target: Target,
        readiness: &mut ReadReadiness,
        calls: &mut u64,
    ) -> FillOutcome {
        let room = target.room();
        // SAFETY: the target's rest is valid for writes of `room` bytes, and no other code accesses
        // it while we own the target.
        let rest = unsafe {
            std::slice::from_raw_parts_mut(target.rest().as_ptr().cast::<MaybeUninit<u8>>(), room)
        };
        *calls += 1;
        let read = retry(|| recv(&self.socket, &mut *rest, RecvFlags::empty()).map(|read| read.1));
        match read {
            Ok(0) => FillOutcome::Done(target, Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                // SAFETY: the kernel wrote `count` bytes to the front of the rest.
                unsafe { target.advance(count) };
                readiness.readable = count == room || self.ending;
                if target.is_full() {
                    FillOutcome::Done(target, Ok(()))
                } else {
                    FillOutcome::Partial(target)
                }
            }
            Err(Errno::AGAIN) => {
                readiness.readable = false;
                FillOutcome::Partial(target)
            }
            Err(errno) => FillOutcome::Done(target, Err(errno.into())),
        }
    }

    /// Writes at once, and stores the bytes that the kernel does not accept.
    #[inline(always)]
    pub(super) fn send(&mut self, payload: Payload, calls: &mut u64) -> SendOutcome {
        if self.sending.is_some() {
            return SendOutcome::Failed(payload, io::ErrorKind::ResourceBusy.into());
        }
        if !payload.is_contiguous() || payload.is_empty() {
            return self.try_send(Sending { payload, sent: 0 }, calls);
        }
        *calls += 1;
        match send(&self.socket, payload.head(), SEND_FLAGS) {
            Ok(sent) if sent == payload.head().len() => SendOutcome::Done(payload),
            written => self.send_rest(payload, written, calls),
        }
    }

    /// Goes on after a first write that did not take all.
    #[cold]
    fn send_rest(
        &mut self,
        payload: Payload,
        written: Result<usize, Errno>,
        calls: &mut u64,
    ) -> SendOutcome {
        match written {
            Ok(sent) => self.try_send(Sending { payload, sent }, calls),
            Err(Errno::INTR) => self.try_send(Sending { payload, sent: 0 }, calls),
            Err(Errno::AGAIN) => self.queue_rest(Sending { payload, sent: 0 }),
            Err(errno) => SendOutcome::Failed(payload, errno.into()),
        }
    }

    /// Continues a send after the socket became writable; reports its end.
    #[inline(never)]
    pub(super) fn continue_sending(
        &mut self,
        id: Id,
        calls: &mut u64,
        completions: &mut Vec<Completion>,
    ) {
        let Some(sending) = self.sending.take() else { return };
        let (payload, result) = match self.try_send(sending, calls) {
            SendOutcome::Done(payload) => (payload, Ok(())),
            SendOutcome::Queued => return,
            SendOutcome::Failed(payload, error) => (payload, Err(error)),
        };
        if self.shutting_down {
            self.shut_down(calls);
        }
        completions.push(Completion::Sent { socket: id, payload, result });
    }

    #[inline(never)]
    fn try_send(&mut self, mut sending: Sending, calls: &mut u64) -> SendOutcome {
        while sending.sent < sending.payload.len() {
            *calls += 1;
            match retry(|| write_some(&self.socket, &sending.payload, sending.sent)) {
                Ok(count) => sending.sent += count,
                Err(Errno::AGAIN) => return self.queue_rest(sending),
                Err(errno) => return SendOutcome::Failed(sending.payload, errno.into()),
            }
        }
        SendOutcome::Done(sending.payload)
    }

    /// Stores the send until the socket is writable.
    fn queue_rest(&mut self, sending: Sending) -> SendOutcome {
        self.sending = Some(sending);
        SendOutcome::Queued
    }

    /// Ends our side, after the send in flight.
    pub(super) fn shut_down(&mut self, calls: &mut u64) {
        self.shutting_down = self.sending.is_some();
        if !self.shutting_down {
            *calls += 1;
            // Fails only if the connection is already closed.
            rustix::net::shutdown(&self.socket, Shutdown::Write).unwrap_or(());
        }
    }

    /// Closes the socket, and returns its payload and target.
    pub(super) fn release(self, id: Id, completions: &mut Vec<Completion>) {
        let interrupted = || Err(io::ErrorKind::Interrupted.into());
        completions.extend(self.target.map(|target| filled(id, target, interrupted())));
        completions.extend(self.sending.map(|sending| Completion::Sent {
            socket: id,
            payload: sending.payload,
            result: interrupted(),
        }));
    }
}

enum FillOutcome {
    Partial(Target),
    Done(Target, io::Result<()>),
}

pub(super) fn filled(socket: Id, target: Target, result: io::Result<()>) -> Completion {
    Completion::Filled { socket, target, result }
}

/// What every socket needs that this engine drives: calls that never block and never raise SIGPIPE.
pub(super) fn prepare(socket: &OwnedFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(socket, true)?;
    #[cfg(target_vendor = "apple")]
    socket2::SockRef::from(socket).set_nosigpipe(true)?;
    Ok(())
}

/// One write of as many parts as one call accepts.
fn write_some(socket: impl AsFd, payload: &Payload, sent: usize) -> Result<usize, Errno> {
    match payload.is_contiguous() {
        true => send(socket, payload.head().get(sent..).unwrap_or_default(), SEND_FLAGS),
        false => write_parts(socket, payload, sent),
    }
}

fn write_parts(socket: impl AsFd, payload: &Payload, sent: usize) -> Result<usize, Errno> {
    let mut slices = payload.slices_from(sent);
    if let (Some(only), None) = (slices.next(), slices.next()) {
        return send(socket, only, SEND_FLAGS);
    }
    let mut parts = [IoSlice::new(&[]); PARTS_MAX];
    let mut count = 0;
    for (part, slice) in parts.iter_mut().zip(payload.slices_from(sent)) {
        *part = IoSlice::new(slice);
        count += 1;
    }
    sendmsg(socket, &parts[..count], &mut SendAncillaryBuffer::default(), SEND_FLAGS)
}

/// Repeats a call that a signal interrupted.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
