//! The TLS of one socket, between the output of a transport and the sends of an engine.
//!
//! Plaintext stays where it is and is encrypted piece by piece, each after the one before is sent.
//! So a message of any length takes the memory of one piece. The transport is polled for output
//! only after the handshake.
#![forbid(unsafe_code)]

use std::fmt;

use ucall_buffer::Payload;
use ucall_proto::tls::{CertificateSummary, TlsConnection, TlsError};

/// Bytes of plaintext that are encrypted for one send.
const PIECE_BYTES_MAX: usize = 256 << 10;
/// Bytes that TLS adds to one piece.
const RECORDS_BYTES: usize = 1024;
/// Bytes of TLS's own output that may wait for a peer that does not read.
const TLS_OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Makes the TLS of each connection.
pub trait Security: Send {
    /// Reloads certificates and keys that have changed; returns why that failed, if it did.
    fn refresh(&self) -> Option<String>;

    /// Begins TLS on a connection, and appends its first bytes to `out`.
    ///
    /// # Errors
    /// TLS cannot begin with the current configuration.
    fn begin(&self, out: &mut Vec<u8>) -> Result<TlsConnection, TlsError>;
}

impl fmt::Debug for dyn Security {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Security")
    }
}

/// What was received under TLS.
pub(super) enum TlsEvent<'a> {
    /// The name in the peer's certificate, before any plaintext.
    PeerCertificate(Vec<u8>),
    Plaintext(&'a [u8]),
}

pub(super) struct Secure {
    tls: TlsConnection,
    /// TLS's own output.
    tls_output: Vec<u8>,
    /// The transport's output, of which `encrypted` bytes are encrypted.
    plaintext: Payload,
    encrypted: usize,
    /// There may be output that the transport does not know of.
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

    /// Whether the peer has sent `close_notify`.
    pub(super) fn is_ended_by_peer(&self) -> bool {
        self.tls.has_received_close_notify()
    }

    /// Whether there may be new output. Clears that.
    pub(super) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due)
    }

    /// Decrypts records, in place. After an error only the rest of TLS's own output is to be sent.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        mut handle_event: impl FnMut(TlsEvent<'_>),
    ) -> Result<(), TlsError> {
        let was_handshaking = self.tls.is_handshaking();
        let received = if was_handshaking {
            // The certificate is known only after the handshake, which may end in this read.
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

    /// Where the transport writes its next output, once that is wanted.
    pub(super) fn plaintext_buffer(&mut self) -> Option<&mut Payload> {
        let is_wanted = self.plaintext.is_empty() && !self.tls.is_handshaking();
        is_wanted.then_some(&mut self.plaintext)
    }

    /// Sends `close_notify` after the plaintext.
    pub(super) fn close(&mut self) {
        self.is_closing = true;
    }

    /// Writes the next bytes to send to an empty payload.
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

/// The names in a certificate in DER, which stay the same when it is renewed; for one without any
/// names, the certificate itself.
pub(super) fn certificate_name(certificate: &[u8]) -> Vec<u8> {
    let CertificateSummary { subject, mut names, .. } = CertificateSummary::of(certificate);
    if subject.is_empty() && names.is_empty() {
        return certificate.to_vec();
    }
    names.sort();
    names.insert(0, subject);
    names.join("\0").into_bytes()
}
