//! The beginning and the end of connections.
//!
//! | a connection | ends by |
//! |---|---|
//! | that has failed, or whose output is all sent | `close`, at once |
//! | without a call, in a drain or at the end | `close_idle`, with the last frame or record |
//! | idle for longest, past the limit | `evict_idle`, which calls `close_idle` |
//! | whose request was refused | `discard_input`, until its peer closes or a deadline passes |
//!
//! Past the limit on connections the longest idle connection makes room for a new one. It is known
//! after a turn has read all bytes that have arrived, so the end of the turn evicts.

use std::io;
use std::time::Instant;

use ucall_engine::{Engine, Id, Listener};

use super::ConnectionDriver;
use crate::admission::AdmissionQueues;
use crate::connections::Entry;
use crate::drain::QUIET_TIME;
use crate::handler::Handler;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Starts to accept connections at `listener`.
    pub(crate) fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.listeners.listen(listener, &mut self.engine)
    }

    /// Stops accepting for good.
    pub(crate) fn shut_down_listeners(&mut self) {
        self.listeners.shut_down(&mut self.engine);
    }

    /// Accepts the connections in the backlogs of sockets that are shut down for the engine.
    pub(crate) fn accept_waiting(&mut self) {
        for id in self.listeners.adopt_waiting(&mut self.engine) {
            self.accept(id);
        }
    }

    /// Accepts the connections in the backlogs for the last time, and closes the sockets.
    pub(crate) fn close_listeners(&mut self) {
        self.accept_waiting();
        self.listeners.close(&mut self.engine);
    }

    /// Adds a connection that the engine has accepted.
    #[inline(never)]
    pub(crate) fn accept(&mut self, id: Id) {
        let Some(connection) = self.context.new_connection() else {
            return self.engine.close(id);
        };
        self.connections.insert(id, connection, self.context.now());
        self.stats.accepted += 1;
        self.stats.connections = self.connections.len() as u64;
    }

    /// Ends a turn that has accepted connections, or has failed to: evicts idle connections past
    /// the limit (see [`ConnectionDriver::evict_idle`]), and pauses accepting if they are too few.
    #[inline(always)]
    pub(crate) fn end_accepting(
        &mut self,
        admission: &mut AdmissionQueues,
        idle_before: Option<Instant>,
    ) {
        if admission.has_accepted() && self.is_over_connections_max() {
            self.evict_idle(admission, idle_before);
            if self.is_over_connections_max() {
                self.listeners.pause(&mut self.engine);
            }
        }
        if self.listeners.has_failed()
            && let Some(error) = self.listeners.take_failure()
        {
            self.replace_longest_idle(&error, idle_before);
        }
    }

    /// Begins a sweep. Resumes accepting if there is room, or idle connections make room.
    pub(crate) fn begin_sweep(
        &mut self,
        admission: &mut AdmissionQueues,
        idle_before: Option<Instant>,
    ) {
        self.context.begin_sweep(self.unix_time_s());
        self.send_queue.release_unused();
        self.listeners.allow_log();
        let now = self.context.now();
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.expire(now);
        }
        self.bind_xdp();
        if self.listeners.is_paused() {
            self.evict_idle(admission, idle_before);
            self.resume_accepting();
        }
    }

    /// Whether more connections are open than the limit allows. Those past it are served, too, if
    /// no idle connection could make room.
    fn is_over_connections_max(&self) -> bool {
        self.connections.len() > self.context.connections_max()
    }

    fn resume_accepting(&mut self) {
        if !self.is_over_connections_max() {
            self.listeners.resume(&mut self.engine);
        }
    }

    /// Closes connections down to the limit: first those whose peers have left, then the longest
    /// idle of those that were idle before `idle_before`. The request of a later one may have
    /// arrived without being read yet.
    #[inline(never)]
    fn evict_idle(&mut self, admission: &mut AdmissionQueues, idle_before: Option<Instant>) {
        while self.is_over_connections_max() {
            if let Some(hangup) = admission.next_hangup_over_limit() {
                self.hang_up(hangup);
            } else if !self.evict_longest_idle(idle_before) {
                return;
            }
        }
    }

    fn evict_longest_idle(&mut self, idle_before: Option<Instant>) -> bool {
        let idle = idle_before.and_then(|idle_before| self.connections.longest_idle(idle_before));
        if let Some(id) = idle {
            self.close_idle(id);
        }
        idle.is_some()
    }

    /// After a failure to accept, evicts the longest idle connection for the new one. If none is
    /// idle, new connections wait.
    #[inline(never)]
    fn replace_longest_idle(&mut self, error: &io::Error, idle_before: Option<Instant>) {
        let has_evicted = self.evict_longest_idle(idle_before);
        if self.listeners.should_log_failure(!has_evicted) {
            let line = format!("cannot accept a connection: {error}; will retry");
            self.context.handler().warn(&line);
        }
        if has_evicted {
            self.listeners.resume(&mut self.engine);
        }
    }

    /// Closes the connections that had been without a call for [`QUIET_TIME`] at `moment`.
    pub(crate) fn close_all_idle(&mut self, moment: Instant) {
        for id in self.connections.quiet_for(QUIET_TIME, moment) {
            self.close_idle(id);
        }
    }

    /// Closes the connections whose output is sent; `true` if no other is left.
    pub(crate) fn close_sent(&mut self) -> bool {
        for id in self.connections.ids() {
            if self.connections.find(id).is_some_and(|entry| entry.outgoing.bytes() == 0) {
                self.close_idle(id);
            }
        }
        self.connections.len() == 0
    }

    /// Closes all connections, and the sockets of UDP.
    pub(crate) fn close_all(&mut self) {
        self.close_datagrams();
        for id in self.connections.ids() {
            self.close_idle(id);
        }
    }

    /// Shuts down our side, and discards input until the peer shuts down its own.
    #[inline(never)]
    pub(super) fn discard_input(&mut self, id: Id) {
        if self.connections.find(id).is_some_and(Entry::shut_down) {
            self.engine.shutdown(id);
        }
        self.resume(id);
    }

    /// Closes a connection. If all its output is sent, the Close frame of a WebSocket and TLS's
    /// close_notify tell the peer that the stream is complete.
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
        // With items the client may be known as slow.
        if entry.proto.has_deferred() || entry.items.is_some() {
            self.context.cancel(id);
        }
        drop(entry);
        self.broker_closed(id);
        self.detach(id);
        self.context.update_load();
        self.resume_accepting();
    }
}
