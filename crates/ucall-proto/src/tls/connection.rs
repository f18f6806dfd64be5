//! One end of one TLS connection.
//!
//! Records are decrypted in the caller's buffer; the start of an incomplete record is stored here.
//! rustls' unbuffered interface is a state machine that the caller polls for the next action:
//! [`TlsConnection::receive`] polls until no action is left, [`TlsConnection::send`] polls once,
//! because then only writing is left.
//!
//! | phase | leads to | when |
//! |---|---|---|
//! | `Handshake` | `Open` | the handshake is complete |
//! | `Handshake`, `Open` | `Failed` | the peer violated the protocol, or failed authentication |
//! | `Open` | `Closed` | we have sent `close_notify` |
//!
//! rustls stores one record at a time; the bytes stored here are bounded by the longest handshake
//! message.

use std::fmt;
use std::sync::Arc;

use rustls::CommonState;
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};

use super::{ClientConfig, ServerConfig, TlsError, TlsSession};

/// The first byte of a record that may begin a connection (RFC 8446 section 5.1).
const HANDSHAKE: u8 = 22;
/// Plaintext of one record (RFC 8446 section 5.1).
const RECORD_BYTES_MAX: usize = 16 << 10;
/// How much longer a record is than its plaintext, with every cipher suite of ours.
const RECORD_EXTRA_BYTES: usize = 32;
/// The longest message together with the headers of its records, which may be of one byte each.
const INPUT_BYTES_MAX: usize = 128 << 10;
/// A fatal alert in plaintext: decode_error (RFC 8446 section 6).
const DECODE_ERROR: &[u8] = &[21, 3, 3, 0, 2, 2, 50];
/// The largest empty buffer that is kept between records.
const CACHED_CAPACITY_MAX: usize = 32 << 10;

