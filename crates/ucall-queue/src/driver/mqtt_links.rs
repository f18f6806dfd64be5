//! Links that all go through one connection to an MQTT broker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ucall_engine::{Arrival, Completion, Engine, Id};
use ucall_proto::tls::TlsError;

use super::dialer::Dialer;
use super::inherited::SocketGuard;
use super::secure::TlsEvent;
use super::transport::{Context, Transport};
use crate::mqtt::{Broker, BrokerError};
use crate::session_manager::LinkKey;

/// A broker, and the socket to it.
pub(super) struct MqttLinks {
    broker: Broker,
    dialer: Dialer,
    socket: Option<Id>,
    /// A copy of the socket's descriptor, to set options.
    descriptor: Option<(OwnedFd, SocketGuard)>,
    /// Output that the broker has not taken is given up.
    is_aborted: bool,
    /// The last reason that was logged, which is not logged again.
    last_reported: Option<String>,
}

/// Why the connection to a broker is closed.
enum BrokerFault {
    Broker(BrokerError),
    Tls(TlsError),
    /// It could not be established.
    Io(io::Error),
    /// The broker has ended it.
    Eof,
}

impl MqttLinks {
    pub(super) fn new(broker: Broker, mut dialer: Dialer, now: Instant) -> Self {
        dialer.schedule(now);
        let (socket, descriptor, last_reported) = (None, None, None);
        Self { broker, dialer, socket, descriptor, is_aborted: false, last_reported }
    }

    fn handle_connected<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        socket: io::Result<OwnedFd>,
    ) {
        let connected = socket.and_then(|socket| {
            let descriptor = socket.try_clone().ok().map(|copy| {
                let guard = context.sockets.inherited.register(copy.as_fd());
                (copy, guard)
            });
            Ok((context.sockets.adopt(socket, context.now)?, descriptor))
        });
        match connected {
            Ok((socket, descriptor)) => {
                (self.socket, self.descriptor) = (Some(socket), descriptor);
                if let Err(error) = self.broker.handle_connected(context.now) {
                    self.fail(context, BrokerFault::Broker(error));
                }
            }
            Err(error) => self.fail(context, BrokerFault::Io(error)),
        }
    }

    /// Reads what arrived on the socket to the broker.
    fn receive<E: Engine>(
        &mut self,
        context: &mut Context<E>,
        arrival: Arrival,
    ) -> Result<(), BrokerFault> {
        let now = context.now;
        let Context { manager, sockets, .. } = context;
        let Some(socket) = sockets.open.get_mut(&arrival.socket) else { return Ok(()) };
        let bytes = match sockets.engine.receive(arrival) {
            Ok([]) => return Err(BrokerFault::Eof),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(BrokerFault::Eof),
        };
        self.descriptor.as_ref().inspect(|(socket, _)| enable_quickack(socket));
        let broker = &mut self.broker;
        let Some(secure) = &mut socket.secure else {
            return broker.receive(bytes, manager, now).map_err(BrokerFault::Broker);
        };
        let mut taken = Ok(());
        let received = secure.receive(bytes, |event| match event {
            TlsEvent::Plaintext(plaintext) if taken.is_ok() => {
                taken = broker.receive(plaintext, manager, now);
            }
            // The broker's certificate names no peer.
            TlsEvent::Plaintext(_) | TlsEvent::PeerCertificate(_) => {}
        });
        received.map_err(BrokerFault::Tls).and(taken.map_err(BrokerFault::Broker))
    }

    fn send<E: Engine>(&mut self, context: &mut Context<E>) {
        let Some(socket) = self.socket else { return };
        let (broker, manager) = (&mut self.broker, &mut context.manager);
        let flushed = context
            .sockets
            .flush(socket, |output| broker.poll_output(output, manager, context.now));
        if let Err(error) = flushed {
            self.fail(context, BrokerFault::Tls(error));
        }
    }

    /// Closes the connection, and schedules the next attempt.
    fn fail<E: Engine>(&mut self, context: &mut Context<E>, fault: BrokerFault) {
        let now = context.now;
        let Context { manager, sockets, .. } = context;
        self.socket.take().map(|socket| sockets.close(socket));
        self.descriptor = None;
        let delay = self.broker.handle_lost(manager, now);
        // The broker ends the connection of a communicator that is closed, too.
        if manager.is_closed() {
            return;
        }
        let is_too_new = matches!(fault, BrokerFault::Broker(BrokerError::UnsupportedVersion));
        self.dialer.schedule(if is_too_new { now } else { now + delay });
        let (reason, is_reported) = match fault {
            BrokerFault::Broker(BrokerError::UnsupportedVersion) => return,
            BrokerFault::Broker(error) => (format!("the broker {error}"), true),
            BrokerFault::Tls(error) => (format!("TLS with the broker: {error}"), true),
            BrokerFault::Io(error) => (format!("the broker cannot be reached: {error}"), false),
            BrokerFault::Eof => ("the broker ended the connection".to_owned(), false),
        };
        manager.set_dial_error(&reason, now);
        if is_reported && self.last_reported.as_ref() != Some(&reason) {
            manager.log_queue.warn(|| reason.clone(), now);
            self.last_reported = Some(reason);
        }
    }

    /// Whether no link has output left.
    fn is_drained(&self) -> bool {
        self.is_aborted || self.broker.is_drained()
    }
}

