//! Health checks of one upstream, which are no calls: each on a connection of its own.
//!
//! | state | results in a row | next |
//! |---|---|---|
//! | healthy | `failures_max` failures | unhealthy |
//! | unhealthy | `successes_min` successes | healthy |
//!
//! An upstream is healthy until it has failed. A check that this process cannot make, for lack of
//! descriptors or of an address, is none.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Id, is_shortage};
use ucall_proto::http1::{ResponseError, ResponsePart, ResponseReader};
use ucall_proto::json::write_string;
use ucall_server::{NativeContext, NativeOutcome};

use crate::http::{self, HttpReplyReader};
use crate::options::{Destination, HealthOptions, UpstreamAddress};
use crate::replies::{ReplyReader, UpstreamReply};
use crate::request::{CallContext, end_call, write_call};
use crate::secure::Transport;

/// What is known of the health of one upstream.
#[derive(Debug)]
pub(crate) struct HealthCheck {
    options: Arc<HealthOptions>,
    is_healthy: bool,
    /// Results in a row that contradict that.
    contrary: u32,
    next_at: Instant,
    attempt: Option<Attempt>,
}

/// A check that is in progress.
#[derive(Debug)]
struct Attempt {
    /// Its socket, or its attempt to connect.
    id: Id,
    is_open: bool,
    until: Instant,
    transport: Transport,
    output: Vec<u8>,
    reader: CheckReader,
    /// Why it has failed, if it has.
    result: Option<Result<(), String>>,
}

/// Reads what a check gets.
#[derive(Debug)]
enum CheckReader {
    /// A response of which only the status counts.
    Status(ResponseReader),
    Raw(ReplyReader),
    Http(HttpReplyReader),
}

impl HealthCheck {
    pub(crate) fn new(options: Arc<HealthOptions>, now: Instant) -> Self {
        Self { options, is_healthy: true, contrary: 0, next_at: now, attempt: None }
    }

    pub(crate) fn is_healthy(&self) -> bool {
        self.is_healthy
    }

    /// The id of its socket, or of its attempt to connect.
    pub(crate) fn id(&self) -> Option<Id> {
        self.attempt.as_ref().map(|attempt| attempt.id)
    }

    /// An attempt to connect has ended.
    pub(crate) fn connected(&mut self, socket: io::Result<Id>) {
        match (socket, &mut self.attempt) {
            (Ok(socket), Some(attempt)) => (attempt.id, attempt.is_open) = (socket, true),
            (Err(error), _) => self.disconnected(&error),
            (Ok(_), None) => {}
        }
    }

    /// The socket is closed.
    pub(crate) fn disconnected(&mut self, error: &io::Error) {
        let Some(attempt) = &mut self.attempt else { return };
        let reason = match error.kind() {
            _ if is_shortage(error) && !attempt.is_open => return self.attempt = None,
            io::ErrorKind::UnexpectedEof => "it has closed the connection".to_owned(),
            _ => error.to_string(),
        };
        attempt.result.get_or_insert(Err(reason));
    }

    /// Reads what has arrived.
    pub(crate) fn received(&mut self, bytes: &mut [u8]) {
        let Some(attempt) = &mut self.attempt else { return };
        let Attempt { transport, reader, result, .. } = attempt;
        let received = transport.receive(bytes, |plaintext| {
            if result.is_none() {
                *result = reader.read(plaintext);
            }
        });
        if let Err(error) = received {
            result.get_or_insert(Err(format!("TLS has failed: {error}")));
        }
    }

    /// Begins the check that is due, or goes on with it. Returns why the upstream has become
    /// unhealthy, or that it has become healthy.
    pub(crate) fn advance(
        &mut self,
        address: &UpstreamAddress,
        destination: &Destination,
        reply_bytes_max: usize,
        now: Instant,
        context: &mut dyn NativeContext,
    ) -> Option<Result<(), String>> {
        if self.attempt.is_none() && self.next_at <= now {
            let Destination::At(at) = destination else { return None };
            self.next_at = now + self.options.interval;
            let attempt = match context.connect(at) {
                Ok(id) => self.begin(id, address, reply_bytes_max, now),
                Err(error) if is_shortage(&error) => return None,
                Err(error) => Err(error.to_string()),
            };
            match attempt {
                Ok(attempt) => self.attempt = Some(attempt),
                Err(reason) => return self.count(Err(reason)),
            }
        }
        let attempt = self.attempt.as_mut()?;
        if attempt.is_open
            && attempt.result.is_none()
            && let Err(error) = attempt.transport.send(attempt.id, &mut attempt.output, context)
        {
            attempt.result = Some(Err(format!("TLS has failed: {error}")));
        }
        let is_late = attempt.until <= now;
        let late = || format!("no answer in {} ms", self.options.timeout.as_millis());
        let result = attempt.result.take().or_else(|| is_late.then(|| Err(late())))?;
        self.stop(context);
        self.count(result)
    }

