//! What a worker does once a second: it looks at every deadline, so that they cost nothing a call.
//!
//! Thousands of connections may be due at once, and each costs a reply and a close. So a sweep goes
//! on from turn to turn, a few connections at a time, and calls that come meanwhile are served in
//! between.

use std::io;
use std::mem;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ucall_engine::Engine;

use crate::Handler;
use crate::connections::Entry;
use crate::dispatch::Office;
use crate::worker::Worker;

/// How often deadlines are looked at. They are in whole seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Places looked at in one turn.
const LOOKED_AT_PER_TURN: usize = 256;
/// Connections that are answered, or closed, in one turn of a sweep: a reply and the end of a
/// stream take some 10 microseconds.
const ENDED_PER_TURN: usize = 4;

/// How far the sweep under way has come.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// When to go on: in the past while one is under way.
    pub(crate) due: Instant,
    /// When the next one begins.
    next: Instant,
    /// The next place to look at; `None` between sweeps.
    place: Option<usize>,
}

/// What a look at a connection finds.
enum Due {
    No,
    /// The time for what its peer should have sent is over.
    Expired,
    /// Its peer has taken nothing for too long of what is being sent, or has left.
    Lost,
}

impl Sweep {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now, next: now, place: None }
    }
}

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Begins a sweep if it is time, and goes on with the one under way.
    #[inline(always)]
    pub(crate) fn sweep(&mut self) {
        if self.office.now >= self.sweep.due {
            self.go_on_with_sweep();
        }
    }

    #[cold]
    fn go_on_with_sweep(&mut self) {
        let place = self.sweep.place.unwrap_or_else(|| self.begin_sweep());
        self.sweep.place = self.sweep_from(place);
        if self.sweep.place.is_none() {
            self.sweep.due = self.sweep.next;
        }
    }

    /// Gives the first place to look at.
    fn begin_sweep(&mut self) -> usize {
        self.sweep.next = self.office.now + SWEEP_INTERVAL;
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.office.replies.set_time(unix_time.as_secs());
        self.make_room();
        self.accept_failure_told = false;
        self.office.refresh_tls();
        self.out.tidy();
        self.office.scratch.tidy();
        0
    }

    /// Looks at some places; where to go on, unless those were the last.
    #[inline(never)]
    fn sweep_from(&mut self, place: usize) -> Option<usize> {
        let end = (place + LOOKED_AT_PER_TURN).min(self.connections.places());
        let mut ended = 0;
        for place in place..end {
            let Some(entry) = self.connections.at_mut(place) else { continue };
            let id = entry.id();
            match look(entry, &mut self.engine, &mut self.office) {
                Due::No => continue,
                Due::Lost => self.close(id),
                Due::Expired => {
                    self.step(id, |connection, environment, out| {
                        connection.expire(environment, out);
                    });
                    self.settle(id);
                }
            }
            ended += 1;
            if ended == ENDED_PER_TURN {
                return Some(place + 1);
            }
        }
        (end < self.connections.places()).then_some(end)
    }
}

fn look<H: Handler>(entry: &mut Entry, engine: &mut impl Engine, office: &mut Office<H>) -> Due {
    engine.check(entry.id());
    if entry.proto.is_filling() {
        note_progress(entry, engine, office);
    }
    if entry.sending > 0 && is_stuck(entry, engine, office) || has_left(entry, engine) {
        Due::Lost
    } else {
        let deadline = entry.proto.deadline(&office.config.limits);
        if deadline.is_some_and(|deadline| deadline <= office.now) { Due::Expired } else { Due::No }
    }
}

/// Whether the peer has reset a connection after it had ended its side. Engines report that end,
/// and nothing behind it.
fn has_left(entry: &Entry, engine: &mut impl Engine) -> bool {
    let is_lost = |error: io::Error| error.kind() == io::ErrorKind::NotConnected;
    entry.proto.only_answers() && engine.peer(entry.id()).is_err_and(is_lost)
}

/// Looks how far a large body is that the engine receives by itself.
fn note_progress<H: Handler>(entry: &mut Entry, engine: &impl Engine, office: &mut Office<H>) {
    let filled = engine.filled_bytes(entry.id());
    if mem::replace(&mut entry.filled, filled) != filled {
        office.step(entry, |connection, environment| connection.note_progress(environment));
    }
}

/// Whether the peer has taken nothing for too long of what is being sent.
fn is_stuck<H: Handler>(entry: &mut Entry, engine: &impl Engine, office: &Office<H>) -> bool {
    let taken = engine.sent_bytes(entry.id());
    if taken != entry.taken {
        (entry.taken_at, entry.taken) = (office.now, taken);
    }
    entry.taken_at + office.config.limits.send_timeout <= office.now
}
