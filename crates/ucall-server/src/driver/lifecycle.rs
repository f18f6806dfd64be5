//! How connections begin and end.
//!
//! | a connection | ends |
//! |---|---|
//! | that has failed, or whose output is all sent | by `close`, at once |
//! | with nothing under way | by `close_idle`, which sends TLS its close_notify |
//! | that is idle, when there are too many | by `evict_idle`, which closes it so |
//! | whose input is not read any more | by `discard_input`, until its peer ends it or a deadline |
//!
//! Past the limit on connections the longest idle one makes room. Which one that is is known only
//! after a turn has read all that has arrived, so the end of the turn decides.

use std::io;
use std::time::Instant;

use ucall_engine::{Engine, Id, Listener};

use super::ConnectionDriver;
use crate::admission::AdmissionQueues;
use crate::connections::Entry;
use crate::drain::GRACE_PERIOD;
use crate::handler::Handler;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Accepts connections of `listener`.
    pub(crate) fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listeners.listen(listener, &mut self.engine)
    }

    /// Stops accepting for good.
    pub(crate) fn shut_down_listeners(&mut self) {
        self.listeners.shut_down(&mut self.engine);
    }

    /// Takes in the connections that wait at the sockets, of which the engine reports nothing more.
    pub(crate) fn accept_waiting(&mut self) {
        for id in self.listeners.adopt_waiting(&mut self.engine) {
            self.accept(id);
        }
    }

    /// Takes in a connection.
    #[inline(never)]
    pub(crate) fn accept(&mut self, id: Id) {
        let Some(connection) = self.context.new_connection() else {
            return self.engine.close(id);
        };
        self.connections.insert(id, connection, self.context.now());
        self.stats.accepted += 1;
        self.stats.connections = self.connections.len() as u64;
    }

    /// Makes room after a turn that has accepted, or has failed to: evicts what `admission` and
    /// `bound` allow (see [`ConnectionDriver::evict_idle`]), and pauses while that is not enough.
    #[inline]
    pub(crate) fn end_accepting(
        &mut self,
        admission: &mut AdmissionQueues,
        bound: Option<Instant>,
    ) {
        if admission.has_accepted() && self.is_over_connections_max() {
            self.evict_idle(admission, bound);
            if self.is_over_connections_max() {
                self.listeners.pause(&mut self.engine);
            }
        }
        if let Some(error) = self.listeners.take_failure() {
            self.replace_longest_idle(&error, bound);
        }
    }

    /// Resumes accepting if it has paused and there is room, or some connections are idle by now.
    pub(crate) fn begin_sweep(&mut self, admission: &mut AdmissionQueues, bound: Option<Instant>) {
        self.context.begin_sweep();
        self.send_queue.release_unused();
        self.listeners.allow_log();
        if self.listeners.is_paused() {
            self.evict_idle(admission, bound);
            self.resume_accepting();
        }
    }

    /// Whether more connections are open than may be. Those that show it, and for which none was
    /// idle, are served all the same.
    fn is_over_connections_max(&self) -> bool {
        self.connections.len() > self.context.config().connections_max
    }

    fn resume_accepting(&mut self) {
        if !self.is_over_connections_max() {
            self.listeners.resume(&mut self.engine);
        }
    }

    /// Closes connections until there are no more than may be: those whose peers have left, then
    /// the longest idle ones since before `bound`, if any. One that was accepted after that does
    /// not count: its request may have arrived, and just not be read yet.
    #[inline(never)]
    fn evict_idle(&mut self, admission: &mut AdmissionQueues, bound: Option<Instant>) {
        while self.is_over_connections_max() {
            if let Some(hangup) = admission.next_hangup_over_limit() {
                self.hang_up(hangup);
            } else if !self.evict_longest_idle(bound) {
                return;
            }
        }
    }

    fn evict_longest_idle(&mut self, bound: Option<Instant>) -> bool {
        let idle = bound.and_then(|bound| self.connections.longest_idle(bound));
        if let Some(id) = idle {
            self.close_idle(id);
        }
        idle.is_some()
    }

    /// After a failure to accept, the longest idle connection gives its place to the newcomer. With
    /// none idle, newcomers wait.
    #[inline(never)]
    fn replace_longest_idle(&mut self, error: &io::Error, bound: Option<Instant>) {
        let has_evicted = self.evict_longest_idle(bound);
        if self.listeners.should_log_failure(!has_evicted) {
            let line = format!("cannot accept a connection: {error}; will try again");
            self.context.handler().warn(&line);
        }
        if has_evicted {
            self.listeners.resume(&mut self.engine);
        }
    }

    /// Closes the connections that had been idle for the grace of a drain at `moment`.
    pub(crate) fn close_all_idle(&mut self, moment: Instant) {
        for id in self.connections.idle_for(GRACE_PERIOD, moment) {
            self.close_idle(id);
        }
    }

    /// Closes all connections, those with nothing under way with a goodbye.
    pub(crate) fn close_all(&mut self) {
        for id in self.connections.ids() {
            self.close_idle(id);
        }
    }

    /// Ends our side and discards what the peer still sends, until it ends its own.
    #[inline(never)]
    pub(super) fn discard_input(&mut self, id: Id) {
        if self.connections.find(id).is_some_and(Entry::shut_down) {
            self.engine.shutdown(id);
        }
        self.resume(id);
    }

    /// Closes a connection. One with nothing under way says goodbye under TLS, if that goes out at
    /// once: its peer then knows that the stream was not cut.
    #[inline(never)]
    fn close_idle(&mut self, id: Id) {
        if let Some(entry) = self.connections.find(id)
            && entry.outgoing.bytes() == 0
        {
            self.send_queue.send_close_notify(&mut self.engine, entry);
        }
        self.close(id);
    }

    /// Closes a connection at once.
    #[inline(never)]
    pub(super) fn close(&mut self, id: Id) {
        self.send_queue.clear_output();
        self.engine.close(id);
        let Some(entry) = self.connections.remove(id) else { return };
        self.waiters.remove(id);
        self.stats.connections = self.connections.len() as u64;
        if entry.proto.has_deferred() {
            self.context.handler().cancel(id);
        }
        drop(entry);
        self.context.update_load();
        self.resume_accepting();
    }
}
