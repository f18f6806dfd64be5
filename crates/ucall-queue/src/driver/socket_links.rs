//! Links over sockets of their own, each a TCP or Unix connection.
//!
//! | first bytes at a server | with TLS | without |
//! |---|---|---|
//! | a TLS record | the TLS handshake | a refusal in plaintext: no TLS here |
//! | anything else | a refusal in plaintext: TLS only | the handshake of the link |
//!
//! A peer that uses shared memory where this side does not, or the reverse, is refused in the same
//! way: see [`mismatch`].
#![forbid(unsafe_code)]

mod mismatch;

use std::io;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::Target;
use ucall_engine::{Arrival, Completion, Engine, Id, Peer, Readiness};
use ucall_proto::tls::{TlsError, starts_tls_record};

use super::dialer::Dialer;
use super::endpoint::{Connection, Listener, bound_buffers};
use super::inherited::SocketGuard;
use super::secure::TlsEvent;
use super::sockets::{Socket, Sockets};
use super::transport::{Context, Transport};
use crate::session_manager::{LinkKey, Role, SessionManager};
use mismatch::FirstBytes;

/// The pause in accepting after an error.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const READABLE: Readiness = Readiness { readable: true, writable: false };

/// A peer's mistake: the log line, and the reason that the peer gets.
const UNEXPECTED_TLS: (&str, &str) =
    ("the other side speaks TLS, and this one has no SecurityOptions", "no TLS is spoken here");
const MISSING_TLS: (&str, &str) = (
    "the other side does not speak TLS, and this one has SecurityOptions",
    "TLS is spoken here, and SecurityOptions are missing",
);
const INTERRUPTED_TLS: &str = "the connection ended during the handshake of TLS";

/// Why a link is closed.
enum LinkFault {
    Tls(TlsError),
    /// Only one side uses TLS: the log line, and the reason that the peer gets.
    TlsMismatch(&'static str, &'static str),
    /// Another attempt would fail in the same way, for this reason.
    Final(&'static str),
    /// The manager has closed the link.
    Frames(crate::ProtocolError),
}

/// Accepts, or makes, the connections of all links.
pub(super) struct SocketLinks {
    listener: Option<(Id, Listener)>,
    _listener_guard: Option<SocketGuard>,
    /// At this number of sockets the oldest unidentified link is closed for a new one. Without
    /// unidentified links, accepting pauses.
    connections_max: usize,
    /// When to accept again.
    accept_at: Option<Instant>,
    dialer: Dialer,
    links: HashMap<LinkKey, Id>,
}

impl SocketLinks {
    pub(super) fn new<E: Engine>(
        listener: Option<Listener>,
        dialer: Dialer,
        sockets: &mut Sockets<E>,
    ) -> io::Result<Self> {
        let descriptor = listener.as_ref().map(Listener::descriptor);
        let guard = descriptor.map(|descriptor| sockets.inherited.register(descriptor));
        let connections_max = listener.as_ref().map_or(usize::MAX, Listener::connections_max);
        let listener = match listener {
            Some(listener) => {
                Some((sockets.engine.watch(listener.descriptor(), READABLE)?, listener))
            }
            None => None,
        };
        Ok(Self {
            listener,
            _listener_guard: guard,
            connections_max,
            accept_at: None,
            dialer,
            links: HashMap::new(),
        })
    }

    fn handle_connected<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        result: io::Result<Connection>,
        role: Role,
    ) {
        let opened = result.and_then(|connection| self.open_link(context, connection, role));
        let (manager, now) = (&mut context.manager, context.now);
        match opened {
            Ok(()) => {}
            Err(error) if role == Role::Dialed && mismatch::is_mismatch(&error) => {
                manager.log_queue.warn(|| mismatch::PEER_USES_UNIX.to_owned(), now);
                manager.handle_wrong_protocol(mismatch::PEER_USES_UNIX, now);
            }
            Err(error) if role == Role::Dialed => {
                let refusals = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
                manager.set_dial_error(&error.to_string(), now);
                manager.handle_dial_failed(refusals.contains(&error.kind()), now);
            }
            Err(error) => {
                let line = || format!("a connection cannot be accepted: {error}");
                manager.log_queue.warn(line, now);
            }
        }
    }

