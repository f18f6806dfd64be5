//! What comes by the thousand and costs much: connections, their ends, and the handshakes of TLS. A
//! turn takes a few of each, once its calls are answered, so that a flood of them keeps nobody from
//! his turn; the others wait in line. A turn that has nothing else to do costs little more than its
//! one wait, so small numbers make a flood hardly slower.
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

/// Connections that are taken in in one turn, each for a few microseconds.
const ACCEPTED_PER_TURN: usize = 16;
/// Connections whose peers have left, in one turn. Each is closed, for up to 10 microseconds.
const LEFT_PER_TURN: usize = 8;
/// Steps of handshakes in one turn. One may cost a signature: a millisecond, with a key of RSA.
const HANDSHAKES_PER_TURN: usize = 1;

/// The three lines, and what this turn has taken of them.
#[derive(Debug, Default)]
pub(crate) struct Floods {
    newcomers: VecDeque<Id>,
    accepted: usize,
    /// Those whose peers have left, or broken off.
    leavers: VecDeque<(Id, Leave)>,
    left: usize,
    /// Those with something `unread`.
    handshakes: VecDeque<Id>,
    shaken: usize,
    /// When the turn before this one began, and when this one did.
    turns: (Option<Instant>, Option<Instant>),
}

/// How a peer leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Leave {
    /// Its side of the stream has ended.
    Ended,
    /// The connection has broken.
    Broken,
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
        // Asked twice a turn, so without a branch for each.
        self.newcomers.len() + self.leavers.len() + self.handshakes.len() > 0
    }

    /// Begins to count for a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        (self.accepted, self.left, self.shaken) = (0, 0, 0);
        self.turns = (self.turns.1, Some(now));
    }

    /// Whether a step of a handshake has to wait, with the bytes that it is for.
    #[cold]
    pub(crate) fn postpones(&mut self, entry: &mut Entry, bytes: &[u8]) -> bool {
        if self.handshakes.is_empty() && self.shaken < HANDSHAKES_PER_TURN {
            self.shaken += 1;
            return false;
        }
        if entry.unread.bytes.is_empty() {
            self.handshakes.push_back(entry.id());
        }
        entry.unread.bytes.extend_from_slice(bytes);
        true
    }
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Goes on with what waits in the lines, as far as this turn may.
    #[cold]
    pub(crate) fn go_on_with_floods(&mut self) {
        while self.floods.accepted < ACCEPTED_PER_TURN
            && let Some(socket) = self.floods.newcomers.pop_front()
        {
            self.floods.accepted += 1;
            self.accept(socket);
        }
        while self.floods.left < LEFT_PER_TURN && self.let_one_leave() {}
        while self.floods.shaken < HANDSHAKES_PER_TURN && self.go_on_with_a_handshake() {}
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

    /// Ends a connection whose peer has left, now or in a later turn.
    #[cold]
    pub(crate) fn leave(&mut self, id: Id, how: Leave) {
        if let Some(entry) = self.connections.find(id)
            && !entry.unread.bytes.is_empty()
            && matches!(how, Leave::Ended)
        {
            // Behind the step of the handshake that waits.
            entry.unread.ends = true;
            return;
        }
        self.floods.leavers.push_back((id, how));
        if self.floods.left < LEFT_PER_TURN && self.floods.leavers.len() == 1 {
            self.let_one_leave();
        }
    }

    /// Ends the first of those in line; `false` when there is none.
    fn let_one_leave(&mut self) -> bool {
        let Some((id, how)) = self.floods.leavers.pop_front() else { return false };
        self.floods.left += 1;
        match how {
            Leave::Ended => {
                self.step(id, |connection, environment, out| connection.end(environment, out));
                self.settle(id);
            }
            Leave::Broken => self.close(id),
        }
        true
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

    /// Closes connections until there are no more than may be: those whose peers have left, then
    /// the longest idle ones, if any.
    #[inline(never)]
    fn thin_out(&mut self) {
        while self.is_crowded() {
            if self.let_one_leave() {
                continue;
            }
            let Some(idle) = self.longest_idle() else { return };
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

    /// Goes on with the first handshake in line; `false` when there is none.
    #[inline(never)]
    fn go_on_with_a_handshake(&mut self) -> bool {
        let Some(id) = self.floods.handshakes.pop_front() else { return false };
        let Some(entry) = self.connections.find(id) else { return true };
        let Unread { mut bytes, ends } = mem::take(&mut entry.unread);
        self.floods.shaken += 1;
        self.step(id, |connection, environment, out| {
            connection.receive(&mut bytes, environment, out);
            if ends {
                connection.end(environment, out);
            }
        });
        self.settle(id);
        true
    }
}
