//! Links over sockets of our own: bytes in and out, in plaintext or under TLS, and their end.
//!
//! | what comes first, at a server | with TLS | without |
//! |---|---|---|
//! | a record of TLS | the handshake | a refusal, in plaintext, that no TLS is spoken |
//! | anything else | a refusal, in plaintext, that TLS is spoken | the hub's handshake |
//!
//! Where only one side speaks of shared memory, that is told in the same way: see [`mixed`].
#![forbid(unsafe_code)]

mod mixed;

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use ucall_buffer::Payload;
use ucall_engine::{Arrival, Engine, Id, Peer, SendState};
use ucall_proto::tls::{TlsError, begins_record};

use super::{Carrier, Driver, Socket};
use crate::driver::endpoint::{Connection, bound_buffers};
use crate::driver::secure::{Came, Secure};
use crate::hub::{LinkKey, Role};
use mixed::Opening;

/// A stranger's mistake, as the log is told of it, and as the stranger is.
const TLS_IS_NOT_WANTED: (&str, &str) =
    ("the other side speaks TLS, and this one has no SecurityOptions", "no TLS is spoken here");
const TLS_IS_MISSING: (&str, &str) = (
    "the other side does not speak TLS, and this one has SecurityOptions",
    "TLS is spoken here, and SecurityOptions are missing",
);
const TLS_WAS_CUT: &str = "the connection ended during the handshake of TLS";

/// What is wrong with what came.
enum Fault {
    Tls(TlsError),
    /// Only one side speaks it: what the log is told, and the other side.
    OneSided(&'static str, &'static str),
    /// The other side will not speak otherwise with us when it is asked again: why.
    Final(&'static str),
    /// The hub has closed the link.
    Frames(crate::ProtocolError),
}

impl<E: Engine> Driver<E> {
    pub(super) fn connected(&mut self, made: io::Result<Connection>, role: Role, now: Instant) {
        if self.brokered.is_some() {
            return self.meet_broker(made.map(|made| made.socket), now);
        }
        match made.and_then(|made| self.open_link(made, role, now)) {
            Ok(()) => {}
            Err(error) if role == Role::Dialed && mixed::is_told_by(&error) => {
                self.inbox.journal.tell(|| mixed::UNIX_IS_SPOKEN.to_owned(), now);
                self.hub.dial_was_wrong(mixed::UNIX_IS_SPOKEN, now);
            }
            Err(error) if role == Role::Dialed => {
                let refusals = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
                self.hub.note_trouble(&error.to_string());
                self.hub.dial_failed(refusals.contains(&error.kind()), now);
            }
            Err(error) => {
                let line = || format!("a connection cannot be accepted: {error}");
                self.inbox.journal.tell(line, now);
            }
        }
    }

    fn open_link(&mut self, made: Connection, role: Role, now: Instant) -> io::Result<()> {
        let secure = self.begin_tls(now)?;
        let _noted = self.inherited.note(made.socket.as_fd());
        if E::SENDS_AT_ONCE {
            bound_buffers(&made.socket);
        }
        let socket = self.engine.adopt(made.socket)?;
        #[cfg(target_os = "linux")]
        let key = match made.channel {
            Some(channel) => self.hub.open_shared_link(role, channel, now),
            None => self.hub.open_link(role, now),
        };
        #[cfg(not(target_os = "linux"))]
        let key = self.hub.open_link(role, now);
        self.carriers.insert(key, Carrier::Socket(socket));
        let key = Some(key);
        let (is_sending, is_heard, knocked_bytes, filled_bytes) = (false, false, 0, 0);
        let held =
            Socket { key, is_sending, is_heard, knocked_bytes, filled_bytes, _noted, secure };
        self.sockets.insert(socket, held);
        Ok(())
    }

    pub(super) fn begin_tls(&mut self, now: Instant) -> io::Result<Option<Box<Secure>>> {
        let Some(security) = &self.security else { return Ok(None) };
        if let Some(error) = security.refresh() {
            let line = || format!("the files of TLS have changed and cannot be used: {error}");
            self.inbox.journal.tell(line, now);
        }
        Secure::begin(&**security).map(|secure| Some(Box::new(secure))).map_err(io::Error::other)
    }

    pub(super) fn receive(&mut self, arrival: Arrival, now: Instant) {
        let socket = arrival.socket;
        if self.is_broker(socket) {
            return self.receive_from_broker(arrival, now);
        }
        let bytes = match self.engine.receive(arrival) {
            Ok([]) => return self.ended(socket, now),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.ended(socket, now),
        };
        // What still comes on a link that is over is nobody's.
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        let Some(key) = held.key else { return };
        let is_first = !std::mem::replace(&mut held.is_heard, true);
        let hub = &mut self.hub;
        let is_questioned = is_first && hub.is_server();
        let opening = match &self.listener {
            Some((_, listener)) if listener.is_shared() => {
                mixed::of_shared_client(bytes, &mut held.knocked_bytes)
            }
            Some(_) if is_first => mixed::of_client(bytes),
            None if is_first => mixed::of_server(bytes),
            _ => Opening::AsExpected(0),
        };
        let bytes = match opening {
            Opening::AsExpected(passed) => bytes.get_mut(passed..).unwrap_or_default(),
            Opening::Mixed(told, _) if !is_questioned => {
                return self.fail(key, socket, &Fault::Final(told), now);
            }
            Opening::Mixed(told, answered) => {
                return self.fail(key, socket, &Fault::OneSided(told, answered), now);
            }
        };
        let outcome = match &mut held.secure {
            None if is_questioned && begins_record(bytes) => Err(one_sided(TLS_IS_NOT_WANTED)),
            None => hub.receive(key, bytes, now).map_err(Fault::Frames),
            Some(_) if is_questioned && !begins_record(bytes) => Err(one_sided(TLS_IS_MISSING)),
            Some(secure) => {
                let mut taken = Ok(());
                let received = secure.receive(bytes, |came| match came {
                    Came::Certified(name) => hub.certify_link(key, &name),
                    Came::Plaintext(plaintext) if taken.is_ok() => {
                        taken = hub.receive(key, plaintext, now);
                    }
                    Came::Plaintext(_) => {}
                });
                received.map_err(Fault::Tls).and(taken.map_err(Fault::Frames))
            }
        };
        match outcome {
            Ok(()) => self.received(key, socket, now),
            Err(fault) => self.fail(key, socket, &fault, now),
        }
    }

