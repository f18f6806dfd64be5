//! A worker on its way to its end: nothing is accepted, what runs may finish, connections close.
//!
//! | since the drain began | a call that comes | a connection on which nothing runs |
//! |---|---|---|
//! | less than [`GRACE`] | is served: its caller could not know | stays, until idle for so long |
//! | longer, refusing | is refused, the last of its connection | is closed |
//! | longer, serving (a successor accepts already) | is served, HTTP's last | is closed |
//! | `drain_timeout` | | everything is given up, and answered so |
//!
//! A listening socket may be shared with a successor, and the kernel wakes only one of those who
//! wait on it for a connection: if that was us, just as we stopped, nobody else knows of it. So
//! what waits there is looked for, and taken: once, or for a while if there is a successor.

use std::mem;
use std::time::{Duration, Instant};

use ucall_engine::{Engine, Id, Listener};
use ucall_proto::Drain;

use crate::connections::Entry;
use crate::{Handler, Worker};

/// How long requests count as sent before their callers could see the drain.
const GRACE: Duration = Duration::from_millis(100);
/// How often connections are looked at meanwhile.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A drain under way.
#[derive(Debug)]
pub(crate) struct Draining {
    wanted: Drain,
    began: Instant,
    until: Instant,
    pub(crate) next_look: Instant,
    /// The turn before this one: what had come by then has been read.
    turn_before: Instant,
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Begins a drain; during one, may only make it stricter.
    #[inline(never)]
    pub(crate) fn begin_drain(&mut self, wanted: Drain) {
        if wanted == Drain::No {
            return;
        }
        if let Some(drain) = &mut self.drain {
            if wanted == Drain::Refusing {
                drain.wanted = wanted;
            }
            return;
        }
        let now = self.office.now;
        let until = now + self.office.config.drain_timeout;
        self.drain = Some(Draining { wanted, began: now, until, next_look: now, turn_before: now });
        self.office.drain = Drain::Serving;
        self.pause_accepting();
        self.accept_what_waits();
        if wanted == Drain::Refusing {
            self.sockets.clear();
        }
    }

    /// Does what the drain asks for at the end of a turn; `true` when it is over.
    #[inline(never)]
    pub(crate) fn go_on_draining(&mut self) -> bool {
        let now = self.office.now;
        let Some(drain) = &mut self.drain else { return false };
        let turn_before = mem::replace(&mut drain.turn_before, now);
        if now >= drain.until {
            self.office.handler.abandon();
            self.take_replies();
            self.send_outbox();
            for id in self.connections.ids() {
                self.dismiss(id);
            }
            return true;
        }
        if now >= drain.next_look {
            drain.next_look = (now + LOOK_INTERVAL).min(drain.until);
            if now >= drain.began + GRACE {
                self.office.drain = drain.wanted;
                self.sockets.clear();
            }
            self.accept_what_waits();
            for id in self.done_with(turn_before) {
                self.dismiss(id);
            }
        }
        let is_empty = self.connections.len() == 0 && !self.floods.is_waiting();
        self.sockets.is_empty() && is_empty && self.office.handler.running() == 0
    }

    /// Takes connections that the engine, which has stopped to accept, was to hear of.
    fn accept_what_waits(&mut self) {
        for index in 0..self.sockets.len() {
            while let Some(Ok(stream)) = self.sockets.get(index).map(Listener::accept) {
                // One that breaks at once is no loss.
                if let Ok(id) = self.engine.adopt(stream) {
                    self.accept(id);
                }
            }
        }
    }

    /// Connections on which nothing had run for long enough at some moment. That must lie before
    /// the last look at what has come: between the look and now a call may have, and a worker whose
    /// thread got no processor, or no interpreter, looks late.
    fn done_with(&self, moment: Instant) -> Vec<Id> {
        let is_done = |entry: &&Entry| {
            let idle_since = entry.proto.idle_since();
            entry.queued_bytes() == 0 && idle_since.is_some_and(|since| since + GRACE <= moment)
        };
        self.connections.iter().filter(is_done).map(|entry| entry.id()).collect()
    }
}