    /// Ends the check that is in progress.
    pub(crate) fn stop(&mut self, context: &mut dyn NativeContext) {
        if let Some(attempt) = self.attempt.take() {
            context.close(attempt.id);
        }
    }

    fn count(&mut self, result: Result<(), String>) -> Option<Result<(), String>> {
        if result.is_ok() == self.is_healthy {
            self.contrary = 0;
            return None;
        }
        self.contrary += 1;
        let needed = match self.is_healthy {
            true => self.options.failures_max,
            false => self.options.successes_min,
        };
        if self.contrary < needed {
            return None;
        }
        (self.is_healthy, self.contrary) = (result.is_ok(), 0);
        Some(result)
    }

    fn begin(
        &self,
        id: Id,
        address: &UpstreamAddress,
        reply_bytes_max: usize,
        now: Instant,
    ) -> Result<Attempt, String> {
        let transport = address.tls.as_ref().map(Transport::secure).transpose();
        let transport = transport.map_err(|error| format!("TLS has failed: {error}"))?;
        let mut output = Vec::new();
        let reader = match (&address.http, self.options.is_path()) {
            (target, true) => {
                let target = target.as_deref();
                http::write_get(&mut output, &self.options.ask, &address.label, target);
                CheckReader::Status(ResponseReader::new(usize::MAX))
            }
            (Some(target), false) => {
                let body = self.call();
                target.write_head(&mut output, body.len(), &CallContext::default());
                output.extend_from_slice(&body);
                let mut reader = HttpReplyReader::new(reply_bytes_max);
                reader.begin(false);
                CheckReader::Http(reader)
            }
            (None, false) => {
                output = self.call();
                CheckReader::Raw(ReplyReader::new(reply_bytes_max))
            }
        };
        let (until, transport) = (now + self.options.timeout, transport.unwrap_or_default());
        Ok(Attempt { id, is_open: false, until, transport, output, reader, result: None })
    }

    /// The call of a check that is one.
    fn call(&self) -> Vec<u8> {
        let (mut quoted, mut call) = (Vec::new(), Vec::new());
        write_string(&mut quoted, &self.options.ask);
        let method = quoted.get(1..quoted.len() - 1).unwrap_or_default();
        write_call(&mut call, method, None, 0);
        end_call(&mut call, Some(http::ID));
        call
    }

    /// When [`HealthCheck::advance`] is due, even without events.
    pub(crate) fn deadline(&self, destination: &Destination) -> Option<Instant> {
        match &self.attempt {
            Some(attempt) => Some(attempt.until),
            None => matches!(destination, Destination::At(_)).then_some(self.next_at),
        }
    }
}

impl CheckReader {
    /// Reads the next bytes. Returns how the check has ended, if it has.
    fn read(&mut self, bytes: &[u8]) -> Option<Result<(), String>> {
        let mut outcome = None;
        let handle = |reply: UpstreamReply| {
            if let NativeOutcome::Reply(reply) = reply.outcome {
                outcome = Some(reply);
            }
            true
        };
        let read = match self {
            Self::Status(reader) => return read_status(reader, bytes),
            Self::Raw(reader) => reader.read(bytes, handle),
            Self::Http(reader) => reader.read(bytes, handle),
        };
        match (outcome, read) {
            (Some(Ok(_)), _) => Some(Ok(())),
            (Some(Err(error)), _) => {
                let data = String::from_utf8_lossy(error.data.as_deref().unwrap_or_default());
                Some(Err(format!("it has replied with {} {} {data}", error.code, error.message)))
            }
            (None, read) => read.err().map(Err),
        }
    }
}

fn read_status(reader: &mut ResponseReader, bytes: &[u8]) -> Option<Result<(), String>> {
    match reader.read(bytes) {
        Ok((_, Some(ResponsePart::Head(head)))) if (200..300).contains(&head.status) => {
            Some(Ok(()))
        }
        Ok((_, Some(ResponsePart::Head(head)))) => {
            Some(Err(format!("it has replied with HTTP status {} {}", head.status, head.reason)))
        }
        Err(ResponseError::Invalid(what)) => Some(Err(format!("it has replied with {what}"))),
        Ok(_) | Err(ResponseError::BodyTooLarge(_)) => None,
    }
}
