//! A driver whose links all go through one connection to a broker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ucall_engine::{Arrival, Engine, Id, SendState};
use ucall_proto::tls::TlsError;

use super::links::cleared;
use super::{Driver, Socket};
use crate::backoff::Backoff;
use crate::broker::{Broker, BrokerError, Login};
use crate::driver::inherited::SocketGuard;
use crate::driver::secure::TlsEvent;
use crate::options::Options;

/// A broker, and the socket to it.
pub(in crate::driver) struct BrokerConnection {
    pub(super) broker: Broker,
    socket: Option<Id>,
    /// The same socket, to set options of.
    descriptor: Option<(OwnedFd, SocketGuard)>,
    /// When to connect, if that is not what the dialer is about.
    connects_at: Option<Instant>,
    /// The connection is not kept for what the broker does not take.
    is_abandoned: bool,
    /// What was told last, which is not told again and again.
    last_reported: Option<String>,
}

/// What is wrong with a connection to a broker.
enum BrokerFault {
    Broker(BrokerError),
    Tls(TlsError),
    /// It could not be made.
    Io(io::Error),
    /// It has ended.
    End,
}

impl BrokerConnection {
    pub(in crate::driver) fn new(
        login: Login,
        is_server: bool,
        options: &Options,
        random: impl FnMut() -> u128 + Send + 'static,
        now: Instant,
    ) -> Self {
        let backoff = Backoff::new(options.reconnect);
        let broker = Broker::new(login, is_server, options.keepalive, backoff, random, now);
        let (socket, descriptor, connects_at, last_reported) = (None, None, Some(now), None);
        Self { broker, socket, descriptor, connects_at, is_abandoned: false, last_reported }
    }

    /// Whether the connection may end.
    fn is_done(&self) -> bool {
        self.is_abandoned || self.broker.is_drained()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        [self.broker.poll_timeout(), self.connects_at].into_iter().flatten().min()
    }
}

impl<E: Engine> Driver<E> {
    pub(super) fn is_broker(&self, socket: Id) -> bool {
        self.broker_connection
            .as_ref()
            .is_some_and(|broker_connection| broker_connection.socket == Some(socket))
    }

    /// There is a connection, or there could be none.
    pub(super) fn handle_broker_connected(&mut self, socket: io::Result<OwnedFd>, now: Instant) {
        let descriptor = socket.as_ref().ok().and_then(|socket| socket.try_clone().ok());
        let descriptor = descriptor.map(|copy| {
            let guard = self.inherited.register(copy.as_fd());
            (copy, guard)
        });
        let connection = socket.and_then(|socket| {
            let secure = self.begin_tls(now)?;
            let guard = self.inherited.register(socket.as_fd());
            Ok((self.engine.adopt(socket)?, guard, secure))
        });
        let Some(broker_connection) = &mut self.broker_connection else { return };
        match connection {
            Ok((socket, _guard, secure)) => {
                let (has_received, is_sending, preamble_bytes, filled_bytes) = (false, false, 0, 0);
                let key = None;
                let socket_state = Socket {
                    key,
                    is_sending,
                    has_received,
                    preamble_bytes,
                    filled_bytes,
                    _guard,
                    secure,
                };
                self.sockets.insert(socket, socket_state);
                (broker_connection.socket, broker_connection.descriptor) =
                    (Some(socket), descriptor);
                if let Err(error) = broker_connection.broker.handle_connected(now) {
                    self.close_broker(BrokerFault::Broker(error), now);
                }
            }
            Err(error) => self.close_broker(BrokerFault::Io(error), now),
        }
    }

    pub(super) fn receive_from_broker(&mut self, arrival: Arrival, now: Instant) {
        let socket_state = self.sockets.get_mut(&arrival.socket);
        let (Some(broker_connection), Some(socket_state)) =
            (&mut self.broker_connection, socket_state)
        else {
            return;
        };
        let bytes = match self.engine.receive(arrival) {
            Ok([]) => return self.close_broker(BrokerFault::End, now),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.close_broker(BrokerFault::End, now),
        };
        broker_connection.descriptor.as_ref().inspect(|(socket, _)| enable_quickack(socket));
        let (broker, manager) = (&mut broker_connection.broker, &mut self.manager);
        let received = match &mut socket_state.secure {
            None => broker.receive(bytes, manager, now).map_err(BrokerFault::Broker),
            Some(secure) => {
                let mut taken = Ok(());
                let received = secure.receive(bytes, |event| match event {
                    TlsEvent::Plaintext(plaintext) if taken.is_ok() => {
                        taken = broker.receive(plaintext, manager, now);
                    }
                    // Of peers behind it, the broker's certificate says nothing.
                    TlsEvent::Plaintext(_) | TlsEvent::PeerCertificate(_) => {}
                });
                received.map_err(BrokerFault::Tls).and(taken.map_err(BrokerFault::Broker))
            }
        };
        if let Err(fault) = received {
            self.close_broker(fault, now);
        }
    }

