//! One socket's end of TLS, between what a hub writes and what an engine sends.
//!
//! What the hub writes stays as it is, where it lies, and is encrypted a piece at a time, each once
//! the one before is out: a message of any length takes no more memory than a piece of it. The hub
//! is asked for nothing before the handshake is over.
#![forbid(unsafe_code)]

use std::fmt;

use ucall_buffer::Payload;
use ucall_proto::tls::{CertificateSummary, TlsConnection, TlsError};

/// Plaintext that is encrypted in one go.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Records and their heads around that much.
const RECORDS_BYTES: usize = 1024;
/// Of what TLS itself answers, this much may wait for a peer that takes nothing.
const TLS_OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Makes this side's end of the TLS of each connection.
pub trait Security: Send {
    /// Looks whether what it is made from has changed; why that cannot be used, if it cannot.
    fn refresh(&self) -> Option<String>;

    /// The end of a connection that begins. What it says first goes behind `out`.
    ///
    /// # Errors
    /// There is none.
    fn begin(&self, out: &mut Vec<u8>) -> Result<TlsConnection, TlsError>;
}

impl fmt::Debug for dyn Security {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Security")
    }
}

/// What came over a connection.
pub(super) enum TlsEvent<'a> {
    /// The other side has shown a certificate, which names somebody. Before any plaintext.
    PeerCertificate(Vec<u8>),
    Plaintext(&'a [u8]),
}

pub(super) struct Secure {
    tls: TlsConnection,
    /// What TLS itself has to say.
    tls_output: Vec<u8>,
    /// What the hub has written, of which so many bytes are encrypted.
    plaintext: Payload,
    encrypted: usize,
    /// TLS itself has something to say, or its handshake is over, and nobody knows yet.
    is_due: bool,
    is_closing: bool,
}

impl Secure {
    pub(super) fn begin(security: &dyn Security) -> Result<Self, TlsError> {
        let mut tls_output = Vec::new();
        let tls = security.begin(&mut tls_output)?;
        let plaintext = Payload::new();
        Ok(Self { tls, tls_output, plaintext, encrypted: 0, is_due: false, is_closing: false })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the peer has said that nothing more follows.
    pub(super) fn is_ended_by_peer(&self) -> bool {
        self.tls.has_received_close_notify()
    }

    /// Whether there may be something to send that there was not before: once.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    /// Takes records; what was in them goes to `take`. After an error only the rest of the output
    /// is to be sent.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut handle_event: impl FnMut(TlsEvent<'_>),
    ) -> Result<(), TlsError> {
        let was_handshaking = self.tls.is_handshaking();
        let received = if was_handshaking {
            // Who it is from is known only when the handshake is over, which may be in one read.
            let mut early = Vec::new();
            let received =
                self.tls.receive(bytes, &mut self.tls_output, |plaintext| early.extend(plaintext));
            let session = self.tls.session();
            if let Some(certificate) = session.as_ref().and_then(|it| it.peer_certificates.first())
            {
                handle_event(TlsEvent::PeerCertificate(certificate_name(certificate)));
            }
            handle_event(TlsEvent::Plaintext(&early));
            received
        } else {
            self.tls.receive(bytes, &mut self.tls_output, |bytes| {
                handle_event(TlsEvent::Plaintext(bytes))
            })
        };
        self.is_due |= was_handshaking || !self.tls_output.is_empty();
        let is_flooded = self.tls_output.len() > TLS_OUTPUT_BYTES_MAX;
        let outcome = if is_flooded { received.and(Err(TlsError::TooLong)) } else { received };
        outcome.inspect_err(|_| {
            self.plaintext = Payload::new();
            self.encrypted = 0;
        })
    }

    /// Where the hub is to write what is sent next, once that is wanted.
    pub(super) fn plaintext_buffer(&mut self) -> Option<&mut Payload> {
        let is_wanted = self.plaintext.is_empty() && !self.tls.is_handshaking();
        is_wanted.then_some(&mut self.plaintext)
    }

    /// Lets nothing more follow what the hub has written.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Writes what is to be sent next, to an empty payload.
    pub(super) fn write_output(&mut self, output: &mut Payload) -> Result<(), TlsError> {
        let output = output.head_mut();
        output.append(&mut self.tls_output);
        if !self.plaintext.is_empty() && !self.tls.is_handshaking() {
            self.encrypt(output)?;
        }
        if self.is_closing && self.plaintext.is_empty() {
            self.tls.close(output);
        }
        Ok(())
    }

    fn encrypt(&mut self, output: &mut Vec<u8>) -> Result<(), TlsError> {
        let left = self.plaintext.len() - self.encrypted;
        let mut room = left.min(PIECE_BYTES_MAX);
        output.reserve(room + RECORDS_BYTES);
        for slice in self.plaintext.slices_from(self.encrypted) {
            let count = slice.len().min(room);
            self.tls.send(slice.get(..count).unwrap_or_default(), output)?;
            self.encrypted += count;
            room -= count;
            if room == 0 {
                break;
            }
        }
        if self.encrypted == self.plaintext.len() {
            self.plaintext.clear();
            self.encrypted = 0;
        }
        Ok(())
    }
}

/// Whom a certificate in DER names, in bytes that are the same when it is renewed under the same
/// names; of one that names nobody, itself.
pub(super) fn certificate_name(certificate: &[u8]) -> Vec<u8> {
    let CertificateSummary { subject, mut names, .. } = CertificateSummary::of(certificate);
    if subject.is_empty() && names.is_empty() {
        return certificate.to_vec();
    }
    names.sort();
    names.insert(0, subject);
    names.join("\0").into_bytes()
}
