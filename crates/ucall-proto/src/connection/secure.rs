//! TLS around a connection: a [`Stage`] between it and the bytes of the socket.
//!
//! A step runs as it would without TLS and writes its plaintext to memory of the worker; all of it
//! is encrypted at once, so that replies that leave together are one record. Nothing outside this
//! module reaches the plain connection mutably but through [`Secured::step`], so no method can
//! write plaintext past the encryption. Without TLS a step pays one branch.
//!
//! | first byte | answer |
//! |---|---|
//! | of a record | the handshake's, which has a time limit |
//! | a letter | in plaintext, HTTP's 400, because the client could read nothing else |
//! | any other | in plaintext, an error document |

use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use super::deadline::Awaits;
use super::{Closing, Environment, PlainConnection, Reservation, Scratch, Wish};
use crate::Limits;
use crate::rpc::Service;
use crate::tls::{Stage, begins_record};

/// Plaintext memory that is kept for the next step.
const KEPT_CAPACITY_MAX: usize = 256 << 10;

/// A connection and its end of TLS. It can be read as the plain connection.
#[derive(Debug)]
pub(super) struct Secured {
    plain: PlainConnection,
    tls: Option<Box<Tls>>,
}

#[derive(Debug)]
struct Tls {
    stage: Stage,
    /// What the stage holds.
    reserved: Reservation,
}

impl Deref for Secured {
    type Target = PlainConnection;

    #[inline(always)]
    fn deref(&self) -> &PlainConnection {
        &self.plain
    }
}

impl Secured {
    pub(super) fn new(now: Instant, limits: &Limits, stage: Option<Stage>) -> Self {
        let mut plain = PlainConnection::new(now, limits);
        if stage.is_some() {
            plain.awaits = Awaits::Handshake;
        }
        let tls = stage.map(|stage| Box::new(Tls { stage, reserved: Reservation::default() }));
        Self { plain, tls }
    }

    /// Takes bytes of the socket, decrypted if there is TLS, and appends the answer to `out`.
    #[inline]
    pub(super) fn receive<S: Service>(
        &mut self,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if self.plain.closing != Closing::Open {
            return self.plain.discard(bytes.len());
        }
        match &mut self.tls {
            None => self.plain.receive_plaintext(bytes, environment, out),
            Some(tls) => tls.receive(&mut self.plain, bytes, environment, out),
        }
    }

    /// Lets the connection take a step, whose output is encrypted if there is TLS.
    #[inline]
    pub(super) fn step<S, T>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
        step: impl FnOnce(&mut PlainConnection, &mut Environment<'_, S>, &mut Vec<u8>) -> T,
    ) -> T {
        match &mut self.tls {
            None => step(&mut self.plain, environment, out),
            Some(tls) => {
                let mut plaintext = mem::take(&mut environment.scratch.plaintext);
                let outcome = step(&mut self.plain, environment, &mut plaintext);
                tls.seal(&mut self.plain, plaintext, environment.scratch, out);
                outcome
            }
        }
    }

    /// Changes the connection by a step that has nothing to write.
    pub(super) fn update(&mut self, update: impl FnOnce(&mut PlainConnection)) {
        update(&mut self.plain);
    }

    /// Appends plaintext that is no part of a step; `false` if TLS is closed.
    pub(super) fn write(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> bool {
        match &mut self.tls {
            None => {
                out.extend_from_slice(plaintext);
                true
            }
            Some(tls) => tls.stage.send(plaintext, out).is_ok(),
        }
    }

    /// Tells the peer, under TLS, that nothing more follows.
    pub(super) fn close_notify(&mut self, out: &mut Vec<u8>) {
        if let Some(tls) = &mut self.tls {
            tls.stage.close(out);
        }
    }
}

impl Tls {
    /// Takes records, and runs what is in them.
    #[inline(never)]
    fn receive<S: Service>(
        &mut self,
        plain: &mut PlainConnection,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if self.stage.is_fresh() && !bytes.is_empty() && !begins_record(bytes) {
            return plain.refuse_plaintext(bytes, environment, out);
        }
        let mut plaintext = mem::take(&mut environment.scratch.plaintext);
        // Data that arrives with the last message of a handshake, before its outcome is known.
        let mut early = Vec::new();
        let outcome = self.stage.receive(bytes, out, |piece| match plain.session {
            Some(_) => plain.receive_plaintext(piece, environment, &mut plaintext),
            None => early.extend_from_slice(piece),
        });
        // There is no session either when the handshake was followed by what is no record.
        if plain.session.is_none()
            && let Some(session) = self.stage.session()
        {
            plain.session = Some(Arc::new(session));
            plain.receive_plaintext(&early, environment, &mut plaintext);
        }
        if self.stage.is_ended_by_peer() && !plain.ended_by_peer {
            plain.end(environment, &mut plaintext);
        }
        if outcome.is_err() {
            plain.cancel();
            plain.note_awaits(environment);
        }
        self.seal(plain, plaintext, environment.scratch, out);
    }

    /// Encrypts what a step has written, and says that nothing more follows if it was the last.
    fn seal(
        &mut self,
        plain: &mut PlainConnection,
        mut plaintext: Vec<u8>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) {
        if !plaintext.is_empty() && self.stage.send(&plaintext, out).is_err() {
            plain.cancel();
        }
        if matches!(plain.wish(), Wish::Finish | Wish::Close) {
            self.stage.close(out);
        }
        self.reserved.resize(self.stage.held_bytes(), &scratch.budget);
        plaintext.clear();
        if plaintext.capacity() > KEPT_CAPACITY_MAX {
            plaintext = Vec::new();
        }
        scratch.plaintext = plaintext;
    }
}
