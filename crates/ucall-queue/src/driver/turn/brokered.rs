//! A driver whose links all go through one connection to a broker.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ucall_engine::{Arrival, Engine, Id, SendState};
use ucall_proto::tls::TlsError;

use super::links::emptied;
use super::{Driver, Socket};
use crate::backoff::Backoff;
use crate::broker::{Broker, Login, Trouble};
use crate::driver::inherited::Noted;
use crate::driver::secure::Came;
use crate::options::Options;

/// A broker, and the socket to it.
pub(in crate::driver) struct Brokered {
    pub(super) broker: Broker,
    socket: Option<Id>,
    /// The same socket, to set options of.
    descriptor: Option<(OwnedFd, Noted)>,
    /// When to connect, if that is not what the dialer is about.
    connects_at: Option<Instant>,
    /// The connection is not kept for what the broker does not take.
    is_abandoned: bool,
    /// What was told last, which is not told again and again.
    told: Option<String>,
}

/// What is wrong with a connection to a broker.
enum Fault {
    Broker(Trouble),
    Tls(TlsError),
    /// It could not be made.
    Io(io::Error),
    /// It has ended.
    End,
}

impl Brokered {
    pub(in crate::driver) fn new(
        login: Login,
        is_server: bool,
        options: &Options,
        random: impl FnMut() -> u128 + Send + 'static,
        now: Instant,
    ) -> Self {
        let backoff = Backoff::new(options.reconnect);
        let broker = Broker::new(login, is_server, options.keepalive, backoff, random, now);
        let (socket, descriptor, connects_at, told) = (None, None, Some(now), None);
        Self { broker, socket, descriptor, connects_at, is_abandoned: false, told }
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
        self.brokered.as_ref().is_some_and(|brokered| brokered.socket == Some(socket))
    }

    /// There is a connection, or there could be none.
    pub(super) fn meet_broker(&mut self, socket: io::Result<OwnedFd>, now: Instant) {
        let descriptor = socket.as_ref().ok().and_then(|socket| socket.try_clone().ok());
        let descriptor = descriptor.map(|copy| {
            let noted = self.inherited.note(copy.as_fd());
            (copy, noted)
        });
        let begun = socket.and_then(|socket| {
            let secure = self.begin_tls(now)?;
            let noted = self.inherited.note(socket.as_fd());
            Ok((self.engine.adopt(socket)?, noted, secure))
        });
        let Some(brokered) = &mut self.brokered else { return };
        match begun {
            Ok((socket, _noted, secure)) => {
                let (is_heard, is_sending, knocked_bytes, filled_bytes) = (false, false, 0, 0);
                let key = None;
                let held = Socket {
                    key,
                    is_sending,
                    is_heard,
                    knocked_bytes,
                    filled_bytes,
                    _noted,
                    secure,
                };
                self.sockets.insert(socket, held);
                (brokered.socket, brokered.descriptor) = (Some(socket), descriptor);
                if let Err(trouble) = brokered.broker.connected(now) {
                    self.lose_broker(Fault::Broker(trouble), now);
                }
            }
            Err(error) => self.lose_broker(Fault::Io(error), now),
        }
    }

    pub(super) fn receive_from_broker(&mut self, arrival: Arrival, now: Instant) {
        let held = self.sockets.get_mut(&arrival.socket);
        let (Some(brokered), Some(held)) = (&mut self.brokered, held) else { return };
        let bytes = match self.engine.receive(arrival) {
            Ok([]) => return self.lose_broker(Fault::End, now),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.lose_broker(Fault::End, now),
        };
        brokered.descriptor.as_ref().inspect(|(socket, _)| acknowledge_at_once(socket));
        let (broker, hub) = (&mut brokered.broker, &mut self.hub);
        let received = match &mut held.secure {
            None => broker.receive(bytes, hub, now).map_err(Fault::Broker),
            Some(secure) => {
                let mut taken = Ok(());
                let received = secure.receive(bytes, |came| match came {
                    Came::Plaintext(plaintext) if taken.is_ok() => {
                        taken = broker.receive(plaintext, hub, now);
                    }
                    // Of peers behind it, the broker's certificate says nothing.
                    Came::Plaintext(_) | Came::Certified(_) => {}
                });
                received.map_err(Fault::Tls).and(taken.map_err(Fault::Broker))
            }
        };
        if let Err(fault) = received {
            self.lose_broker(fault, now);
        }
    }

