//! What a worker does once a second: it looks at every deadline, so that they cost nothing a call.

use std::cmp::Reverse;
use std::mem;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ucall_engine::{Engine, Id};

use crate::Handler;
use crate::connections::Entry;
use crate::worker::Worker;

/// How often deadlines are looked at. They are in whole seconds.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Looks at every deadline.
    pub(crate) fn sweep(&mut self) {
        self.next_sweep = self.office.now + SWEEP_INTERVAL;
        let unix_time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.office.replies.set_time(unix_time.as_secs());
        self.make_room();
        self.accept_failure_told = false;
        self.office.refresh_tls();
        self.out.tidy();
        self.office.scratch.tidy();
        self.note_progress();
        self.feed_the_starved();
        let now = self.office.now;
        let due = |entry: &&Entry| entry.proto.deadline().is_some_and(|deadline| deadline <= now);
        let expired: Vec<Id> =
            self.connections.iter().filter(due).map(|entry| entry.id()).collect();
        for id in expired {
            self.step(id, |connection, environment, out| connection.expire(environment, out));
            self.settle(id);
        }
        for id in self.stuck() {
            self.close(id);
        }
    }

    /// Looks how far the large bodies are that the engine receives by itself.
    fn note_progress(&mut self) {
        let engine = &self.engine;
        for entry in self.connections.iter_mut().filter(|entry| entry.proto.is_filling()) {
            let filled = engine.filled_bytes(entry.id());
            if mem::replace(&mut entry.filled, filled) != filled {
                self.office.step(entry, |connection, environment| {
                    connection.note_progress(environment);
                });
            }
        }
    }

    /// Goes on with requests that waited for memory, as long as there is some; else with one.
    fn feed_the_starved(&mut self) {
        self.office.weigh();
        let starved = self.connections.iter().filter(|entry| entry.proto.is_starved());
        let mut starved: Vec<(usize, Id)> =
            starved.map(|entry| (entry.proto.held_bytes(), entry.id())).collect();
        if starved.is_empty() {
            return;
        }
        // Those that hold most set most free.
        starved.sort_unstable_by_key(|(held_bytes, _)| Reverse(*held_bytes));
        if !self.connections.iter().any(|entry| entry.proto.is_favoured())
            && let Some(entry) = starved.first().and_then(|(_, id)| self.connections.find(*id))
        {
            entry.proto.favour();
        }
        for (_, id) in starved {
            let is_favoured =
                self.connections.find(id).is_some_and(|entry| entry.proto.is_favoured());
            if is_favoured || self.office.has_room() {
                self.step(id, |connection, environment, out| connection.proceed(environment, out));
                self.settle(id);
            }
        }
    }

    /// Connections whose peer has taken nothing for too long of what is being sent.
    fn stuck(&mut self) -> Vec<Id> {
        let (now, patience) = (self.office.now, self.office.config.limits.send_timeout);
        let engine = &self.engine;
        let is_stuck = |entry: &mut Entry| {
            let taken = engine.sent_bytes(entry.id());
            if taken != entry.taken {
                (entry.taken_at, entry.taken) = (now, taken);
            }
            entry.taken_at + patience <= now
        };
        let sending = self.connections.iter_mut().filter(|entry| entry.sending > 0);
        sending.filter_map(|entry| is_stuck(entry).then_some(entry.id())).collect()
    }
}
