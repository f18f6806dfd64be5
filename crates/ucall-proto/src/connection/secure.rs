//! A connection under TLS: the same one, with a [`Stage`] between it and the bytes of the socket.
//!
//! A step takes the stage out of the connection, runs as it would without one, and writes its
//! plaintext to memory of the worker; all of it is encrypted at once, so that replies that leave
//! together are one record. A connection without TLS pays for this with one look at an empty
//! field.
//!
//! | what comes first | is answered |
//! |---|---|
//! | a record | by the handshake, which has a limit in time |
//! | a letter | in plaintext, by HTTP's 400, because nothing else could be read |
//! | anything else | in plaintext, by an error document |

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use super::{Awaits, Connection, Environment, Scratch, Wish, raw};
use crate::Limits;
use crate::http1::{HttpError, Method};
use crate::rpc::Service;
use crate::tls::{Session, Stage, begins_record};

/// Memory for plaintext that is kept for the next step.
const SPARE_CAPACITY_MAX: usize = 256 << 10;

impl Connection {
    /// A connection that was accepted just now, with the server's end of TLS.
    pub fn secure(now: Instant, limits: &Limits, stage: Stage) -> Self {
        Self { stage: Some(Box::new(stage)), awaits: Awaits::Handshake, ..Self::new(now, limits) }
    }

    /// What TLS has agreed on; `None` without TLS, and before.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_deref()
    }

    /// Whether the next bytes belong to a handshake.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.awaits == Awaits::Handshake
    }

    /// Says, under TLS, that nothing more follows. The connection is to be closed.
    pub fn say_goodbye(&mut self, out: &mut Vec<u8>) {
        if let Some(stage) = &mut self.stage {
            stage.close(out);
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.session.is_some()
    }

    /// Takes records, and runs what comes out of them.
    #[inline(never)]
    pub(super) fn receive_records<S: Service>(
        &mut self,
        mut stage: Box<Stage>,
        bytes: &mut [u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if stage.is_fresh() && !bytes.is_empty() && !begins_record(bytes) {
            return self.refuse_plaintext(bytes, environment, out);
        }
        let mut plaintext = mem::take(&mut environment.scratch.plaintext);
        // What comes together with the last word of a handshake, before its outcome can be known.
        let mut early = Vec::new();
        let outcome = stage.receive(bytes, out, |piece| match self.session {
            Some(_) => self.receive_plaintext(piece, environment, &mut plaintext),
            None => early.extend_from_slice(piece),
        });
        // There is none either when the handshake was followed by what is no record.
        if self.session.is_none()
            && let Some(session) = stage.session()
        {
            self.session = Some(Arc::new(session));
            self.receive_plaintext(&early, environment, &mut plaintext);
        }
        if stage.is_ended_by_peer() && !self.ended_by_peer {
            self.end(environment, &mut plaintext);
        }
        if outcome.is_err() {
            self.exchanges.cancel();
            self.stop_reading();
            self.note_awaits(environment);
        }
        self.seal(stage, plaintext, environment.scratch, out);
    }

    /// Takes a step whose output is encrypted.
    #[inline(never)]
    pub(super) fn step_encrypted<S, T>(
        &mut self,
        stage: Box<Stage>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
        step: impl FnOnce(&mut Self, &mut Environment<'_, S>, &mut Vec<u8>) -> T,
    ) -> T {
        let mut plaintext = mem::take(&mut environment.scratch.plaintext);
        let outcome = step(self, environment, &mut plaintext);
        self.seal(stage, plaintext, environment.scratch, out);
        outcome
    }

    /// Encrypts what a step has written, says goodbye if it was the last, and puts the stage back.
    fn seal(
        &mut self,
        mut stage: Box<Stage>,
        mut plaintext: Vec<u8>,
        scratch: &mut Scratch,
        out: &mut Vec<u8>,
    ) {
        if !plaintext.is_empty() && stage.send(&plaintext, out).is_err() {
            self.exchanges.cancel();
            self.stop_reading();
        }
        if matches!(self.wish(), Wish::Finish | Wish::Close) {
            stage.close(out);
        }
        self.tls_reserved.resize(stage.held_bytes(), &scratch.budget);
        self.stage = Some(stage);
        plaintext.clear();
        if plaintext.capacity() > SPARE_CAPACITY_MAX {
            plaintext = Vec::new();
        }
        scratch.plaintext = plaintext;
    }

    /// Says that TLS is spoken here to somebody who does not speak it.
    fn refuse_plaintext<S: Service>(
        &mut self,
        bytes: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if bytes.first().is_some_and(u8::is_ascii_alphabetic) {
            self.refuse_http(&HttpError::PlaintextOnTls, Method::Other, environment, out);
        } else {
            raw::refuse_plaintext(out);
            self.stop_reading();
        }
        self.note_awaits(environment);
    }
}