    /// Sends what links have to send.
    pub(super) fn flush_broker(&mut self, now: Instant) {
        let Some(Brokered { broker, socket: Some(socket), .. }) = &mut self.brokered else {
            return;
        };
        let Some(held) = self.sockets.get_mut(socket) else { return };
        while !held.is_sending {
            let mut payload = std::mem::take(&mut self.spare);
            match &mut held.secure {
                None => broker.poll_output(&mut payload, &mut self.hub, now),
                Some(secure) => {
                    if let Some(room) = secure.room() {
                        broker.poll_output(room, &mut self.hub, now);
                    }
                    if let Err(error) = secure.write_output(&mut payload) {
                        return self.lose_broker(Fault::Tls(error), now);
                    }
                }
            }
            if payload.is_empty() {
                self.spare = payload;
                return;
            }
            match self.engine.send(*socket, payload) {
                SendState::Done(payload) => self.spare = emptied(payload),
                SendState::Pending => held.is_sending = true,
            }
        }
    }

    /// Looks after what depends on time.
    pub(super) fn look_at_broker(&mut self, now: Instant) {
        let Some(brokered) = &mut self.brokered else { return };
        if brokered.connects_at.take_if(|at| now >= *at).is_some() {
            self.dialer.schedule(now);
        }
        if let Err(trouble) = brokered.broker.handle_timeout(&mut self.hub, now) {
            self.lose_broker(Fault::Broker(trouble), now);
        }
    }

    /// The connection has broken.
    pub(super) fn broker_is_gone(&mut self, now: Instant) {
        self.lose_broker(Fault::End, now);
    }

    /// The connection is lost, or could not be made, or has to be given up.
    fn lose_broker(&mut self, fault: Fault, now: Instant) {
        let Some(brokered) = &mut self.brokered else { return };
        if let Some(socket) = brokered.socket.take()
            && self.sockets.remove(&socket).is_some()
        {
            self.engine.close(socket);
        }
        brokered.descriptor = None;
        let delay = brokered.broker.disconnected(&mut self.hub, now);
        // Which it does at its end, when nothing is left to be said.
        if self.hub.is_over() {
            return;
        }
        let is_too_new = matches!(fault, Fault::Broker(Trouble::TooNew));
        brokered.connects_at = Some(if is_too_new { now } else { now + delay });
        let (reason, is_news) = match fault {
            Fault::Broker(Trouble::TooNew) => return,
            Fault::Broker(trouble) => (format!("the broker {trouble}"), true),
            Fault::Tls(error) => (format!("TLS with the broker: {error}"), true),
            Fault::Io(error) => (format!("the broker cannot be reached: {error}"), false),
            Fault::End => ("the broker ended the connection".to_owned(), false),
        };
        self.hub.note_trouble(&reason);
        if is_news && brokered.told.as_ref() != Some(&reason) {
            self.inbox.journal.tell(|| reason.clone(), now);
            brokered.told = Some(reason);
        }
    }

    /// Has the connection end without waiting for the broker.
    pub(super) fn abandon_broker(&mut self) {
        if let Some(brokered) = &mut self.brokered {
            brokered.is_abandoned = true;
        }
    }

    /// Ends the connection, if there is one, once all is said. Whether that is so.
    pub(super) fn leave_broker(&mut self, now: Instant) -> bool {
        let Some(brokered) = &mut self.brokered else { return true };
        brokered.connects_at = None;
        let Some(socket) = brokered.socket else { return true };
        if !brokered.is_done() {
            return false;
        }
        brokered.broker.leave();
        self.flush_broker(now);
        let Some(brokered) = &mut self.brokered else { return true };
        if !brokered.is_done() {
            return false;
        }
        (brokered.socket, brokered.descriptor) = (None, None);
        self.linger(socket, now);
        true
    }
}

/// Acknowledges what has come now, not in a while. Brokers that collect small packets, as TCP does
/// unless it is told otherwise, hold a packet back until the one before is acknowledged; both
/// sides would wait for each other up to 40 ms. The system forgets this after each receive.
fn acknowledge_at_once(socket: &OwnedFd) {
    #[cfg(target_os = "linux")]
    // It goes without, too, only slower.
    let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
    #[cfg(not(target_os = "linux"))]
    let _ = socket;
}
