//! A client's attempts to connect.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ucall_engine::{Engine, Id, Readiness};

use super::endpoint::{self, Connection, Endpoint};
#[cfg(target_os = "linux")]
use crate::shared;

/// The time limit of an attempt to connect.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
const WRITABLE: Readiness = Readiness { readable: false, writable: true };
#[cfg(target_os = "linux")]
const READABLE: Readiness = Readiness { readable: true, writable: false };

/// Connects to an endpoint, one attempt at a time.
pub(super) struct Dialer {
    endpoint: Endpoint,
    attempt: usize,
    /// When to begin the next attempt.
    at: Option<Instant>,
    pending: Option<Pending>,
}

struct Pending {
    watch: Id,
    socket: OwnedFd,
    /// The preamble of the server is expected.
    #[cfg(target_os = "linux")]
    is_connected: bool,
    until: Instant,
}

impl Dialer {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, attempt: 0, at: None, pending: None }
    }

    /// Begins an attempt at this time.
    pub(super) fn schedule(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// When [`Dialer::poll`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = self.pending.as_ref().map(|pending| pending.until);
        [self.at, until].into_iter().flatten().min()
    }

    /// Whether this is the watch of the pending attempt.
    pub(super) fn is_waiting_for(&self, watch: Id) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.watch == watch)
    }

    /// Begins an attempt that is due, or ends one that took too long.
    pub(super) fn poll<E: Engine>(&mut self, engine: &mut E, now: Instant) -> io::Result<()> {
        if let Some(pending) = self.pending.take_if(|pending| now >= pending.until) {
            engine.close(pending.watch);
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.at.take_if(|at| now >= *at).is_none() || self.pending.is_some() {
            return Ok(());
        }
        self.attempt = self.attempt.wrapping_add(1);
        let socket = self.endpoint.dial(self.attempt - 1)?;
        let watch = engine.watch(socket.as_fd(), WRITABLE)?;
        self.pending = Some(Pending {
            watch,
            socket,
            #[cfg(target_os = "linux")]
            is_connected: false,
            until: now + CONNECT_TIME_MAX,
        });
        Ok(())
    }

    /// Continues the pending attempt; returns the connection once it is established.
    pub(super) fn handle_ready<E: Engine>(
        &mut self,
        engine: &mut E,
    ) -> io::Result<Option<Connection>> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        #[cfg(target_os = "linux")]
        if let Endpoint::Shared(_) = self.endpoint {
            return self.await_preamble(engine, pending);
        }
        engine.close(pending.watch);
        endpoint::connected(pending.socket).map(|socket| Some(Connection::plain(socket)))
    }

    /// Waits for the preamble of the server.
    #[cfg(target_os = "linux")]
    fn await_preamble<E: Engine>(
        &mut self,
        engine: &mut E,
        mut pending: Pending,
    ) -> io::Result<Option<Connection>> {
        if !pending.is_connected {
            engine.close(pending.watch);
            pending.socket = endpoint::connected(pending.socket)?;
            shared::send_client_preamble(pending.socket.as_fd())?;
            pending.watch = engine.watch(pending.socket.as_fd(), READABLE)?;
            pending.is_connected = true;
            self.pending = Some(pending);
            return Ok(None);
        }
        match shared::receive_preamble(pending.socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                engine.rewatch(pending.watch, READABLE)?;
                self.pending = Some(pending);
                Ok(None)
            }
            received => {
                engine.close(pending.watch);
                let channel = received?;
                Ok(Some(Connection { socket: pending.socket, channel }))
            }
        }
    }

    /// Ends the pending attempt, and begins no other.
    pub(super) fn stop<E: Engine>(&mut self, engine: &mut E) {
        self.at = None;
        if let Some(pending) = self.pending.take() {
            engine.close(pending.watch);
        }
    }
}