    /// Goes on after bytes that were as they should be.
    fn received(&mut self, key: LinkKey, socket: Id, now: Instant) {
        let secure = self.sockets.get_mut(&socket).and_then(|held| held.secure.as_mut());
        let Some(secure) = secure else { return self.offer_target(key, socket) };
        if secure.is_ended_by_peer() {
            self.carriers.remove(&key);
            self.hub.link_closed(key, now);
            self.linger(socket, now);
        } else if secure.take_due() {
            self.hub.output_sent(key);
        }
    }

    /// Gives a link up that had something else on it than it should have.
    fn fail(&mut self, key: LinkKey, socket: Id, fault: &Fault, now: Instant) {
        let reason = match fault {
            Fault::Tls(error) if error.is_no_tls() => TLS_IS_MISSING.0.to_owned(),
            Fault::Tls(error) => format!("TLS: {error}"),
            Fault::OneSided(reason, _) | Fault::Final(reason) => (*reason).to_owned(),
            Fault::Frames(error) => error.to_string(),
        };
        self.warn(socket, &reason, now);
        match fault {
            Fault::Tls(_) | Fault::Final(_) => {
                self.carriers.remove(&key);
                self.hub.link_failed(key, &reason, true, now);
                self.linger(socket, now);
            }
            Fault::OneSided(_, answer) => {
                if let Some(held) = self.sockets.get_mut(&socket) {
                    held.secure = None;
                }
                self.hub.refuse(key, answer);
            }
            // The hub has closed the link.
            Fault::Frames(_) => self.hub.note_trouble(&reason),
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
        self.inbox.journal.tell(line, now);
    }

    /// The stream has ended, or broken.
    fn ended(&mut self, socket: Id, now: Instant) {
        let held = self.sockets.get(&socket);
        let was_cut = held.is_some_and(|held| {
            held.key.is_some() && held.secure.as_ref().is_some_and(|it| it.is_handshaking())
        });
        if was_cut {
            self.hub.note_trouble(TLS_WAS_CUT);
        }
        self.drop_socket(socket, now);
    }

    pub(super) fn flush_socket(&mut self, socket: Id, now: Instant) {
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        while !held.is_sending {
            let mut payload = std::mem::take(&mut self.spare);
            match (&mut held.secure, held.key) {
                (None, Some(key)) => self.hub.poll_output(key, &mut payload, now),
                (None, None) => {}
                (Some(secure), key) => {
                    if let (Some(key), Some(room)) = (key, secure.room()) {
                        self.hub.poll_output(key, room, now);
                    }
                    if secure.write_output(&mut payload).is_err() {
                        return self.drop_socket(socket, now);
                    }
                }
            }
            if payload.is_empty() {
                self.spare = payload;
                if held.key.is_none() {
                    self.engine.shutdown(socket);
                }
                return;
            }
            match self.engine.send(socket, payload) {
                SendState::Done(payload) => self.spare = emptied(payload),
                SendState::Pending => held.is_sending = true,
            }
        }
    }

    pub(super) fn sent(&mut self, socket: Id, result: io::Result<()>, now: Instant) {
        let is_broker = self.is_broker(socket);
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        held.is_sending = false;
        if is_broker {
            return if result.is_err() {
                self.broker_is_gone(now)
            };
        }
        match (result, held.key) {
            (Ok(()), Some(key)) => self.hub.output_sent(key),
            (Ok(()), None) => self.flush_socket(socket, now),
            (Err(_), _) => self.drop_socket(socket, now),
        }
    }

    /// A socket has broken, or the peer has closed it, or it is wanted no more.
    pub(super) fn drop_socket(&mut self, socket: Id, now: Instant) {
        if let Some(held) = self.sockets.remove(&socket) {
            self.engine.close(socket);
            if let Some(key) = held.key {
                self.carriers.remove(&key);
                self.hub.link_closed(key, now);
            }
        }
    }

    /// Ends our side of a socket behind all that is to be sent, and waits for the peer to.
    pub(super) fn linger(&mut self, socket: Id, now: Instant) {
        let Some(held) = self.sockets.get_mut(&socket) else { return };
        held.key = None;
        if let Some(secure) = &mut held.secure {
            secure.close();
        }
        self.flush_socket(socket, now);
        if let Some(oldest) = self.lingering.push(socket, now) {
            self.drop_socket(oldest, now);
        }
    }
}

fn one_sided((told, answered): (&'static str, &'static str)) -> Fault {
    Fault::OneSided(told, answered)
}

/// A payload without what it carried, whose parts belong to others, who wait for them.
pub(super) fn emptied(mut payload: Payload) -> Payload {
    payload.clear_keeping();
    payload
}