    /// Sends what links have to send.
    pub(super) fn flush_broker(&mut self, now: Instant) {
        let Some(BrokerConnection { broker, socket: Some(socket), .. }) =
            &mut self.broker_connection
        else {
            return;
        };
        let Some(socket_state) = self.sockets.get_mut(socket) else { return };
        while !socket_state.is_sending {
            let mut payload = std::mem::take(&mut self.cached_payload);
            match &mut socket_state.secure {
                None => broker.poll_output(&mut payload, &mut self.manager, now),
                Some(secure) => {
                    if let Some(room) = secure.plaintext_buffer() {
                        broker.poll_output(room, &mut self.manager, now);
                    }
                    if let Err(error) = secure.write_output(&mut payload) {
                        return self.close_broker(BrokerFault::Tls(error), now);
                    }
                }
            }
            if payload.is_empty() {
                self.cached_payload = payload;
                return;
            }
            match self.engine.send(*socket, payload) {
                SendState::Done(payload) => self.cached_payload = cleared(payload),
                SendState::Pending => socket_state.is_sending = true,
            }
        }
    }

    /// Looks after what depends on time.
    pub(super) fn handle_broker_timeout(&mut self, now: Instant) {
        let Some(broker_connection) = &mut self.broker_connection else { return };
        if broker_connection.connects_at.take_if(|at| now >= *at).is_some() {
            self.dialer.schedule(now);
        }
        if let Err(error) = broker_connection.broker.handle_timeout(&mut self.manager, now) {
            self.close_broker(BrokerFault::Broker(error), now);
        }
    }

    /// The connection has broken.
    pub(super) fn handle_broker_closed(&mut self, now: Instant) {
        self.close_broker(BrokerFault::End, now);
    }

    /// The connection is lost, or could not be made, or has to be given up.
    fn close_broker(&mut self, fault: BrokerFault, now: Instant) {
        let Some(broker_connection) = &mut self.broker_connection else { return };
        if let Some(socket) = broker_connection.socket.take()
            && self.sockets.remove(&socket).is_some()
        {
            self.engine.close(socket);
        }
        broker_connection.descriptor = None;
        let delay = broker_connection.broker.handle_lost(&mut self.manager, now);
        // Which it does at its end, when nothing is left to be said.
        if self.manager.is_closed() {
            return;
        }
        let is_too_new = matches!(fault, BrokerFault::Broker(BrokerError::UnsupportedVersion));
        broker_connection.connects_at = Some(if is_too_new { now } else { now + delay });
        let (reason, is_reported) = match fault {
            BrokerFault::Broker(BrokerError::UnsupportedVersion) => return,
            BrokerFault::Broker(error) => (format!("the broker {error}"), true),
            BrokerFault::Tls(error) => (format!("TLS with the broker: {error}"), true),
            BrokerFault::Io(error) => (format!("the broker cannot be reached: {error}"), false),
            BrokerFault::End => ("the broker ended the connection".to_owned(), false),
        };
        self.manager.set_dial_error(&reason);
        if is_reported && broker_connection.last_reported.as_ref() != Some(&reason) {
            self.manager.log_queue.log(|| reason.clone(), now);
            broker_connection.last_reported = Some(reason);
        }
    }

    /// Has the connection end without waiting for the broker.
    pub(super) fn abandon_broker(&mut self) {
        if let Some(broker_connection) = &mut self.broker_connection {
            broker_connection.is_abandoned = true;
        }
    }

    /// Ends the connection, if there is one, once all is said. Whether that is so.
    pub(super) fn drain_broker(&mut self, now: Instant) -> bool {
        let Some(broker_connection) = &mut self.broker_connection else { return true };
        broker_connection.connects_at = None;
        let Some(socket) = broker_connection.socket else { return true };
        if !broker_connection.is_done() {
            return false;
        }
        broker_connection.broker.close();
        self.flush_broker(now);
        let Some(broker_connection) = &mut self.broker_connection else { return true };
        if !broker_connection.is_done() {
            return false;
        }
        (broker_connection.socket, broker_connection.descriptor) = (None, None);
        self.linger(socket, now);
        true
    }
}

/// Acknowledges what has come now, not in a while. Brokers that collect small packets, as TCP does
/// unless it is told otherwise, hold a packet back until the one before is acknowledged; both
/// sides would wait for each other up to 40 ms. The system forgets this after each receive.
fn enable_quickack(socket: &OwnedFd) {
    #[cfg(target_os = "linux")]
    // It goes without, too, only slower.
    let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
