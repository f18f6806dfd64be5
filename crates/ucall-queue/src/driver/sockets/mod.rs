//! Connected sockets: bytes in and out, in plaintext or under TLS, and their end.
#![forbid(unsafe_code)]

mod lingering;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use ucall_buffer::Payload;
use ucall_engine::{Arrival, Engine, Id, SendState};
use ucall_proto::tls::TlsError;

use super::inherited::{InheritedSockets, SocketGuard};
use super::secure::{Secure, Security};
use crate::log_queue::LogQueue;
use crate::session_manager::LinkKey;
use lingering::Lingering;

/// All sockets of a communicator, and the engine under them.
pub(super) struct Sockets<E> {
    pub(super) engine: E,
    pub(super) open: HashMap<Id, Socket>,
    pub(super) inherited: Arc<InheritedSockets>,
    security: Option<Box<dyn Security>>,
    log_queue: Arc<LogQueue>,
    lingering: Lingering,
    cached_payload: Payload,
    _engine_guard: Option<SocketGuard>,
}

pub(super) struct Socket {
    /// The link that it carries alone.
    pub(super) key: Option<LinkKey>,
    pub(super) secure: Option<Box<Secure>>,
    /// Bytes have arrived.
    pub(super) has_received: bool,
    /// Bytes of the client's preamble that have arrived.
    pub(super) preamble_bytes: usize,
    /// Bytes in its target at the last sweep.
    pub(super) filled_bytes: usize,
    is_sending: bool,
    /// It sends the rest of its output and waits for the peer's end.
    is_lingering: bool,
    _guard: SocketGuard,
}

impl<E: Engine> Sockets<E> {
    pub(super) fn new(
        engine: E,
        inherited: Arc<InheritedSockets>,
        security: Option<Box<dyn Security>>,
        log_queue: Arc<LogQueue>,
    ) -> Self {
        let guard = engine.descriptor().map(|descriptor| inherited.register(descriptor));
        Self {
            engine,
            _engine_guard: guard,
            open: HashMap::new(),
            inherited,
            security,
            log_queue,
            lingering: Lingering::default(),
            cached_payload: Payload::new(),
        }
    }

    /// Adds a connected socket, and begins TLS on it if the communicator has that.
    pub(super) fn adopt(&mut self, socket: OwnedFd, now: Instant) -> io::Result<Id> {
        let secure = self.begin_tls(now)?;
        let guard = self.inherited.register(socket.as_fd());
        let id = self.engine.adopt(socket)?;
        let socket = Socket {
            key: None,
            secure,
            has_received: false,
            preamble_bytes: 0,
            filled_bytes: 0,
            is_sending: false,
            is_lingering: false,
            _guard: guard,
        };
        self.open.insert(id, socket);
        Ok(id)
    }

    fn begin_tls(&mut self, now: Instant) -> io::Result<Option<Box<Secure>>> {
        let Some(security) = &self.security else { return Ok(None) };
        if let Some(error) = security.refresh() {
            let line = || format!("the files of TLS have changed and cannot be used: {error}");
            self.log_queue.warn(line, now);
        }
        Secure::begin(&**security).map(|secure| Some(Box::new(secure))).map_err(io::Error::other)
    }

    /// Sends what `poll_output` writes, until that is nothing or a send is pending.
    ///
    /// # Errors
    /// TLS has failed: the socket is to be closed.
    pub(super) fn flush(
        &mut self,
        id: Id,
        mut poll_output: impl FnMut(&mut Payload),
    ) -> Result<(), TlsError> {
        let Some(socket) = self.open.get_mut(&id) else { return Ok(()) };
        while !socket.is_sending {
            let mut payload = std::mem::take(&mut self.cached_payload);
            match &mut socket.secure {
                None => poll_output(&mut payload),
                Some(secure) => {
                    if let Some(plaintext) = secure.plaintext_buffer() {
                        poll_output(plaintext);
                    }
                    secure.write_output(&mut payload)?;
                }
            }
            if payload.is_empty() {
                self.cached_payload = payload;
                if socket.is_lingering {
                    self.engine.shutdown(id);
                }
                return Ok(());
            }
            match self.engine.send(id, payload) {
                SendState::Done(payload) => self.cached_payload = cleared(payload),
                SendState::Pending => socket.is_sending = true,
            }
        }
        Ok(())
    }

    /// Handles a completed send. Returns the link of the socket, if that has one, unless the socket
    /// is closed or lingers.
    pub(super) fn handle_sent(
        &mut self,
        id: Id,
        payload: Payload,
        result: &io::Result<()>,
    ) -> Option<Option<LinkKey>> {
        self.cached_payload = cleared(payload);
        let socket = self.open.get_mut(&id)?;
        socket.is_sending = false;
        if !socket.is_lingering {
            return Some(socket.key);
        }
        match result {
            Ok(()) => self.flush_lingering(id),
            Err(_) => drop(self.close(id)),
        }
        None
    }

    /// Reads what arrived on a socket that is closed or lingers, and closes it at its end.
    pub(super) fn discard_input(&mut self, arrival: Arrival) {
        let socket = arrival.socket;
        match self.engine.receive(arrival) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok([]) | Err(_) => drop(self.close(socket)),
            Ok(_) => {}
        }
    }

    /// Closes a socket at once.
    pub(super) fn close(&mut self, id: Id) -> Option<Socket> {
        let socket = self.open.remove(&id)?;
        self.engine.close(id);
        Some(socket)
    }

    /// Sends the rest of a socket's output, shuts our side down and waits for the peer's end.
    pub(super) fn linger(&mut self, id: Id, now: Instant) {
        let Some(socket) = self.open.get_mut(&id) else { return };
        (socket.key, socket.is_lingering) = (None, true);
        if let Some(secure) = &mut socket.secure {
            secure.close();
        }
        self.flush_lingering(id);
        if let Some(oldest) = self.lingering.push(id, now) {
            self.close(oldest);
        }
    }

    fn flush_lingering(&mut self, id: Id) {
        if self.flush(id, |_| {}).is_err() {
            self.close(id);
        }
    }

    /// When [`Sockets::close_expired`] is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.lingering.deadline()
    }

    /// Closes the sockets that have lingered long enough.
    pub(super) fn close_expired(&mut self, now: Instant) {
        while let Some(socket) = self.lingering.next_expired(now) {
            self.close(socket);
        }
    }
}

/// Clears a payload and releases its borrowed parts now.
fn cleared(mut payload: Payload) -> Payload {
    payload.clear_retaining_capacity();
    payload
}
