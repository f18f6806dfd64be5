//! Accepts connections: one operation per listener, multishot if possible, into the file table.
//!
//! The kernel also accepts a connection for which the table has no slot, and drops it. A multishot
//! accept takes all pending connections before it can be stopped. So it is used only while the
//! table has a slot for each of these; otherwise each accept is a single one.
//!
//! Workers that share a socket wait in a queue of the kernel, which wakes the first of them for
//! each connection. A single accept enters it at its end, so that connections are spread evenly; a
//! multishot one would stay first for ever.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use io_uring::{cqueue, opcode, types};

use super::file::File;
use super::ring::result_of;
use super::stream::Stream;
use super::token::{Operation, Token};
use super::{Slot, Uring};
use crate::listen::BACKLOG;
use crate::{Completion, Id};

pub(super) struct Listener {
    pub(super) socket: crate::Listener,
    pub(super) paused: bool,
    /// An accept is in progress.
    pub(super) accepting: bool,
    /// A multishot accept that was not cancelled.
    pub(super) is_multishot: bool,
}

impl Listener {
    pub(super) fn new(socket: crate::Listener) -> Self {
        Self { socket, paused: false, accepting: false, is_multishot: false }
    }

    /// Wakes the other waiters of a shared socket if it does not wait any more: the kernel may have
    /// woken it alone for a connection that it has not accepted.
    fn wake_others(&self) {
        if self.paused && !self.accepting && self.socket.is_shared() {
            self.socket.wake_all();
        }
    }
}

impl Uring {
    /// Starts an accept, unless one is pending or accepting is paused.
    pub(super) fn accept_next(&mut self, index: u32) {
        let (retired, has_room) = (self.slots.is_retired(index), self.has_room());
        let Some((_, Slot::Listener(listener))) = self.slots.at_mut(index) else { return };
        if retired || listener.paused || listener.accepting {
            return;
        }
        listener.accepting = true;
        listener.is_multishot = has_room && !listener.socket.is_shared();
        let descriptor = types::Fd(listener.socket.as_fd().as_raw_fd());
        let entry = match listener.is_multishot {
            true => opcode::AcceptMulti::new(descriptor).allocate_file_index(true).build(),
            false => opcode::Accept::new(descriptor, ptr::null_mut(), ptr::null_mut())
                .file_index(Some(types::DestinationSlot::auto_target()))
                .build(),
        };
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry, Operation::Accept.at(index)) }
    }

    pub(super) fn pause_listener(&mut self, index: u32) {
        if let Some((_, Slot::Listener(listener))) = self.slots.at_mut(index) {
            listener.paused = true;
            if listener.accepting {
                self.ring.cancel(Operation::Accept.at(index));
            } else {
                listener.wake_others();
            }
        }
    }

    pub(super) fn resume_listener(&mut self, id: Id) {
        if let Some(Slot::Listener(listener)) = self.slots.get_mut(id) {
            listener.paused = false;
            let mut failed = Vec::new();
            self.stop_before_full(id, &mut failed);
            self.deferred.append(&mut failed);
            self.accept_next(id.index);
        }
    }

    pub(super) fn on_accept(
        &mut self,
        index: u32,
        entry: &cqueue::Entry,
        completions: &mut Vec<Completion>,
    ) {
        let retired = self.slots.is_retired(index);
        let Some((id, Slot::Listener(listener))) = self.slots.at_mut(index) else { return };
        listener.accepting = cqueue::more(entry.flags());
        match result_of(entry) {
            Ok(file) => {
                self.files += 1;
                // The next connection goes to another worker.
                listener.paused |= listener.socket.is_shared();
                if retired {
                    self.close_file(file as u32);
                } else {
                    self.add_accepted(id, file as u32, completions);
                }
            }
            // A drain has ended the socket, of this process or of another one.
            Err(_) if listener.socket.is_shut_down() => {
                listener.paused = true;
            }
            Err(error) if retired || is_transient(&error) => listener.wake_others(),
            Err(error) => {
                listener.paused = true;
                listener.wake_others();
                completions.push(Completion::AcceptFailed { listener: id, error });
            }
        }
        self.accept_next(index);
        self.free_if_idle(index);
    }

    fn add_accepted(&mut self, listener: Id, file: u32, completions: &mut Vec<Completion>) {
        let socket = self.slots.insert(Slot::Stream(Stream::new(File::Direct(file))));
        self.receive_next(socket.index);
        completions.push(Completion::Accepted { listener, socket });
        self.stop_before_full(listener, completions);
    }

    /// Pauses a listener when the file table is nearly full: the kernel drops a connection that is
    /// accepted without a slot, but one that is not accepted yet can wait.
    fn stop_before_full(&mut self, id: Id, completions: &mut Vec<Completion>) {
        let Some(Slot::Listener(listener)) = self.slots.get_mut(id) else { return };
        if self.files >= self.files_max && !listener.paused {
            self.pause_listener(id.index);
            let error = io::Error::from_raw_os_error(libc::ENFILE);
            completions.push(Completion::AcceptFailed { listener: id, error });
        } else if self.files + BACKLOG as u32 > self.files_max
            && mem::take(&mut listener.is_multishot)
        {
            self.ring.cancel(Operation::Accept.at(id.index));
        }
    }

    /// Whether the table has a slot for each pending connection.
    fn has_room(&self) -> bool {
        self.files + BACKLOG as u32 <= self.files_max
    }

    /// Closes a direct descriptor, after all operations submitted for it.
    pub(super) fn close_file(&mut self, file: u32) {
        self.files -= 1;
        let entry = opcode::Close::new(types::Fixed(file)).build();
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry, Token::IGNORED) }
    }
}

/// Whether to simply accept again: the accept was cancelled or interrupted, or the peer has closed
/// the connection.
fn is_transient(error: &io::Error) -> bool {
    let transient = [libc::ECANCELED, libc::ECONNABORTED, libc::EINTR, libc::EAGAIN];
    error.raw_os_error().is_some_and(|errno| transient.contains(&errno))
}
