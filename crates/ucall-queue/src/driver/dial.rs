//! A client's attempts to connect.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ucall_engine::{Engine, Id, Readiness};

use super::endpoint::{self, Connection, Endpoint};
#[cfg(target_os = "linux")]
use crate::shared;

/// An attempt that has come to nothing after so long is given up.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
const WRITABLE: Readiness = Readiness { readable: false, writable: true };
#[cfg(target_os = "linux")]
const READABLE: Readiness = Readiness { readable: true, writable: false };

/// What a client does to have a connection.
pub(super) struct Dialer {
    endpoint: Endpoint,
    attempt: usize,
    /// When to try next.
    at: Option<Instant>,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    watch: Id,
    socket: OwnedFd,
    /// The other side has yet to greet.
    #[cfg(target_os = "linux")]
    is_connected: bool,
    until: Instant,
}

impl Dialer {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, attempt: 0, at: None, under_way: None }
    }

    /// Tries again after so long.
    pub(super) fn schedule(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// When it has to be looked at.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let until = self.under_way.as_ref().map(|under_way| under_way.until);
        [self.at, until].into_iter().flatten().min()
    }

    /// Whether this is the watch of the attempt under way.
    pub(super) fn is_waiting_for(&self, watch: Id) -> bool {
        self.under_way.as_ref().is_some_and(|under_way| under_way.watch == watch)
    }

    /// Begins an attempt that is due, or gives one up that took too long.
    pub(super) fn look<E: Engine>(&mut self, engine: &mut E, now: Instant) -> io::Result<()> {
        if let Some(under_way) = self.under_way.take_if(|under_way| now >= under_way.until) {
            engine.close(under_way.watch);
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.at.take_if(|at| now >= *at).is_none() || self.under_way.is_some() {
            return Ok(());
        }
        self.attempt = self.attempt.wrapping_add(1);
        if let Some(socket) = self.endpoint.dial(self.attempt - 1)? {
            let watch = engine.watch(socket.as_fd(), WRITABLE)?;
            let until = now + CONNECT_TIME_MAX;
            self.under_way = Some(UnderWay {
                watch,
                socket,
                #[cfg(target_os = "linux")]
                is_connected: false,
                until,
            });
        }
        Ok(())
    }

    /// Goes on with the attempt under way; the connection, once there is one.
    pub(super) fn go_on<E: Engine>(&mut self, engine: &mut E) -> io::Result<Option<Connection>> {
        let under_way = self.under_way.take().ok_or(io::ErrorKind::NotConnected)?;
        #[cfg(target_os = "linux")]
        if let Endpoint::Shared(_) = self.endpoint {
            return self.await_greeting(engine, under_way);
        }
        engine.close(under_way.watch);
        endpoint::connected(under_way.socket).map(|socket| Some(Connection::plain(socket)))
    }

    /// Waits for what the other side says first.
    #[cfg(target_os = "linux")]
    fn await_greeting<E: Engine>(
        &mut self,
        engine: &mut E,
        mut under_way: UnderWay,
    ) -> io::Result<Option<Connection>> {
        if !under_way.is_connected {
            engine.close(under_way.watch);
            under_way.socket = endpoint::connected(under_way.socket)?;
            shared::knock(under_way.socket.as_fd())?;
            under_way.watch = engine.watch(under_way.socket.as_fd(), READABLE)?;
            under_way.is_connected = true;
            self.under_way = Some(under_way);
            return Ok(None);
        }
        match shared::take_greeting(under_way.socket.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                engine.rewatch(under_way.watch, READABLE)?;
                self.under_way = Some(under_way);
                Ok(None)
            }
            greeting => {
                engine.close(under_way.watch);
                let channel = greeting?;
                Ok(Some(Connection { socket: under_way.socket, channel }))
            }
        }
    }

    /// Gives everything up.
    pub(super) fn stop<E: Engine>(&mut self, engine: &mut E) {
        self.at = None;
        if let Some(under_way) = self.under_way.take() {
            engine.close(under_way.watch);
        }
    }
}
