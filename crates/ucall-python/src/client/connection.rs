//! A plain connection: sends a request and receives its reply without the interpreter's lock.
//!
//! A call without delays takes two system calls after a check of the idle socket: one send, and one
//! receive that waits as long as the socket's timeout. Only when those do not finish the call does
//! it poll, for the time left until the deadline.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::error::ClientFault;
use super::notification::Notification;
use super::parser::{Message, Parser, Protocol};
use super::reply::{Received, Reply};
use super::request::Request;
use super::shared_memory::SharedMemory;
use super::socket::{Deadline, IdleState, Socket, duration, peek_idle};

/// A connected socket and its received bytes.
#[pyclass(module = "ucall._core")]
pub(crate) struct ClientConnection {
    /// `None` after any error.
    socket: Option<Socket>,
    parser: Parser,
    http: bool,
    /// A connection that was idle longer is not reused.
    idle_max: Duration,
    /// The end of the last exchange; `None` before the first.
    idle_since: Option<Instant>,
    /// Requests that were sent, at least in part.
    requests: u64,
    drain: DrainNotice,
    memory: Option<SharedMemory>,
}

/// What the server has said of its drain.
#[derive(Debug, Default)]
struct DrainNotice {
    has_begun: bool,
    /// How many requests it has read, once it reads no more.
    read: Option<u64>,
}

impl DrainNotice {
    fn take(&mut self, notification: &Notification) {
        if let Some(read) = notification.drain() {
            (self.has_begun, self.read) = (true, read.or(self.read));
        }
    }
}

#[pymethods]
impl ClientConnection {
    /// Takes over a connected descriptor in blocking mode, whose server may share memory. With
    /// `codings` replies may be in gzip or zstd.
    #[new]
    #[pyo3(signature = (
        descriptor, *, http, reply_bytes_max, idle_max_s, memory=None, codings=false
    ))]
    fn new(
        descriptor: RawFd,
        http: bool,
        reply_bytes_max: usize,
        idle_max_s: f64,
        memory: Option<&Bound<'_, SharedMemory>>,
        codings: bool,
    ) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(PyValueError::new_err("the descriptor is invalid"));
        }
        // SAFETY: Python's socket was detached from the descriptor, which this owns now.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let protocol = if http { Protocol::Http } else { Protocol::Raw };
        let mut parser = Parser::new(protocol, reply_bytes_max);
        if codings {
            parser.accept_codings();
        }
        let memory = memory.map(|memory| memory.get().clone());
        if let Some(memory) = &memory {
            parser.share(memory.clone());
        }
        Ok(Self {
            socket: Some(Socket::new(descriptor)),
            parser,
            memory,
            http,
            idle_max: duration(idle_max_s)?,
            idle_since: None,
            requests: 0,
            drain: DrainNotice::default(),
        })
    }

    /// Sends a request and returns its reply.
    ///
    /// Returns `None` if a reused connection turned out to be closed, and no byte was sent. After
    /// that, and after any exception, the connection is closed.
    fn exchange(
        &mut self,
        py: Python<'_>,
        request: &Bound<'_, Request>,
        timeout: Option<f64>,
    ) -> PyResult<Option<Reply>> {
        let timeout = timeout.map(duration).transpose()?;
        let request = request.get();
        request.check_decided()?;
        let outcome = self.run(py, request, timeout);
        match &outcome {
            Ok(Some(_)) => self.idle_since = Some(Instant::now()),
            _ => self.socket = None,
        }
        outcome
    }

    /// Whether another request may be sent, as far as is known.
    #[getter]
    fn is_reusable(&self) -> bool {
        self.socket.is_some() && self.parser.is_reusable() && !self.drain.has_begun
    }

    /// The memory that is shared with the server.
    #[getter]
    fn memory(&self) -> Option<SharedMemory> {
        self.memory.clone()
    }

    /// Closes the connection.
    fn close(&mut self) {
        self.socket = None;
    }
}

/// The progress of an exchange, which continues after a signal.
struct Progress<'a> {
    request: &'a Request,
    timeout: Option<Duration>,
    deadline: Deadline,
    sent: usize,
    /// Whether it has waited, so that less than the timeout is left.
    has_waited: bool,
}

impl ClientConnection {
    fn run(
        &mut self,
        py: Python<'_>,
        request: &Request,
        timeout: Option<Duration>,
    ) -> PyResult<Option<Reply>> {
        if self.is_stale() {
            return Ok(None);
        }
        let deadline = Deadline::after(timeout);
        self.requests += 1;
        let placed = match &self.memory {
            Some(memory) if request.is_frame() => py.detach(|| memory.placed(request)),
            _ => None,
        };
        let sent = placed.as_ref().unwrap_or(request);
        let mut progress =
            Progress { request: sent, timeout, deadline, sent: 0, has_waited: false };
        loop {
            match py.detach(|| self.advance(&mut progress)) {
                Ok(reply) => {
                    reply.check(py, request)?;
                    // The client's wait may end a little after the server's: the server's reply
                    // then counts.
                    if reply.is_deadline_error() && progress.deadline.is_over() {
                        return Err(ClientFault::TimedOut.into_error(py));
                    }
                    return Ok(Some(reply));
                }
                Err(ClientFault::Interrupted) => py.check_signals()?,
                Err(ClientFault::System(_) | ClientFault::Closed { .. })
                    if progress.sent == 0 && self.idle_since.is_some() =>
                {
                    return Ok(None);
                }
                Err(fault) => return Err(self.error_of(py, fault, &progress)),
            }
        }
    }

