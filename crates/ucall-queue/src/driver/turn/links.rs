//! Links over sockets of our own: bytes in and out, in plaintext or under TLS, and their end.
//!
//! | what comes first, at a server | with TLS | without |
//! |---|---|---|
//! | a record of TLS | the handshake | a refusal, in plaintext, that no TLS is spoken |
//! | anything else | a refusal, in plaintext, that TLS is spoken | the hub's handshake |
//!
//! Where only one side speaks of shared memory, that is told in the same way: see [`mismatch`].
#![forbid(unsafe_code)]

mod mismatch;

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use ucall_buffer::Payload;
use ucall_engine::{Arrival, Engine, Id, Peer, SendState};
use ucall_proto::tls::{TlsError, starts_tls_record};

use super::{Driver, LinkTransport, Socket};
use crate::driver::endpoint::{Connection, bound_buffers};
use crate::driver::secure::{Secure, TlsEvent};
use crate::session_manager::{LinkKey, Role};
use mismatch::FirstBytes;

/// A stranger's mistake, as the log is told of it, and as the stranger is.
const UNEXPECTED_TLS: (&str, &str) =
    ("the other side speaks TLS, and this one has no SecurityOptions", "no TLS is spoken here");
const MISSING_TLS: (&str, &str) = (
    "the other side does not speak TLS, and this one has SecurityOptions",
    "TLS is spoken here, and SecurityOptions are missing",
);
const INTERRUPTED_TLS: &str = "the connection ended during the handshake of TLS";

/// What is wrong with what came.
enum LinkFault {
    Tls(TlsError),
    /// Only one side speaks it: what the log is told, and the other side.
    TlsMismatch(&'static str, &'static str),
    /// The other side will not speak otherwise with us when it is asked again: why.
    Final(&'static str),
    /// The hub has closed the link.
    Frames(crate::ProtocolError),
}

impl<E: Engine> Driver<E> {
    pub(super) fn handle_connected(
        &mut self,
        result: io::Result<Connection>,
        role: Role,
        now: Instant,
    ) {
        if self.broker_connection.is_some() {
            return self.handle_broker_connected(result.map(|result| result.socket), now);
        }
        match result.and_then(|result| self.open_link(result, role, now)) {
            Ok(()) => {}
            Err(error) if role == Role::Dialed && mismatch::is_mismatch(&error) => {
                self.manager.log_queue.log(|| mismatch::PEER_USES_UNIX.to_owned(), now);
                self.manager.handle_wrong_protocol(mismatch::PEER_USES_UNIX, now);
            }
            Err(error) if role == Role::Dialed => {
                let refusals = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
                self.manager.set_dial_error(&error.to_string());
                self.manager.handle_dial_failed(refusals.contains(&error.kind()), now);
            }
            Err(error) => {
                let line = || format!("a connection cannot be accepted: {error}");
                self.manager.log_queue.log(line, now);
            }
        }
    }

    fn open_link(&mut self, result: Connection, role: Role, now: Instant) -> io::Result<()> {
        let secure = self.begin_tls(now)?;
        let _guard = self.inherited.register(result.socket.as_fd());
        if E::SENDS_AT_ONCE {
            bound_buffers(&result.socket);
        }
        let socket = self.engine.adopt(result.socket)?;
        #[cfg(target_os = "linux")]
        let key = match result.channel {
            Some(channel) => self.manager.open_shared_link(role, channel, now),
            None => self.manager.open_link(role, now),
        };
        #[cfg(not(target_os = "linux"))]
        let key = self.manager.open_link(role, now);
        self.transports.insert(key, LinkTransport::Socket(socket));
        let key = Some(key);
        let (is_sending, has_received, preamble_bytes, filled_bytes) = (false, false, 0, 0);
        let socket_state =
            Socket { key, is_sending, has_received, preamble_bytes, filled_bytes, _guard, secure };
        self.sockets.insert(socket, socket_state);
        Ok(())
    }

    pub(super) fn begin_tls(&mut self, now: Instant) -> io::Result<Option<Box<Secure>>> {
        let Some(security) = &self.security else { return Ok(None) };
        if let Some(error) = security.refresh() {
            let line = || format!("the files of TLS have changed and cannot be used: {error}");
            self.manager.log_queue.log(line, now);
        }
        Secure::begin(&**security).map(|secure| Some(Box::new(secure))).map_err(io::Error::other)
    }

