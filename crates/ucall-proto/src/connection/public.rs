//! [`Connection`]: the interface of a connection for the layer that owns its socket.
//!
//! It reads the state of the [`PlainConnection`] inside. Every method that may write runs as a
//! step.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::{SharedMemory, Target};

use super::secure::Secured;
use super::{Environment, PlainConnection, Protocol};
use crate::Limits;
use crate::rpc::{CallNumber, ResultPart, RpcError, Service};
use crate::tls::{ServerConfig, TlsConnection, TlsError};

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionProtocol {
    /// HTTP/1, before an upgrade.
    Http,
    /// WebSocket.
    WebSocket,
    /// JSON documents on TCP.
    Raw,
}

impl PlainConnection {
    /// The protocol of a client; `None` before its first byte.
    pub fn protocol(&self) -> Option<ConnectionProtocol> {
        match &self.protocol {
            Protocol::Unknown => None,
            Protocol::Http(_) => Some(ConnectionProtocol::Http),
            Protocol::WebSocket(_) => Some(ConnectionProtocol::WebSocket),
            Protocol::Raw(_) => Some(ConnectionProtocol::Raw),
        }
    }
}

/// One connection, under TLS or without.
#[derive(Debug)]
pub struct Connection {
    inner: Secured,
}

impl Deref for Connection {
    type Target = PlainConnection;

    #[inline(always)]
    fn deref(&self) -> &PlainConnection {
        &self.inner
    }
}

impl Connection {
    /// A connection that was accepted just now.
    pub fn new(now: Instant, limits: &Limits) -> Self {
        Self { inner: Secured::new(now, limits, None) }
    }

    /// A connection that was accepted just now, with the server's end of TLS.
    pub fn with_tls(now: Instant, limits: &Limits, tls: TlsConnection) -> Self {
        Self { inner: Secured::new(now, limits, Some(tls)) }
    }

    /// Has a handshake that begins use this configuration.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn renew_tls(&mut self, config: &Arc<ServerConfig>) -> Result<(), TlsError> {
        self.inner.tls_mut().map_or(Ok(()), |tls| tls.renew(config))
    }

    /// Takes bytes, runs the requests that they complete and appends the replies to the
    /// output.
    #[inline]
    pub fn receive<S: Service>(&mut self, bytes: &mut [u8], environment: &mut Environment<'_, S>) {
        self.inner.receive(bytes, environment);
    }

    /// A target for the next bytes of a large body. Its memory grows with the bytes that have
    /// arrived. Without memory, the reply says that the client may retry.
    pub fn poll_target<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
    ) -> Option<Target> {
        self.inner.step(environment, PlainConnection::target)
    }

    /// Takes back the target of [`Connection::poll_target`] with the bytes that filled it.
    pub fn return_target<S: Service>(
        &mut self,
        target: Target,
        environment: &mut Environment<'_, S>,
    ) {
        self.inner.step(environment, |plain, environment| {
            plain.return_target(target, environment);
        });
    }

    /// The peer has shut down its side: answers the input. Calls go on if the peer may read their
    /// replies; then [`PlainConnection::is_half_closed`], and the peer may turn out to have left.
    pub fn handle_eof<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.handle_eof(environment);
    }

    /// Takes the outcome of a deferred call: the JSON text of its result, or an error. One that
    /// nothing waits for any more is dropped.
    pub fn complete<S: Service>(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        environment: &mut Environment<'_, S>,
    ) {
        self.inner.step(environment, |plain, environment| {
            plain.complete(number, outcome, environment);
        });
    }

    /// As [`Connection::complete`], with the JSON text of a result and the parts that it refers to.
    pub fn complete_with_parts<S: Service>(
        &mut self,
        number: CallNumber,
        text: &[u8],
        parts: Vec<ResultPart>,
        environment: &mut Environment<'_, S>,
    ) {
        self.inner.step(environment, |plain, environment| {
            plain.complete_with_parts(number, text, parts, environment);
        });
    }

    /// Appends an item of a stream, whose value is JSON text. It precedes the reply
    /// of [`Connection::complete`]. Returns `false` if nothing waits for it any more.
    pub fn write_item<S: Service>(
        &mut self,
        number: CallNumber,
        value: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> bool {
        self.inner
            .step(environment, |plain, environment| plain.write_item(number, value, environment))
    }

    /// Appends messages that answer no request, such as notifications to the peer. The caller has
    /// framed them as [`PlainConnection::message_framing`] says.
    pub fn write_messages(&mut self, framed: &[u8], out: &mut Vec<u8>) {
        self.inner.write(framed, out);
    }

    /// Sets whether the peer waits for messages of the server, so that it is not idle without a
    /// call.
    pub fn set_awaits_messages(&mut self, awaits_messages: bool) {
        self.inner.update(|plain| plain.set_awaits_messages(awaits_messages));
    }

    /// Goes on with requests that had to wait, now that replies have been written or sent, or that
    /// there is memory again.
    pub fn resume<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.step(environment, PlainConnection::resume);
    }

    /// Decodes another piece of a body, once a turn while [`PlainConnection::is_decoding`].
    pub fn decode_piece<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.step(environment, PlainConnection::decode_piece);
    }

    /// Shares memory with a client that asks for it, or refuses that. The server's preamble is
    /// written here unless it `was_sent`.
    pub fn share_memory<S: Service>(
        &mut self,
        memory: Option<Box<dyn SharedMemory>>,
        was_sent: bool,
        environment: &mut Environment<'_, S>,
    ) {
        self.inner.step(environment, |plain, environment| {
            plain.share_memory(memory, was_sent, environment);
        });
    }

    /// A deadline of the connection has passed.
    pub fn handle_timeout<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.step(environment, PlainConnection::handle_timeout);
    }

    /// Bytes of an incomplete request have arrived, and [`Connection::receive`] or
    /// [`Connection::return_target`] will take them.
    pub fn handle_progress<S>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.update(|plain| plain.update_wait_state(environment));
    }

    /// Lets the incomplete request exceed the budget. The caller allows one connection at a time,
    /// so that connections that wait for each other's memory all finish, and failed peers are
    /// detected.
    pub fn allow_over_budget(&mut self) {
        self.inner.update(PlainConnection::allow_over_budget);
    }

    /// Tells the application of a WebSocket that the server closes it. [`Connection::close_notify`]
    /// tells the client.
    pub fn report_closing<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        self.inner.step(environment, PlainConnection::report_closing);
    }

    /// Appends the Close frame of a WebSocket, and the `close_notify` of TLS. The caller then
    /// closes the connection.
    pub fn close_notify(&mut self, out: &mut Vec<u8>) {
        self.inner.close_notify(out);
    }
}