    /// The exception of an exchange. It says if the server cannot have read the request, and if
    /// what it refuses is compressed.
    #[cold]
    fn error_of(&self, py: Python<'_>, fault: ClientFault, progress: &Progress<'_>) -> PyErr {
        let is_unread =
            progress.sent == 0 || self.drain.read.is_some_and(|read| read < self.requests);
        let refuses_compressed =
            progress.request.is_compressed && matches!(fault, ClientFault::Http(..));
        let error = fault.into_error(py);
        let marks =
            [("may_have_run", is_unread, false), ("_was_compressed", refuses_compressed, true)];
        for (name, applies, value) in marks {
            if applies && let Err(failed) = error.value(py).setattr(name, value) {
                return failed;
            }
        }
        error
    }

    /// Whether an idle connection is unusable. The last newline of a raw reply may still arrive.
    fn is_stale(&self) -> bool {
        let Some(socket) = &self.socket else { return true };
        let Some(idle_since) = self.idle_since else { return false };
        idle_since.elapsed() > self.idle_max
            || !self.parser.is_reusable()
            || match socket.peek() {
                IdleState::Quiet => false,
                IdleState::Bytes(byte) => self.http || !byte.is_ascii_whitespace(),
                IdleState::Closed => true,
            }
    }

    fn advance(&mut self, progress: &mut Progress<'_>) -> Result<Reply, ClientFault> {
        let Some(socket) = &mut self.socket else {
            return Err(ClientFault::Closed { within_reply: false });
        };
        let drain = &mut self.drain;
        let mut exchange = Exchange { socket, parser: &mut self.parser };
        if let Some(early_reply) = exchange.send(progress)? {
            // The server replied before it had the whole request, and will not read another.
            self.socket = None;
            return exchange_reply(early_reply, drain, || Err(ClientFault::WrongReply));
        }
        if !self.http && progress.request.expects_nothing() {
            return Ok(Reply::nothing());
        }
        let first = exchange.receive(progress)?;
        exchange_reply(first, drain, || match exchange.parser.advance()? {
            Some(next) => Ok(next),
            None => exchange.receive(progress),
        })
    }
}

/// The two halves of a connection, in one exchange.
struct Exchange<'a> {
    socket: &'a mut Socket,
    parser: &'a mut Parser,
}

impl Exchange<'_> {
    /// Sends the rest. Returns a reply that arrives before the whole request was sent.
    fn send(&mut self, progress: &mut Progress<'_>) -> Result<Option<Message>, ClientFault> {
        let bytes = progress.request.bytes();
        let len = progress.request.len();
        while progress.sent < len {
            if progress.sent > 0 && progress.deadline.is_over() {
                return Err(ClientFault::TimedOut);
            }
            let sent = match progress.request.attached() {
                [] => self.socket.send(bytes.get(progress.sent..).unwrap_or_default()),
                _ => self.socket.send_pieces(progress.request, progress.sent),
            };
            match sent {
                Ok(sent) => progress.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    progress.has_waited = true;
                    let ready = self.socket.wait(true, progress.deadline)?;
                    if ready.readable
                        && let Some(message) = self.receive_at_once()?
                    {
                        return Ok(Some(message));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    return Err(ClientFault::Interrupted);
                }
                // The server may have sent the reason before it closed.
                Err(error) => {
                    return match self.receive_final_reply(progress.deadline) {
                        Some(message) => Ok(Some(message)),
                        None => Err(ClientFault::System(error)),
                    };
                }
            }
        }
        Ok(None)
    }

    fn receive_final_reply(&mut self, deadline: Deadline) -> Option<Message> {
        while !deadline.is_over() {
            match self.receive_at_once() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(_) => return None,
            }
        }
        None
    }

    /// Reads the bytes that arrived while sending.
    fn receive_at_once(&mut self) -> Result<Option<Message>, ClientFault> {
        let received = self.receive_more(true)?;
        if received == 0 {
            return match self.parser.end()? {
                Some(message) => Ok(Some(message)),
                None => Err(ClientFault::Closed { within_reply: false }),
            };
        }
        self.parser.advance()
    }

    fn receive_more(&mut self, at_once: bool) -> io::Result<usize> {
        let (target, bytes_max) = self.parser.space();
        self.socket.receive(target, bytes_max, at_once)
    }

    /// Receives until a reply is complete.
    fn receive(&mut self, progress: &mut Progress<'_>) -> Result<Message, ClientFault> {
        loop {
            let received = if progress.has_waited {
                self.socket.wait(false, progress.deadline)?;
                self.receive_more(true)?
            } else {
                progress.has_waited = true;
                self.socket.set_receive_timeout(progress.timeout)?;
                self.receive_more(false)?
            };
            if received == 0 {
                let closed = ClientFault::Closed { within_reply: false };
                return self.parser.end()?.ok_or(closed);
            }
            if let Some(message) = self.parser.advance()? {
                return Ok(message);
            }
        }
    }
}

/// The first reply of some messages. Notifications before it, except that of a drain, are dropped:
/// subscriptions receive them by `ucall._client.channel`.
fn exchange_reply(
    first: Message,
    drain: &mut DrainNotice,
    mut next: impl FnMut() -> Result<Message, ClientFault>,
) -> Result<Reply, ClientFault> {
    let mut message = first;
    loop {
        match Received::from_message(message)? {
            Received::Reply(reply) => return Ok(reply),
            Received::Notification(notification) => {
                drain.take(&notification);
                message = next()?;
            }
        }
    }
}

/// The state of an idle connection: `"quiet"`, `"bytes"` or `"closed"`.
#[pyfunction]
pub(crate) fn peek(descriptor: RawFd) -> &'static str {
    match peek_idle(descriptor) {
        IdleState::Quiet => "quiet",
        IdleState::Bytes(_) => "bytes",
        IdleState::Closed => "closed",
    }
}
