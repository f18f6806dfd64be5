//! What comes by the thousand and costs much: connections, and the handshakes of TLS. A turn takes
//! a few of each, so that a flood of them keeps nobody from his turn; the others wait in line.

use std::collections::VecDeque;
use std::mem;

use ucall_engine::{Engine, Id};

use crate::Handler;
use crate::connections::Entry;
use crate::worker::Worker;

/// Connections that are taken in in one turn.
const ACCEPTED_PER_TURN: usize = 64;
/// Steps of handshakes in one turn. One may cost a signature: a millisecond, with a key of RSA.
const HANDSHAKES_PER_TURN: usize = 4;

/// The two lines, and what this turn has taken of them.
#[derive(Debug, Default)]
pub(crate) struct Floods {
    newcomers: VecDeque<Id>,
    accepted: usize,
    /// Those with something `unread`.
    handshakes: VecDeque<Id>,
    shaken: usize,
}

/// What a peer has sent in a handshake, in the line.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    bytes: Vec<u8>,
    /// Whether its side of the stream has ended behind that.
    ends: bool,
}

impl Floods {
    /// Whether there is something to go on with in the next turn.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.newcomers.is_empty() || !self.handshakes.is_empty()
    }

    /// Whether a step of a handshake has to wait, with the bytes that it is for (none: the end).
    #[cold]
    pub(crate) fn postpones(&mut self, entry: &mut Entry, bytes: &[u8]) -> bool {
        if self.handshakes.is_empty() && self.shaken < HANDSHAKES_PER_TURN {
            self.shaken += 1;
            return false;
        }
        if entry.unread.bytes.is_empty() && !entry.unread.ends {
            self.handshakes.push_back(entry.id());
        }
        entry.unread.bytes.extend_from_slice(bytes);
        entry.unread.ends |= bytes.is_empty();
        true
    }
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Goes on with the newcomers of earlier turns.
    #[inline]
    pub(crate) fn begin_floods(&mut self) {
        (self.floods.accepted, self.floods.shaken) = (0, 0);
        while self.floods.accepted < ACCEPTED_PER_TURN
            && let Some(socket) = self.floods.newcomers.pop_front()
        {
            self.floods.accepted += 1;
            self.accept(socket);
        }
    }

    /// Takes a connection in, now or in a later turn.
    pub(crate) fn welcome(&mut self, socket: Id) {
        if self.floods.accepted < ACCEPTED_PER_TURN && self.floods.newcomers.is_empty() {
            self.floods.accepted += 1;
            self.accept(socket);
        } else {
            self.floods.newcomers.push_back(socket);
        }
    }

    /// Goes on with the handshakes in line.
    #[inline]
    pub(crate) fn go_on_with_handshakes(&mut self) {
        while self.floods.shaken < HANDSHAKES_PER_TURN
            && let Some(id) = self.floods.handshakes.pop_front()
        {
            let Some(entry) = self.connections.find(id) else { continue };
            let Unread { mut bytes, ends } = mem::take(&mut entry.unread);
            self.floods.shaken += 1;
            self.step(id, |connection, environment, out| {
                if !bytes.is_empty() {
                    connection.receive(&mut bytes, environment, out);
                }
                if ends {
                    connection.end(environment, out);
                }
            });
            self.settle(id);
        }
    }
}
