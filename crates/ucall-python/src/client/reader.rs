//! The parser as a Python object, for TLS and asyncio, which do the I/O themselves.

use std::mem;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::error::ClientFault;
use super::parser::{Message, Parser, Protocol};
use super::reply::Received;
use super::shared_memory::SharedMemory;
use crate::ffi;

/// Takes received bytes and returns replies and notifications.
#[pyclass(module = "ucall._core")]
pub(crate) struct ReplyReader {
    parser: Parser,
    /// The error after the messages that were returned last.
    fault: Option<ClientFault>,
    /// Whether the body of events has brought its reply.
    has_replied: bool,
}

#[pymethods]
impl ReplyReader {
    /// A reader for one connection and messages of up to `reply_bytes_max` bytes. With `events` an
    /// HTTP reply may be a stream of server-sent events. With `accept`, the proof of the upgrade,
    /// the connection is a WebSocket. With `codings` HTTP replies may be in gzip or zstd.
    #[new]
    #[pyo3(signature = (*, http, reply_bytes_max, events=false, accept=None, codings=false))]
    fn new(
        http: bool,
        reply_bytes_max: usize,
        events: bool,
        accept: Option<Vec<u8>>,
        codings: bool,
    ) -> Self {
        let protocol = match (accept, http, events) {
            (Some(accept), _, _) => Protocol::WebSocket { accept },
            (None, true, true) => Protocol::HttpEvents,
            (None, true, false) => Protocol::Http,
            (None, false, _) => Protocol::Raw,
        };
        let mut parser = Parser::new(protocol, reply_bytes_max);
        if codings {
            parser.accept_codings();
        }
        Self { parser, fault: None, has_replied: false }
    }

    /// Finds the parts of frames in memory that is shared with the server.
    fn share(&mut self, memory: &SharedMemory) {
        self.parser.share(memory.clone());
    }

    /// Takes the next bytes and returns the messages that they complete. An error after a message
    /// is raised by the next call.
    fn feed(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<Received>> {
        ffi::with_buffer(data, |bytes| self.take(bytes))?.map_err(|fault| fault.into_error(py))
    }

    /// Handles the end of the connection. Returns the reply that ends with it, if there is one.
    fn end(&mut self, py: Python<'_>) -> PyResult<Option<Received>> {
        if let Some(fault) = self.fault.take() {
            return Err(fault.into_error(py));
        }
        let ended = self.parser.end().and_then(|message| match message {
            Some(message) => self.received(message),
            None => Ok(None),
        });
        ended.map_err(|fault| fault.into_error(py))
    }

    /// Takes the payload of the last Ping out, which expects a Pong.
    fn take_ping<'py>(&mut self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.parser.take_ping().map(|payload| PyBytes::new(py, &payload))
    }

    /// Whether the connection was upgraded to WebSocket.
    #[getter]
    fn is_upgraded(&self) -> bool {
        self.parser.is_upgraded()
    }

    /// Whether no byte of a reply has been received.
    #[getter]
    fn is_idle(&self) -> bool {
        self.parser.is_idle()
    }

    /// Whether another request may be sent.
    #[getter]
    fn is_reusable(&self) -> bool {
        self.fault.is_none() && self.parser.is_reusable()
    }
}

impl ReplyReader {
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<Received>, ClientFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut messages = Vec::new();
        match self.take_into(bytes, &mut messages) {
            Err(fault) if messages.is_empty() => return Err(fault),
            Err(fault) => self.fault = Some(fault),
            Ok(()) => {}
        }
        Ok(messages)
    }

    fn take_into(
        &mut self,
        mut bytes: &[u8],
        messages: &mut Vec<Received>,
    ) -> Result<(), ClientFault> {
        while !bytes.is_empty() {
            let (target, bytes_max) = self.parser.space();
            let (now, later) = bytes.split_at(bytes_max.min(bytes.len()));
            target.extend_from_slice(now);
            bytes = later;
            while let Some(message) = self.parser.advance()? {
                messages.extend(self.received(message)?);
            }
        }
        Ok(())
    }

    /// Parses a message. A body of events has one reply, as its last event.
    fn received(&mut self, message: Message) -> Result<Option<Received>, ClientFault> {
        let fault = |clause: &str| Err(ClientFault::Protocol(clause.to_owned()));
        if message.ends_events {
            return match mem::take(&mut self.has_replied) {
                true => Ok(None),
                false => fault("events without a reply at their end"),
            };
        }
        if self.has_replied {
            return fault("an event after the reply");
        }
        let received = Received::from_message(message)?;
        self.has_replied = self.parser.has_events() && matches!(received, Received::Reply(_));
        Ok(Some(received))
    }
}