    pub(super) fn handle_arrival(&mut self, arrival: Arrival, now: Instant) {
        let socket = arrival.socket;
        if self.is_broker(socket) {
            return self.receive_from_broker(arrival, now);
        }
        let bytes = match self.engine.receive(arrival) {
            Ok([]) => return self.handle_eof(socket, now),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.handle_eof(socket, now),
        };
        // What still comes on a link that is over is nobody's.
        let Some(socket_state) = self.sockets.get_mut(&socket) else { return };
        let Some(key) = socket_state.key else { return };
        let is_first = !std::mem::replace(&mut socket_state.has_received, true);
        let manager = &mut self.manager;
        let checks_tls = is_first && manager.is_server();
        let first_bytes = match &self.listener {
            Some((_, listener)) if listener.is_shared() => {
                mismatch::of_shared_client(bytes, &mut socket_state.preamble_bytes)
            }
            Some(_) if is_first => mismatch::of_client(bytes),
            None if is_first => mismatch::of_server(bytes),
            _ => FirstBytes::Expected(0),
        };
        let bytes = match first_bytes {
            FirstBytes::Expected(passed) => bytes.get_mut(passed..).unwrap_or_default(),
            FirstBytes::Mismatch(reason, _) if !checks_tls => {
                return self.fail(key, socket, &LinkFault::Final(reason), now);
            }
            FirstBytes::Mismatch(reason, peer_reason) => {
                return self.fail(key, socket, &LinkFault::TlsMismatch(reason, peer_reason), now);
            }
        };
        let outcome = match &mut socket_state.secure {
            None if checks_tls && starts_tls_record(bytes) => Err(tls_mismatch(UNEXPECTED_TLS)),
            None => manager.handle_received(key, bytes, now).map_err(LinkFault::Frames),
            Some(_) if checks_tls && !starts_tls_record(bytes) => Err(tls_mismatch(MISSING_TLS)),
            Some(secure) => {
                let mut taken = Ok(());
                let received = secure.receive(bytes, |event| match event {
                    TlsEvent::PeerCertificate(name) => manager.set_certificate_name(key, &name),
                    TlsEvent::Plaintext(plaintext) if taken.is_ok() => {
                        taken = manager.handle_received(key, plaintext, now);
                    }
                    TlsEvent::Plaintext(_) => {}
                });
                received.map_err(LinkFault::Tls).and(taken.map_err(LinkFault::Frames))
            }
        };
        match outcome {
            Ok(()) => self.handle_received(key, socket, now),
            Err(fault) => self.fail(key, socket, &fault, now),
        }
    }

    /// Goes on after bytes that were as they should be.
    fn handle_received(&mut self, key: LinkKey, socket: Id, now: Instant) {
        let secure =
            self.sockets.get_mut(&socket).and_then(|socket_state| socket_state.secure.as_mut());
        let Some(secure) = secure else { return self.offer_target(key, socket) };
        if secure.is_ended_by_peer() {
            self.transports.remove(&key);
            self.manager.handle_link_closed(key, now);
            self.linger(socket, now);
        } else if secure.take_due() {
            self.manager.handle_output_sent(key);
        }
    }

    /// Gives a link up that had something else on it than it should have.
    fn fail(&mut self, key: LinkKey, socket: Id, fault: &LinkFault, now: Instant) {
        let reason = match fault {
            LinkFault::Tls(error) if error.is_not_tls() => MISSING_TLS.0.to_owned(),
            LinkFault::Tls(error) => format!("TLS: {error}"),
            LinkFault::TlsMismatch(reason, _) | LinkFault::Final(reason) => (*reason).to_owned(),
            LinkFault::Frames(error) => error.to_string(),
        };
        self.warn(socket, &reason, now);
        match fault {
            LinkFault::Tls(_) | LinkFault::Final(_) => {
                self.transports.remove(&key);
                self.manager.handle_link_failed(key, &reason, true, now);
                self.linger(socket, now);
            }
            LinkFault::TlsMismatch(_, answer) => {
                if let Some(socket_state) = self.sockets.get_mut(&socket) {
                    socket_state.secure = None;
                }
                self.manager.refuse(key, answer);
            }
            // The hub has closed the link.
            LinkFault::Frames(_) => self.manager.set_dial_error(&reason),
        }
    }

