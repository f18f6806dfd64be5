//! What comes by the thousand and costs much: connections, and the handshakes of TLS. A turn takes
//! a few of each, so that a flood of them keeps nobody from his turn; the others wait in line.
//!
//! Past the limit on connections the longest idle one makes room. Who is idle is known only once
//! all that has come is read, so that is decided at the end of a turn.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::time::Instant;

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
    /// When the turn before this one began, and when this one did.
    turns: (Option<Instant>, Option<Instant>),
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
        self.floods.turns = (self.floods.turns.1, Some(self.office.now));
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

    #[inline(never)]
    pub(crate) fn accept(&mut self, socket: Id) {
        let Some(connection) = self.office.new_connection() else {
            return self.engine.close(socket);
        };
        self.connections.insert(socket, connection, self.office.now);
        self.stats.accepted += 1;
        self.stats.connections = self.connections.len() as u64;
    }

    /// Makes room for the newcomers of this turn, or lets others wait.
    #[inline]
    pub(crate) fn end_floods(&mut self) {
        if self.floods.accepted > 0 && self.is_crowded() {
            self.thin_out();
            if self.is_crowded() {
                self.pause_accepting();
            }
        }
        if let Some(error) = self.accept_error.take() {
            self.accept_failed(&error);
        }
    }

    /// Closes the longest idle connections, until there are no more than may be or none is idle.
    #[inline(never)]
    fn thin_out(&mut self) {
        while self.is_crowded()
            && let Some(idle) = self.longest_idle()
        {
            self.dismiss(idle);
        }
    }

    /// One that came in this turn or the last does not count: its request may be there already, and
    /// is just not read yet.
    fn longest_idle(&mut self) -> Option<Id> {
        self.floods.turns.0.and_then(|before| self.connections.longest_idle(before))
    }

    /// Accepting has failed, and paused: for want of descriptors or of memory, as a rule. The
    /// longest idle connection gives its place to the newcomer; with none idle, newcomers wait.
    #[inline(never)]
    fn accept_failed(&mut self, error: &io::Error) {
        self.accept_paused = true;
        let idle = self.longest_idle();
        if idle.is_none() || !mem::replace(&mut self.accept_failure_told, true) {
            let line = format!("cannot accept a connection: {error}; will try again");
            self.office.handler.warn(&line);
        }
        if let Some(idle) = idle {
            self.dismiss(idle);
            self.resume_accepting();
        }
    }

    #[inline(never)]
    pub(crate) fn pause_accepting(&mut self) {
        self.accept_paused = true;
        for &listener in &self.listeners {
            self.engine.pause(listener);
        }
    }

    /// Goes on accepting, if it has paused and there is room, or some are idle by now.
    pub(crate) fn make_room(&mut self) {
        if self.accept_paused {
            self.thin_out();
            if !self.is_crowded() {
                self.resume_accepting();
            }
        }
    }

    /// Goes on with the handshakes in line.
    #[inline]
    pub(crate) fn go_on_with_handshakes(&mut self) {
        while self.floods.shaken < HANDSHAKES_PER_TURN
            && let Some(id) = self.floods.handshakes.pop_front()
        {
            self.go_on_with_handshake(id);
        }
    }

    #[inline(never)]
    fn go_on_with_handshake(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
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