    fn open_link<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        connection: Connection,
        role: Role,
    ) -> io::Result<()> {
        if E::SENDS_AT_ONCE {
            bound_buffers(&connection.socket);
        }
        let id = context.sockets.adopt(connection.socket, context.now)?;
        let key = match connection.channel {
            Some(channel) => context.manager.open_shared_link(role, channel, context.now),
            None => context.manager.open_link(role, context.now),
        };
        self.links.insert(key, id);
        if let Some(socket) = context.sockets.open.get_mut(&id) {
            socket.key = Some(key);
        }
        Ok(())
    }

    /// What the first bytes of a connection are.
    fn first_bytes(&self, socket: &mut Socket, bytes: &[u8], is_first: bool) -> FirstBytes {
        match &self.listener {
            Some((_, listener)) if listener.is_shared() => {
                mismatch::of_shared_client(bytes, &mut socket.preamble_bytes)
            }
            _ if is_first => mismatch::of_peer(bytes),
            _ => FirstBytes::Expected(0),
        }
    }

    /// Continues after bytes without a fault.
    fn handle_received<E: Engine>(&mut self, context: &mut Context<E>, key: LinkKey, id: Id) {
        let socket = context.sockets.open.get_mut(&id);
        let Some(secure) = socket.and_then(|socket| socket.secure.as_mut()) else {
            return offer_target(context, key, id);
        };
        if secure.is_ended_by_peer() {
            self.links.remove(&key);
            context.manager.handle_link_closed(key, context.now);
            context.sockets.linger(id, context.now);
        } else if secure.take_due() {
            context.manager.handle_output_sent(key);
        }
    }

    /// Closes a link after a fault of the peer.
    fn fail<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        (key, id): (LinkKey, Id),
        fault: &LinkFault,
    ) {
        let reason = match fault {
            LinkFault::Tls(error) if error.is_not_tls() => MISSING_TLS.0.to_owned(),
            LinkFault::Tls(error) => format!("TLS: {error}"),
            LinkFault::TlsMismatch(reason, _) | LinkFault::Final(reason) => (*reason).to_owned(),
            LinkFault::Frames(error) => error.to_string(),
        };
        warn(context, id, &reason);
        match fault {
            LinkFault::Tls(_) | LinkFault::Final(_) => {
                self.links.remove(&key);
                context.manager.handle_link_failed(key, &reason, true, context.now);
                context.sockets.linger(id, context.now);
            }
            LinkFault::TlsMismatch(_, answer) => {
                if let Some(socket) = context.sockets.open.get_mut(&id) {
                    socket.secure = None;
                }
                context.manager.refuse(key, answer);
            }
            LinkFault::Frames(_) => context.manager.set_dial_error(&reason, context.now),
        }
    }

    /// Closes a socket whose stream has ended or failed.
    fn close_socket<E: Engine>(&mut self, context: &mut Context<E>, id: Id) {
        let Some(socket) = context.sockets.close(id) else { return };
        let Some(key) = socket.key else { return };
        if socket.secure.is_some_and(|secure| secure.is_handshaking()) {
            context.manager.set_dial_error(INTERRUPTED_TLS, context.now);
        }
        self.links.remove(&key);
        context.manager.handle_link_closed(key, context.now);
    }

    fn accept<E: Engine>(&mut self, context: &mut Context<E>) {
        while let Some((watch, listener)) = &self.listener {
            let is_full = context.sockets.open.len() >= self.connections_max;
            if is_full && !context.manager.has_unidentified() {
                return self.accept_at = Some(context.now + ACCEPT_PAUSE);
            }
            match listener.accept() {
                Ok(socket) => {
                    let connection = listener.send_preamble(socket);
                    self.handle_connected(context, connection, Role::Accepted);
                    if is_full {
                        context.manager.evict_oldest_unidentified(context.now);
                        // Its descriptor is free in the next turn.
                        return self.accept_at = Some(context.now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // The next wait reports a failure.
                    let _ = context.sockets.engine.rewatch(*watch, READABLE);
                    return;
                }
                // Usually there are no descriptors left, and the listener stays ready.
                Err(_) => {
                    context.manager.evict_oldest_unidentified(context.now);
                    return self.accept_at = Some(context.now + ACCEPT_PAUSE);
                }
            }
        }
    }

    fn handle_ready<E: Engine>(&mut self, context: &mut Context<E>, watch: Id) {
        if !self.dialer.is_waiting_for(watch) {
            return self.accept(context);
        }
        if let Some(result) = self.dialer.handle_ready(&mut context.sockets.engine).transpose() {
            self.handle_connected(context, result, Role::Dialed);
        }
    }

    fn handle_arrival<E: Engine>(&mut self, context: &mut Context<E>, arrival: Arrival) {
        let id = arrival.socket;
        let now = context.now;
        let Context { manager, sockets, .. } = context;
        let socket = sockets.open.get_mut(&id).and_then(|it| it.key.map(|key| (it, key)));
        let Some((socket, key)) = socket else { return sockets.discard_input(arrival) };
        let bytes = match sockets.engine.receive(arrival) {
            Ok([]) => return self.close_socket(context, id),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close_socket(context, id),
        };
        let is_first = !std::mem::replace(&mut socket.has_received, true);
        let checks_tls = is_first && manager.is_server();
        let outcome = match self.first_bytes(socket, bytes, is_first) {
            FirstBytes::Expected(passed) => {
                let bytes = bytes.get_mut(passed..).unwrap_or_default();
                receive(socket, manager, (key, bytes), checks_tls, now)
            }
            FirstBytes::Mismatch(reason, _) if !checks_tls => Err(LinkFault::Final(reason)),
            FirstBytes::Mismatch(reason, answer) => Err(LinkFault::TlsMismatch(reason, answer)),
        };
        match outcome {
            Ok(()) => self.handle_received(context, key, id),
            Err(fault) => self.fail(context, (key, id), &fault),
        }
    }

    fn handle_filled<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        id: Id,
        filled: io::Result<Target>,
    ) {
        let Some(key) = context.sockets.open.get(&id).and_then(|socket| socket.key) else { return };
        let Ok(target) = filled else { return self.close_socket(context, id) };
        // An error has closed the link.
        let _ = context.manager.return_target(key, target, context.now);
        offer_target(context, key, id);
    }
}