/// Whether bytes that begin a connection are TLS.
pub fn starts_tls_record(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

/// One end of one connection.
pub struct TlsConnection {
    inner: RustlsConnection,
    phase: Phase,
    is_fresh: bool,
    /// Of a server, until the first bytes arrive.
    config: Option<Arc<ServerConfig>>,
    close_notify_received: bool,
    /// The start of an incomplete record or handshake message.
    input: Vec<u8>,
    /// What was sent before the handshake was done.
    unsent: Vec<u8>,
}

enum RustlsConnection {
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Handshake,
    Open,
    Failed,
    Closed,
}

/// What is next.
enum TlsStep {
    /// A record was read; there may be more to do.
    Read,
    /// There may be more to do.
    Continue,
    /// The handshake needs more bytes.
    NeedsInput,
    /// All is done that can be; application data may be sent.
    Ready,
    /// The peer has sent `close_notify`.
    PeerClosed,
    /// Both have.
    Closed,
    Failed(rustls::Error),
}

impl TlsConnection {
    /// The server's end.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn server(config: Arc<ServerConfig>) -> Result<Self, TlsError> {
        let connection = UnbufferedServerConnection::new(config.clone()).map_err(TlsError::Peer)?;
        let mut tls = Self::new(RustlsConnection::Server(connection));
        tls.config = Some(config);
        Ok(tls)
    }

    /// Has the handshake use this configuration, if it has not begun.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn renew(&mut self, config: &Arc<ServerConfig>) -> Result<(), TlsError> {
        if self.config.as_ref().is_some_and(|before| !Arc::ptr_eq(before, config)) {
            *self = Self::server(config.clone())?;
        }
        Ok(())
    }

    /// The client's end of a connection to `name`, with its first bytes in `out`.
    ///
    /// # Errors
    /// rustls rejects the configuration.
    pub fn client(
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        out: &mut Vec<u8>,
    ) -> Result<Self, TlsError> {
        let connection = UnbufferedClientConnection::new(config, name).map_err(TlsError::Peer)?;
        let mut tls = Self::new(RustlsConnection::Client(connection));
        tls.receive(&mut [], out, |_| {})?;
        Ok(tls)
    }

    fn new(inner: RustlsConnection) -> Self {
        Self {
            inner,
            phase: Phase::Handshake,
            is_fresh: true,
            config: None,
            close_notify_received: false,
            input: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// Takes bytes from the peer. Passes plaintext to `take`, a record at a time, and appends the
    /// replies of TLS itself to `out`.
    ///
    /// # Errors
    /// The connection has failed. `out` ends with the alert; the caller sends it and closes.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), TlsError> {
        if self.phase == Phase::Failed {
            return Err(TlsError::Closed);
        }
        self.is_fresh &= bytes.is_empty();
        if !self.is_fresh {
            self.config = None;
        }
        let outcome = if self.input.is_empty() {
            let (used, outcome) = self.process(bytes, out, &mut take);
            self.input.extend_from_slice(bytes.get(used..).unwrap_or_default());
            outcome
        } else {
            let mut input = std::mem::take(&mut self.input);
            input.extend_from_slice(bytes);
            let (used, outcome) = self.process(&mut input, out, &mut take);
            input.drain(..used.min(input.len()));
            self.input = input;
            outcome
        };
        self.trim_input();
        let outcome = match outcome {
            Ok(()) if self.input.len() <= INPUT_BYTES_MAX => self.send_unsent(out),
            Ok(()) => Err(TlsError::TooLong),
            Err(error) => Err(error),
        };
        outcome.inspect_err(|error| {
            // rustls writes no alert for this. Before a version is agreed on, nothing is encrypted.
            if matches!(error, TlsError::TooLong) && self.common().protocol_version().is_none() {
                out.extend_from_slice(DECODE_ERROR);
            }
            self.fail();
        })
    }

    /// Encrypts `plaintext`, and appends it to `out`. Before the handshake is complete it is
    /// stored.
    ///
    /// # Errors
    /// Our side is closed, or the connection has failed.
    pub fn send(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        match self.phase {
            Phase::Handshake => {
                self.unsent.extend_from_slice(plaintext);
                Ok(())
            }
            Phase::Open => self.encrypt(plaintext, out),
            Phase::Failed | Phase::Closed => Err(TlsError::Closed),
        }
    }

    /// Appends `close_notify` to `out`. The peer may continue to send.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        if self.phase == Phase::Open {
            self.phase = Phase::Closed;
            // An alert that cannot be sent matters as little as one that is lost.
            let _ = self
                .write(RECORD_EXTRA_BYTES, out, |traffic, room| traffic.queue_close_notify(room));
        }
    }

    /// Whether both ends have not agreed yet.
    pub fn is_handshaking(&self) -> bool {
        self.phase == Phase::Handshake
    }

    /// Whether no bytes have arrived yet.
    pub fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    /// Bytes that wait here for others.
    pub fn held_bytes(&self) -> usize {
        self.input.capacity() + self.unsent.capacity()
    }

    /// Whether the peer has sent `close_notify`. A stream that ends without it may have been
    /// truncated by an attacker.
    pub fn has_received_close_notify(&self) -> bool {
        self.close_notify_received
    }

    /// The negotiated session; `None` before the handshake is complete, and after the connection
    /// has failed.
    pub fn session(&self) -> Option<TlsSession> {
        let has_agreed = matches!(self.phase, Phase::Open | Phase::Closed);
        has_agreed.then(|| TlsSession::of(self.common()))
    }

    fn common(&self) -> &CommonState {
        match &self.inner {
            RustlsConnection::Server(connection) => connection,
            RustlsConnection::Client(connection) => connection,
        }
    }

    /// Whether the connection waits for more bytes.
    fn is_idle(&self) -> bool {
        self.phase == Phase::Open && !self.common().wants_write()
    }

    /// Processes `bytes`; returns how many of them were used.
    fn process(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        take: &mut impl FnMut(&[u8]),
    ) -> (usize, Result<(), TlsError>) {
        let mut used = 0;
        loop {
            let rest = bytes.get_mut(used..).unwrap_or_default();
            let (discard, next) = self.inner.poll(rest, out, take);
            used += discard;
            match next {
                // Most input is one whole record, after which no action is left.
                TlsStep::Read if used >= bytes.len() && self.is_idle() => return (used, Ok(())),
                TlsStep::Read | TlsStep::Continue => {}
                TlsStep::NeedsInput | TlsStep::Closed => return (used, Ok(())),
                TlsStep::PeerClosed => self.close_notify_received = true,
                TlsStep::Ready => {
                    if self.phase == Phase::Handshake {
                        self.phase = Phase::Open;
                    }
                    return (used, Ok(()));
                }
                TlsStep::Failed(error) => {
                    self.write_alerts(bytes.get_mut(used..).unwrap_or_default(), out);
                    return (used, Err(TlsError::of(error)));
                }
            }
        }
    }

    /// Sends the plaintext that was stored during the handshake.
    #[inline]
    fn send_unsent(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        if self.unsent.is_empty() || self.phase != Phase::Open {
            return Ok(());
        }
        let unsent = std::mem::take(&mut self.unsent);
        self.encrypt(&unsent, out)
    }

    fn encrypt(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        // A record at a time, so that it is still in the cache when it is copied.
        for piece in plaintext.chunks(RECORD_BYTES_MAX) {
            let expected = piece.len() + RECORD_EXTRA_BYTES;
            self.write(expected, out, |traffic, room| traffic.encrypt(piece, room))?;
        }
        Ok(())
    }

    /// Appends the output of `write` to `out`, after reserving the expected number of bytes.
    fn write(
        &mut self,
        expected: usize,
        out: &mut Vec<u8>,
        write: impl Fn(&mut dyn TrafficWriter, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), TlsError> {
        loop {
            // Polls with all stored bytes: rustls counts those that it has read.
            let (discard, written) = match &mut self.inner {
                RustlsConnection::Server(connection) => write_if_ready(
                    connection.process_tls_records(&mut self.input),
                    expected,
                    out,
                    &write,
                ),
                RustlsConnection::Client(connection) => write_if_ready(
                    connection.process_tls_records(&mut self.input),
                    expected,
                    out,
                    &write,
                ),
            };
            self.input.drain(..discard.min(self.input.len()));
            if let Some(written) = written {
                return written;
            }
        }
    }

    /// Appends the alert for the peer's fault.
    fn write_alerts(&mut self, rest: &mut [u8], out: &mut Vec<u8>) {
        while self.common().wants_write() {
            if let (_, TlsStep::Failed(_)) = self.inner.poll(rest, out, &mut |_| {}) {
                return;
            }
        }
    }

    fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.input = Vec::new();
        self.unsent = Vec::new();
    }

    /// Bytes after the peer's last record are no TLS, and a large buffer is not kept.
    #[inline]
    fn trim_input(&mut self) {
        if self.close_notify_received {
            self.input.clear();
        }
        if self.input.is_empty() && self.input.capacity() > CACHED_CAPACITY_MAX {
            self.input = Vec::new();
        }
    }
}

