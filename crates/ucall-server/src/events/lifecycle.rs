//! The beginning and the end of connections.
//!
//! | a connection | ends by |
//! |---|---|
//! | that has failed, or whose output is all sent | `close`, at once |
//! | without a call, in a drain or at the end | `close_idle`, with the last frame or record |
//! | that gives way to a new one, past the limit | `evict`, which calls `close_idle` |
//! | whose request was refused | `DiscardInput`, until its peer closes or a deadline passes |
//!
//! Past the limit on connections a quiet one makes room for a new one, as
//! [`eviction`](crate::eviction) says. It is known after a turn has read all bytes that have
//! arrived, so the end of the turn evicts.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use ucall_engine::{Engine, Id, Listener, Peer};

use super::ConnectionDriver;
use crate::admission::{AdmissionQueues, YieldEnd};
use crate::drain::QUIET_TIME;
use crate::handler::Handler;
use crate::network::PeerNetwork;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Starts to accept connections at `listener`.
    pub(crate) fn listen(&mut self, listener: Listener) -> io::Result<()> {
        self.context.check_tls();
        self.listeners.listen(listener, &mut self.engine)
    }

    /// Serves a connected stream that no listener has accepted, for `peer` if it is given.
    #[cold]
    pub(crate) fn adopt(&mut self, stream: OwnedFd, peer: Option<Peer>) {
        match self.engine.adopt(stream) {
            Ok(id) => {
                self.accept(id);
                if let Some(entry) = self.connections.find(id) {
                    entry.caller.peer = peer;
                }
            }
            Err(error) => {
                let line = format!("cannot serve a connection: {error}");
                self.context.dispatcher.handler.warn(&line);
            }
        }
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

    /// Does so for the last time, and has the kernel refuse further connections.
    pub(crate) fn refuse_connections(&mut self) {
        for id in self.listeners.refuse(&mut self.engine) {
            self.accept(id);
        }
    }

    /// Accepts the connections in the backlogs for the last time, and closes the sockets.
    pub(crate) fn close_listeners(&mut self) {
        self.accept_waiting();
        self.listeners.close(&mut self.engine);
    }

    /// Accepts at a shared socket again, after it was left to other workers.
    pub(crate) fn end_yield(&mut self, ended: YieldEnd, admission: &mut AdmissionQueues) {
        let max = match ended {
            YieldEnd::Accept(max) if !self.listeners.is_paused() => max,
            _ => return self.listeners.resume_shared(&mut self.engine),
        };
        let adopted = self.listeners.adopt(max, &mut self.engine);
        let has_more = adopted.len() == max;
        adopted.into_iter().for_each(|id| self.accept(id));
        match has_more && !self.is_over_connections_max() {
            true => admission.yield_again(self.context.now, max),
            false => self.listeners.resume_shared(&mut self.engine),
        }
    }

    /// Adds a connection that the engine has accepted.
    #[inline(never)]
    pub(crate) fn accept(&mut self, id: Id) {
        let network = match self.context.config.peer_connections_max {
            None => None,
            Some(max) => {
                let network = PeerNetwork::of(self.engine.peer(id).ok());
                if !self.connections.count_network(network, max) {
                    self.log_full_network(network, max);
                    return self.engine.close(id);
                }
                network
            }
        };
        let Some(connection) = self.context.new_connection() else {
            self.connections.uncount_network(network);
            return self.engine.close(id);
        };
        self.connections.insert(id, connection, self.context.now);
        self.connections.set_counted(id, network);
        self.stats.accepted += 1;
        self.stats.connections = self.connections.len() as u64;
    }

    /// Logs, once a sweep, that a network has as many connections as it may.
    #[cold]
    fn log_full_network(&mut self, network: Option<PeerNetwork>, max: usize) {
        if let Some(network) = network
            && self.listeners.should_log_full_network()
        {
            let line = format!(
                "{network} has {max} connections (max_connections_per_peer): closes further ones"
            );
            self.context.dispatcher.handler.warn(&line);
        }
    }

    /// Ends a turn that has accepted connections, or has failed to: evicts connections past the
    /// limit (see [`ConnectionDriver::evict`]), and pauses accepting if too few give way.
    #[inline(always)]
    pub(crate) fn end_accepting(
        &mut self,
        admission: &mut AdmissionQueues,
        idle_before: Option<Instant>,
    ) {
        if admission.has_accepted() && self.is_over_connections_max() {
            self.evict(admission, idle_before);
            if self.is_over_connections_max() {
                self.listeners.pause(&mut self.engine);
            }
        }
        if self.listeners.has_failed()
            && let Some(error) = self.listeners.take_failure()
        {
            self.replace_quiet(&error, idle_before);
        }
    }

    /// Begins a sweep. Resumes accepting if there is room, or connections give way.
    pub(crate) fn begin_sweep(
        &mut self,
        admission: &mut AdmissionQueues,
        idle_before: Option<Instant>,
    ) {
        self.context.begin_sweep(self.unix_time_s());
        self.send_queue.release_unused();
        self.listeners.allow_log();
        let now = self.context.now;
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.expire(now);
        }
        self.bind_xdp();
        if self.listeners.is_paused() {
            self.evict(admission, idle_before);
            self.resume_accepting();
        }
    }

    /// Whether more connections are open than the limit allows. Those past it are served, too, if
    /// no connection gave way.
    fn is_over_connections_max(&self) -> bool {
        self.connections.len() > self.context.connections_max()
    }

    fn resume_accepting(&mut self) {
        if !self.is_over_connections_max() {
            self.listeners.resume(&mut self.engine);
        }
    }

    /// Closes connections down to the limit: first those whose peers have left, then those that
    /// give way of those that were quiet before `idle_before`. The request of a later one may have
    /// arrived without being read yet.
    #[inline(never)]
    fn evict(&mut self, admission: &mut AdmissionQueues, idle_before: Option<Instant>) {
        while self.is_over_connections_max() {
            if let Some(hangup) = admission.next_hangup_over_limit() {
                self.hang_up(hangup);
            } else if !self.evict_next(idle_before) {
                return;
            }
        }
    }

    fn evict_next(&mut self, idle_before: Option<Instant>) -> bool {
        let engine = &mut self.engine;
        let mut peer_of = |id| engine.peer(id).ok();
        let quiet = idle_before.and_then(|it| self.connections.next_evicted(it, &mut peer_of));
        if let Some(id) = quiet {
            self.close_idle(id);
        }
        quiet.is_some()
    }

    /// After a failure to accept, evicts a connection for the new one. If none gives way, new
    /// connections wait.
    #[inline(never)]
    fn replace_quiet(&mut self, error: &io::Error, idle_before: Option<Instant>) {
        let has_evicted = self.evict_next(idle_before);
        if self.listeners.should_log_failure(!has_evicted) {
            let line = format!("cannot accept a connection: {error}; will retry");
            self.context.dispatcher.handler.warn(&line);
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
        self.cancel_all_brokered();
        for id in self.connections.ids() {
            self.close_idle(id);
        }
    }

    /// Closes a connection. If all its output is sent, the Close frame of a WebSocket and TLS's
    /// close_notify tell the peer that the stream is complete.
    #[inline(never)]
    fn close_idle(&mut self, id: Id) {
        if let Some(mut active) = self.find(id)
            && active.entry.proto.is_mounted_websocket()
        {
            active.step(|connection, environment| connection.report_closing(environment));
        }
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
        drop(self.context.take_attachments());
        self.engine.close(id);
        let Some(entry) = self.connections.remove(id) else { return };
        self.waiters.remove(id);
        self.stats.connections = self.connections.len() as u64;
        // With items the client may be known as slow.
        if entry.proto.has_deferred() || entry.items.is_some() {
            self.context.dispatcher.cancel(id);
        }
        drop(entry);
        self.detach(id);
        self.context.update_load();
        self.resume_accepting();
    }
}