    /// Has the log told what is wrong with a connection.
    fn warn(&mut self, socket: Id, reason: &str, now: Instant) {
        let peer = self.engine.peer(socket);
        let line = || match peer {
            Ok(Peer::Address(address)) => {
                format!("a connection with {address} is closed: {reason}")
            }
            Ok(Peer::Process { pid, .. }) => {
                format!("a connection with process {pid} is closed: {reason}")
            }
            _ => format!("a connection is closed: {reason}"),
        };
        self.manager.log_queue.log(line, now);
    }

    /// The stream has ended, or broken.
    fn handle_eof(&mut self, socket: Id, now: Instant) {
        let socket_state = self.sockets.get(&socket);
        let was_cut = socket_state.is_some_and(|socket_state| {
            socket_state.key.is_some()
                && socket_state.secure.as_ref().is_some_and(|it| it.is_handshaking())
        });
        if was_cut {
            self.manager.set_dial_error(INTERRUPTED_TLS);
        }
        self.close_socket(socket, now);
    }

    pub(super) fn flush_socket(&mut self, socket: Id, now: Instant) {
        let Some(socket_state) = self.sockets.get_mut(&socket) else { return };
        while !socket_state.is_sending {
            let mut payload = std::mem::take(&mut self.cached_payload);
            match (&mut socket_state.secure, socket_state.key) {
                (None, Some(key)) => self.manager.poll_output(key, &mut payload, now),
                (None, None) => {}
                (Some(secure), key) => {
                    if let (Some(key), Some(room)) = (key, secure.plaintext_buffer()) {
                        self.manager.poll_output(key, room, now);
                    }
                    if secure.write_output(&mut payload).is_err() {
                        return self.close_socket(socket, now);
                    }
                }
            }
            if payload.is_empty() {
                self.cached_payload = payload;
                if socket_state.key.is_none() {
                    self.engine.shutdown(socket);
                }
                return;
            }
            match self.engine.send(socket, payload) {
                SendState::Done(payload) => self.cached_payload = cleared(payload),
                SendState::Pending => socket_state.is_sending = true,
            }
        }
    }

    pub(super) fn handle_sent(&mut self, socket: Id, result: io::Result<()>, now: Instant) {
        let is_broker = self.is_broker(socket);
        let Some(socket_state) = self.sockets.get_mut(&socket) else { return };
        socket_state.is_sending = false;
        if is_broker {
            return if result.is_err() {
                self.handle_broker_closed(now)
            };
        }
        match (result, socket_state.key) {
            (Ok(()), Some(key)) => self.manager.handle_output_sent(key),
            (Ok(()), None) => self.flush_socket(socket, now),
            (Err(_), _) => self.close_socket(socket, now),
        }
    }

    /// A socket has broken, or the peer has closed it, or it is wanted no more.
    pub(super) fn close_socket(&mut self, socket: Id, now: Instant) {
        if let Some(socket_state) = self.sockets.remove(&socket) {
            self.engine.close(socket);
            if let Some(key) = socket_state.key {
                self.transports.remove(&key);
                self.manager.handle_link_closed(key, now);
            }
        }
    }

    /// Ends our side of a socket behind all that is to be sent, and waits for the peer to.
    pub(super) fn linger(&mut self, socket: Id, now: Instant) {
        let Some(socket_state) = self.sockets.get_mut(&socket) else { return };
        socket_state.key = None;
        if let Some(secure) = &mut socket_state.secure {
            secure.close();
        }
        self.flush_socket(socket, now);
        if let Some(oldest) = self.lingering.push(socket, now) {
            self.close_socket(oldest, now);
        }
    }
}

fn tls_mismatch((reason, peer_reason): (&'static str, &'static str)) -> LinkFault {
    LinkFault::TlsMismatch(reason, peer_reason)
}

/// A payload without what it carried, whose parts belong to others, who wait for them.
pub(super) fn cleared(mut payload: Payload) -> Payload {
    payload.clear_retaining_capacity();
    payload
}