impl RustlsConnection {
    #[inline]
    fn poll(
        &mut self,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
        take: &mut impl FnMut(&[u8]),
    ) -> (usize, TlsStep) {
        match self {
            RustlsConnection::Server(connection) => {
                advance(connection.process_tls_records(bytes), out, take)
            }
            RustlsConnection::Client(connection) => {
                advance(connection.process_tls_records(bytes), out, take)
            }
        }
    }
}

/// Performs the next action.
#[inline]
fn advance<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    out: &mut Vec<u8>,
    take: &mut impl FnMut(&[u8]),
) -> (usize, TlsStep) {
    let mut discard = status.discard;
    let next = match status.state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                Some(Ok(record)) => {
                    discard += record.discard;
                    take(record.payload);
                }
                Some(Err(error)) => break TlsStep::Failed(error),
                None => break TlsStep::Read,
            }
        },
        Ok(ConnectionState::WriteTraffic(_)) => TlsStep::Ready,
        Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out),
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            transmit.done();
            TlsStep::Continue
        }
        Ok(ConnectionState::BlockedHandshake) => TlsStep::NeedsInput,
        Ok(ConnectionState::PeerClosed) => TlsStep::PeerClosed,
        Ok(ConnectionState::Closed) => TlsStep::Closed,
        // We never offer early data, and other variants do not exist in this version.
        Ok(_) => TlsStep::Failed(rustls::Error::General("unknown TLS state".into())),
        Err(error) => TlsStep::Failed(error),
    };
    (discard, next)
}

/// Appends a record of the handshake.
fn encode<Data>(mut data: EncodeTlsData<'_, Data>, out: &mut Vec<u8>) -> TlsStep {
    let start = out.len();
    let mut room = RECORD_EXTRA_BYTES;
    loop {
        out.resize(start + room, 0);
        match data.encode(out.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(start + written);
                return TlsStep::Continue;
            }
            Err(EncodeError::InsufficientSize(needed)) => room = needed.required_size,
            Err(error @ EncodeError::AlreadyEncoded) => {
                out.truncate(start);
                return TlsStep::Failed(rustls::Error::General(error.to_string()));
            }
        }
    }
}

/// The application data that the final state may write.
trait TrafficWriter {
    fn encrypt(&mut self, plaintext: &[u8], room: &mut [u8]) -> Result<usize, EncryptError>;
    fn queue_close_notify(&mut self, room: &mut [u8]) -> Result<usize, EncryptError>;
}

impl<Data> TrafficWriter for WriteTraffic<'_, Data> {
    fn encrypt(&mut self, plaintext: &[u8], room: &mut [u8]) -> Result<usize, EncryptError> {
        WriteTraffic::encrypt(self, plaintext, room)
    }

    fn queue_close_notify(&mut self, room: &mut [u8]) -> Result<usize, EncryptError> {
        WriteTraffic::queue_close_notify(self, room)
    }
}

/// Writes in the state that allows it; `None` if rustls must be polled again.
fn write_if_ready<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    expected: usize,
    out: &mut Vec<u8>,
    write: &impl Fn(&mut dyn TrafficWriter, &mut [u8]) -> Result<usize, EncryptError>,
) -> (usize, Option<Result<(), TlsError>>) {
    let discard = status.discard;
    let mut traffic = match status.state {
        Ok(ConnectionState::WriteTraffic(traffic)) => traffic,
        Ok(ConnectionState::EncodeTlsData(data)) => {
            encode(data, out);
            return (discard, None);
        }
        Ok(ConnectionState::TransmitTlsData(transmit)) => {
            transmit.done();
            return (discard, None);
        }
        Ok(ConnectionState::PeerClosed) => return (discard, None),
        Ok(_) => return (discard, Some(Err(TlsError::Closed))),
        Err(error) => return (discard, Some(Err(TlsError::Peer(error)))),
    };
    let (start, mut room) = (out.len(), expected);
    loop {
        out.resize(start + room, 0);
        match write(&mut traffic, out.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(start + written);
                return (discard, Some(Ok(())));
            }
            Err(EncryptError::InsufficientSize(needed)) => room = needed.required_size,
            Err(EncryptError::EncryptExhausted) => {
                out.truncate(start);
                return (discard, Some(Err(TlsError::KeysExhausted)));
            }
        }
    }
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsConnection").field("phase", &self.phase).finish_non_exhaustive()
    }
}
