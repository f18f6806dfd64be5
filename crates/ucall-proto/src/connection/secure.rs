//! TLS around a connection: a [`TlsConnection`] between it and the bytes of the socket.
//!
//! A step writes its plaintext to a buffer of the worker. The whole output of a step is encrypted
//! at once, so replies that are sent together are one record. Outside of this module only
//! [`Secured::step`] reaches the plain connection mutably, so no method can bypass the encryption.
//! Without TLS a step costs one branch.
//!
//! | first byte | reply |
//! |---|---|
//! | of a record | the handshake's, which has a time limit |
//! | a letter | in plaintext, HTTP's 400, because the client could not decrypt any other |
//! | any other | in plaintext, an error document |

use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::deadline::WaitState;
use super::{Environment, NextAction, PlainConnection, Reservation};
use crate::Limits;
use crate::rpc::Service;
use crate::tls::{TlsConnection, TlsSession, starts_tls_record};

/// The largest plaintext buffer that is reused for the next step.
const KEPT_CAPACITY_MAX: usize = 256 << 10;

/// A connection and its end of TLS. It can be read as the plain connection.
#[derive(Debug)]
pub(super) struct Secured {
    plain: PlainConnection,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    tls: TlsConnection,
    /// The memory of `tls`.
    reserved: Reservation,
}

impl Deref for Secured {
    type Target = PlainConnection;

    #[inline(always)]
    fn deref(&self) -> &PlainConnection {
        &self.plain
    }
}

impl PlainConnection {
    /// What TLS has agreed on; `None` without TLS, and before.
    pub fn session(&self) -> Option<&TlsSession> {
        self.session.as_deref()
    }

    /// Whether the connection is under TLS, after its handshake.
    pub fn is_tls(&self) -> bool {
        self.session.is_some()
    }
}

impl Secured {
    pub(super) fn new(now: Instant, limits: &Limits, tls: Option<TlsConnection>) -> Self {
        let mut plain = PlainConnection::new(now, limits);
        if tls.is_some() {
            plain.wait_state = WaitState::Handshake;
        }
        let tls = tls.map(|tls| Box::new(Tls { tls, reserved: Reservation::default() }));
        Self { plain, tls }
    }

    /// Takes bytes of the socket, decrypted if there is TLS, and appends the replies to the output.
    #[inline]
    pub(super) fn receive<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) {
        if !self.plain.reading.takes_requests() {
            return self.plain.count_discarded(bytes.len());
        }
        if self.tls.is_some() || self.plain.is_websocket() {
            return self.receive_general(bytes, environment);
        }
        self.plain.receive_plaintext(bytes, environment);
    }

    /// [`Secured::receive`] for records and frames, which are read in place.
    #[inline(never)]
    fn receive_general<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) {
        match &mut self.tls {
            Some(tls) => tls.receive(&mut self.plain, bytes, environment),
            None => self.plain.receive_frames(bytes, environment),
        }
    }

    /// Runs a step of the connection, and encrypts its output if there is TLS.
    #[inline]
    pub(super) fn step<S, T>(
        &mut self,
        environment: &mut Environment<'_, S>,
        step: impl FnOnce(&mut PlainConnection, &mut Environment<'_, S>) -> T,
    ) -> T {
        match &mut self.tls {
            None => step(&mut self.plain, environment),
            Some(tls) => {
                let sealed = begin_plaintext(environment);
                let outcome = step(&mut self.plain, environment);
                tls.seal(&mut self.plain, sealed, environment);
                outcome
            }
        }
    }

    /// The socket has no more bytes.
    pub(super) fn handle_eof<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let tls = self.tls.as_ref();
        let is_truncated = tls.is_some_and(|it| !it.tls.has_received_close_notify());
        self.step(environment, |plain, environment| plain.handle_eof(is_truncated, environment));
    }

    /// Its end of TLS, if it has one.
    pub(super) fn tls_mut(&mut self) -> Option<&mut TlsConnection> {
        self.tls.as_mut().map(|it| &mut it.tls)
    }

    /// Changes the connection by a step that has nothing to write.
    pub(super) fn update(&mut self, update: impl FnOnce(&mut PlainConnection)) {
        update(&mut self.plain);
    }

    /// Appends plaintext outside of a step; returns `false` if TLS is closed.
    pub(super) fn write(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> bool {
        match &mut self.tls {
            None => {
                out.extend_from_slice(plaintext);
                true
            }
            Some(tls) => tls.tls.send(plaintext, out).is_ok(),
        }
    }

    /// Writes the Close frame of a WebSocket and the close_notify of TLS.
    pub(super) fn close_notify(&mut self, out: &mut Vec<u8>) {
        let mut close_frame = Vec::new();
        self.plain.abandon_replies(&mut close_frame);
        self.write(&close_frame, out);
        if let Some(tls) = &mut self.tls {
            tls.tls.close(out);
        }
    }
}

impl Tls {
    /// Decrypts records, and runs the requests in them.
    fn receive<S: Service>(
        &mut self,
        plain: &mut PlainConnection,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
    ) {
        if self.tls.is_fresh() && !bytes.is_empty() && !starts_tls_record(bytes) {
            return plain.refuse_plaintext(bytes, environment);
        }
        let mut sealed = begin_plaintext(environment);
        // Data that arrives with the last handshake message, before the outcome is known.
        let mut early = Vec::new();
        let outcome = self.tls.receive(bytes, &mut sealed, |piece| match plain.session {
            Some(_) => plain.receive_plaintext(piece, environment),
            None => early.extend_from_slice(piece),
        });
        // An invalid record after the handshake also leaves the connection without a session.
        if plain.session.is_none()
            && let Some(session) = self.tls.session()
        {
            plain.session = Some(Arc::new(session));
            plain.receive_plaintext(&early, environment);
        }
        if self.tls.has_received_close_notify() && !plain.reading.is_ended() {
            plain.handle_eof(false, environment);
        }
        if outcome.is_err() {
            plain.cancel();
            plain.update_wait_state(environment);
        }
        self.seal(plain, sealed, environment);
    }

    /// Encrypts the output of a step after what was `sealed` before. After the last step, appends a
    /// `close_notify`.
    fn seal<S>(
        &mut self,
        plain: &mut PlainConnection,
        sealed: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) {
        let Environment { scratch, out, .. } = environment;
        let mut plaintext = mem::replace(*out, sealed);
        if !plaintext.is_empty() && self.tls.send(&plaintext, out).is_err() {
            plain.cancel();
        }
        if matches!(plain.next_action(), NextAction::DiscardInput | NextAction::Close) {
            self.tls.close(out);
        }
        self.reserved.resize(self.tls.held_bytes(), &scratch.budget);
        plaintext.clear();
        if plaintext.capacity() > KEPT_CAPACITY_MAX {
            plaintext = Vec::new();
        }
        scratch.plaintext = plaintext;
    }
}

/// Has a step write plaintext to the buffer of the worker. Returns the output until then.
fn begin_plaintext<S>(environment: &mut Environment<'_, S>) -> Vec<u8> {
    mem::replace(environment.out, mem::take(&mut environment.scratch.plaintext))
}
