//! What an engine reports back.

use std::io;
use std::mem;

use ucall_buffer::{Payload, Target};

use crate::Id;

/// A ticket for bytes that have arrived; [`Engine::receive`](crate::Engine::receive) turns it into
/// the bytes. Good for the turn that reported it.
#[derive(Debug)]
pub struct Arrival {
    /// The socket that the bytes came to.
    pub socket: Id,
    /// Where the engine keeps it, in words of its own.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "io_uring keeps several"))]
    pub(crate) delivery_index: u32,
}

/// Appends what `make` gives, made where it stays: built elsewhere first, it would be copied right
/// after it was written, and wait for that.
#[inline(always)]
pub(crate) fn push<T>(list: &mut Vec<T>, make: impl FnOnce() -> T) {
    list.reserve(1);
    // Tells the compiler that pushing calls nothing any more.
    assert!(list.len() < list.capacity(), "there is room for one");
    list.push(make());
}

/// What a watched descriptor is ready for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// A read will not block (data, end of stream or an error).
    pub readable: bool,
    /// A write will not block.
    pub writable: bool,
}

/// One thing that happened.
#[derive(Debug)]
pub enum Completion {
    /// A connection was accepted; it is already receiving.
    Accepted {
        /// Where it came in.
        listener: Id,
        /// The new connection.
        socket: Id,
    },
    /// No connection could be accepted (no descriptors or no room in the table, as a rule).
    /// Accepting has paused: [`Engine::resume`](crate::Engine::resume) the listener to try again.
    AcceptFailed {
        /// Which listener.
        listener: Id,
        /// Why.
        error: io::Error,
    },
    /// Bytes, the end of the stream or an error have come to a stream socket.
    Received(Arrival),
    /// A datagram has come; see [`Engine::receive_from`](crate::Engine::receive_from).
    Datagram(Arrival),
    /// A target is full, or the stream ended or broke before that. Ownership returns.
    Filled {
        /// Which socket.
        socket: Id,
        /// The target; its `filled()` tells how far it came.
        target: Target,
        /// `Ok` when full; `UnexpectedEof` at the end of the stream; `Interrupted` when the socket
        /// was closed from our side.
        result: io::Result<()>,
    },
    /// A payload has been handed to the kernel whole, or cannot be. Ownership returns.
    Sent {
        /// Which socket.
        socket: Id,
        /// The payload, to be used again.
        payload: Payload,
        /// Why not all of it went out.
        result: io::Result<()>,
    },
    /// A watched descriptor is ready. Watches are one-shot.
    Ready {
        /// Which watch.
        watch: Id,
        /// What for.
        readiness: Readiness,
    },
    /// Somebody called [`Waker::wake`](crate::Waker::wake).
    Woken,
}

impl Completion {
    /// The ticket of [`Completion::Received`], to be used once: a few bytes of what is wide, which
    /// need not be moved for them.
    #[inline(always)]
    pub fn received(&self) -> Option<Arrival> {
        match self {
            Self::Received(arrival) => Some(Arrival { ..*arrival }),
            _ => None,
        }
    }

    /// The payload of a [`Completion::Sent`] that went well, and whose it was; used once, too.
    #[inline(always)]
    pub fn sent(&mut self) -> Option<(Id, Payload)> {
        match self {
            Self::Sent { socket, payload, result: Ok(()) } => Some((*socket, mem::take(payload))),
            _ => None,
        }
    }

    /// Empties a list of which all was taken, so that nothing has to be dropped: that would look at
    /// each for what kind it is.
    #[inline(always)]
    pub fn clear_taken(list: &mut Vec<Self>) {
        while let Some(taken) = list.pop() {
            mem::forget(taken);
        }
    }
}