impl<E: Engine> Transport<E> for MqttLinks {
    fn flush_link(&mut self, _context: &mut Context<E>, key: LinkKey) {
        self.broker.mark_ready(key);
    }

    fn flush(&mut self, context: &mut Context<E>) {
        self.send(context);
    }

    fn close_link(&mut self, context: &mut Context<E>, key: LinkKey, after_output: bool) {
        self.broker.close_link(key, after_output, context.now);
    }

    fn dial_at(&mut self, at: Instant) {
        self.broker.dial_at(at);
    }

    fn handle_completion(&mut self, context: &mut Context<E>, completion: Completion) {
        match completion {
            Completion::Received(arrival) if self.socket != Some(arrival.socket) => {
                context.sockets.discard_input(arrival);
            }
            Completion::Received(arrival) => {
                if let Err(fault) = self.receive(context, arrival) {
                    self.fail(context, fault);
                }
            }
            Completion::Sent { socket, payload, result } => {
                let is_open = context.sockets.handle_sent(socket, payload, &result).is_some();
                if is_open && result.is_err() {
                    self.fail(context, BrokerFault::Eof);
                }
            }
            Completion::Ready { watch, .. } if self.dialer.is_waiting_for(watch) => {
                if let Some(result) =
                    self.dialer.handle_ready(&mut context.sockets.engine).transpose()
                {
                    self.handle_connected(context, result.map(|connection| connection.socket));
                }
            }
            _ => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        [self.broker.poll_timeout(), self.dialer.deadline()].into_iter().flatten().min()
    }

    fn handle_timeout(&mut self, context: &mut Context<E>) {
        if let Err(error) = self.broker.handle_timeout(&mut context.manager, context.now) {
            self.fail(context, BrokerFault::Broker(error));
        }
        if let Err(error) = self.dialer.poll(&mut context.sockets.engine, context.now) {
            self.handle_connected(context, Err(error));
        }
    }

    fn abort(&mut self) {
        self.is_aborted = true;
    }

    fn drain(&mut self, context: &mut Context<E>) -> bool {
        self.dialer.stop(&mut context.sockets.engine);
        if self.socket.is_none() {
            return true;
        }
        if !self.is_drained() {
            return false;
        }
        self.broker.close();
        self.send(context);
        if !self.is_drained() {
            return false;
        }
        self.descriptor = None;
        if let Some(socket) = self.socket.take() {
            context.sockets.linger(socket, context.now);
        }
        true
    }

    fn stop(&mut self, context: &mut Context<E>, _completions: &mut Vec<Completion>) {
        self.dialer.stop(&mut context.sockets.engine);
    }
}

/// Acknowledges received packets now. Brokers that keep Nagle's algorithm hold a small packet back
/// until the one before is acknowledged, and both sides would wait up to 40 ms. The system resets
/// this option after each receive.
fn enable_quickack(socket: &OwnedFd) {
    #[cfg(target_os = "linux")]
    // A failure costs time alone.
    let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
