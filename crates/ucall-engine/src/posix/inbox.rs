//! Where sockets receive to, and what was received before it was asked for.
//!
//! A receive that enters the kernel by itself leaves the caches and branch predictors to it. So
//! those that will be asked for next are made together, and what they bring is handed out from
//! here. What is not asked for in its turn is reported again; if its socket is given a target, it
//! goes there first.

use std::io;

use ucall_buffer::Target;

use super::{Kind, Posix, Source};
use crate::{Arrival, Completion, Id};

/// One receive takes at most this much.
const PIECE_BYTES: usize = 64 * 1024;
/// Receives made together at most.
const AHEAD_MAX: usize = 4;

/// Memory for the receives that are made together, and for one more.
pub(super) struct Inbox {
    memory: Box<[u8]>,
    /// What was not asked for yet, the next one last.
    ahead: Vec<Ahead>,
}

/// What one receive has brought: bytes of the memory, none at the end of the stream; or an error.
struct Ahead {
    socket: Id,
    start: usize,
    received: io::Result<usize>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let memory = vec![0; (AHEAD_MAX + 1) * PIECE_BYTES].into_boxed_slice();
        Self { memory, ahead: Vec::with_capacity(AHEAD_MAX) }
    }

    /// For what is handed out at once: it is gone at the next call.
    #[inline]
    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory[AHEAD_MAX * PIECE_BYTES..]
    }

    /// Whether there is something of this socket.
    #[inline]
    pub(super) fn has(&self, socket: Id) -> bool {
        self.ahead.iter().any(|ahead| ahead.socket == socket)
    }

    /// Hands it out.
    pub(super) fn take(&mut self, socket: Id) -> io::Result<&mut [u8]> {
        let place = self.ahead.iter().rposition(|ahead| ahead.socket == socket);
        let ahead = self.ahead.remove(place.ok_or(io::ErrorKind::WouldBlock)?);
        Ok(&mut self.memory[ahead.start..][..ahead.received?])
    }

    /// Moves bytes of this socket to its target, as many as it takes.
    pub(super) fn pour(&mut self, socket: Id, target: &mut Target) {
        let is_bytes = |ahead: &Ahead| ahead.socket == socket && matches!(ahead.received, Ok(1..));
        let Some(place) = self.ahead.iter().position(is_bytes) else { return };
        let Ahead { start, received: Ok(len), .. } = &mut self.ahead[place] else { return };
        let count = target.write(&self.memory[*start..][..*len]);
        (*start, *len) = (*start + count, *len - count);
        if *len == 0 {
            self.ahead.remove(place);
        }
    }
}

impl Posix {
    /// Receives for the first of `completions`, unless something that was received before is still
    /// to be asked for.
    #[inline]
    pub(super) fn receive_together(&mut self, completions: &[Completion]) {
        if completions.len() > 1 && self.inbox.ahead.is_empty() {
            self.receive_first(completions);
        }
    }

    fn receive_first(&mut self, completions: &[Completion]) {
        let Inbox { memory, ahead } = &mut self.inbox;
        let pieces = memory.chunks_exact_mut(PIECE_BYTES);
        for ((number, piece), completion) in pieces.enumerate().take(AHEAD_MAX).zip(completions) {
            let Completion::Received(Arrival { socket, .. }) = *completion else { break };
            if let Some(Source { intake, kind: Kind::Stream(stream) }) =
                self.sources.get_mut(socket)
            {
                let received = stream.read(intake, piece, &mut self.system_calls);
                ahead.push(Ahead { socket, start: number * PIECE_BYTES, received });
            }
        }
        ahead.reverse();
    }

    /// Reports what was not asked for in its turn; forgets it if its socket was closed.
    #[inline]
    pub(super) fn report_ahead(&mut self, completions: &mut Vec<Completion>) {
        if self.inbox.ahead.is_empty() {
            return;
        }
        let Self { inbox, sources, .. } = self;
        inbox.ahead.retain(|ahead| sources.get(ahead.socket).is_some());
        let arrivals =
            inbox.ahead.iter().rev().map(|ahead| Arrival { socket: ahead.socket, place: 0 });
        completions.extend(arrivals.map(Completion::Received));
    }
}
