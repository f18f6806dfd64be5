//! What an engine reports back.

use std::io;
use std::mem;

use ucall_buffer::{Payload, Target};

use crate::Id;

/// A ticket for bytes that have arrived; [`Engine::receive`](crate::Engine::receive) turns it into
/// the bytes. Good for the turn that reported it.
#[derive(Debug)]
pub struct Arrival {
    /// The socket that the bytes arrived on.
    pub socket: Id,
    /// The engine's own position of the bytes.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "io_uring keeps several"))]
    pub(crate) delivery_index: u32,
}

/// Appends the result of `make`, which is built in place: a copy would wait for the writes before
/// it.
#[inline(always)]
pub(crate) fn push<T>(list: &mut Vec<T>, make: impl FnOnce() -> T) {
    list.reserve(1);
    // Lets the compiler know that the push calls nothing.
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
        /// The listener that accepted it.
        listener: Id,
        /// The new connection.
        socket: Id,
    },
    /// No connection could be accepted, mostly because no descriptor or slot was free. Accepting
    /// has paused: [`Engine::resume`](crate::Engine::resume) the listener to retry.
    AcceptFailed {
        /// Which listener.
        listener: Id,
        /// Why.
        error: io::Error,
    },
    /// Bytes, the end of the stream or an error arrived on a stream socket.
    Received(Arrival),
    /// Datagrams may have arrived on this socket; see
    /// [`Engine::receive_from`](crate::Engine::receive_from).
    Datagrams(Id),
    /// A target is full, or the stream ended or broke before that. Ownership returns.
    Filled {
        /// Which socket.
        socket: Id,
        /// The target; `filled()` is the number of received bytes.
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
        /// Why the payload was not sent whole.
        result: io::Result<()>,
    },
    /// A watched descriptor is ready. Watches are one-shot.
    Ready {
        /// Which watch.
        watch: Id,
        /// What for.
        readiness: Readiness,
    },
    /// [`Waker::wake`](crate::Waker::wake) was called.
    Woken,
}

impl Completion {
    /// Takes the arrival of [`Completion::Received`], without moving the whole completion. Call it
    /// once.
    #[inline(always)]
    pub fn received(&self) -> Option<Arrival> {
        match self {
            Self::Received(arrival) => Some(Arrival { ..*arrival }),
            _ => None,
        }
    }

    /// Takes the payload of a successful [`Completion::Sent`] and its socket. Call it once.
    #[inline(always)]
    pub fn sent(&mut self) -> Option<(Id, Payload)> {
        match self {
            Self::Sent { socket, payload, result: Ok(()) } => Some((*socket, mem::take(payload))),
            _ => None,
        }
    }

    /// Clears a list whose values were all taken. Dropping them would inspect the variant of each.
    #[inline(always)]
    pub fn clear_taken(list: &mut Vec<Self>) {
        while let Some(taken) = list.pop() {
            mem::forget(taken);
        }
    }
}