impl<E: Engine> Transport<E> for SocketLinks {
    fn flush_link(&mut self, context: &mut Context<E>, key: LinkKey) {
        let Some(&socket) = self.links.get(&key) else { return };
        let now = context.now;
        let Context { manager, sockets, .. } = context;
        let flushed = sockets.flush(socket, |output| manager.poll_output(key, output, now));
        if flushed.is_err() {
            self.close_socket(context, socket);
        }
    }

    fn close_link(&mut self, context: &mut Context<E>, key: LinkKey, after_output: bool) {
        match self.links.remove(&key) {
            Some(socket) if after_output => context.sockets.linger(socket, context.now),
            Some(socket) => drop(context.sockets.close(socket)),
            None => {}
        }
    }

    fn dial_at(&mut self, at: Instant) {
        self.dialer.schedule(at);
    }

    fn handle_completion(&mut self, context: &mut Context<E>, completion: Completion) {
        match completion {
            Completion::Received(arrival) => self.handle_arrival(context, arrival),
            Completion::Filled { socket, target, result } => {
                self.handle_filled(context, socket, result.map(|()| target));
            }
            Completion::Sent { socket, payload, result } => {
                match context.sockets.handle_sent(socket, payload, &result) {
                    Some(_) if result.is_err() => self.close_socket(context, socket),
                    Some(Some(key)) => context.manager.handle_output_sent(key),
                    _ => {}
                }
            }
            Completion::Ready { watch, .. } => self.handle_ready(context, watch),
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.dialer.deadline(), self.accept_at].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, context: &mut Context<E>) {
        if let Err(error) = self.dialer.poll(&mut context.sockets.engine, context.now) {
            self.handle_connected(context, Err(error), Role::Dialed);
        }
        if self.accept_at.take_if(|at| context.now >= *at).is_some() {
            self.accept(context);
        }
    }

    fn stop(&mut self, context: &mut Context<E>, completions: &mut Vec<Completion>) {
        let engine = &mut context.sockets.engine;
        self.dialer.stop(engine);
        if let Some((watch, listener)) = self.listener.take() {
            engine.close(watch);
            // A ring releases the descriptor after this wait. The next wait reports a failure.
            let _ = engine.wait(Some(context.now), completions);
            drop(listener);
        }
    }
}

/// Decrypts bytes where the socket has TLS, and hands them to the manager.
fn receive(
    socket: &mut Socket,
    manager: &mut SessionManager,
    (key, bytes): (LinkKey, &mut [u8]),
    checks_tls: bool,
    now: Instant,
) -> Result<(), LinkFault> {
    let mismatch = |(reason, answer)| Err(LinkFault::TlsMismatch(reason, answer));
    match &mut socket.secure {
        None if checks_tls && starts_tls_record(bytes) => mismatch(UNEXPECTED_TLS),
        None => manager.handle_received(key, bytes, now).map_err(LinkFault::Frames),
        Some(_) if checks_tls && !starts_tls_record(bytes) => mismatch(MISSING_TLS),
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
    }
}

/// Has the engine receive into memory of the manager, if that has some.
fn offer_target<E: Engine>(context: &mut Context<E>, key: LinkKey, id: Id) {
    if let Some(target) = context.manager.poll_target(key) {
        context.sockets.engine.receive_into(id, target);
    }
}

/// Logs why a connection is closed.
fn warn<E: Engine>(context: &mut Context<E>, id: Id, reason: &str) {
    let peer = context.sockets.engine.peer(id);
    let line = || match peer {
        Ok(Peer::Address(address)) => format!("a connection with {address} is closed: {reason}"),
        Ok(Peer::Process { pid, .. }) => {
            format!("a connection with process {pid} is closed: {reason}")
        }
        _ => format!("a connection is closed: {reason}"),
    };
    context.manager.log_queue.warn(line, context.now);
}
