//! The parser as a Python object, for TLS and asyncio, which do the I/O themselves.

use pyo3::prelude::*;

use super::error::ClientFault;
use super::parser::Parser;
use super::reply::Reply;
use crate::ffi;

/// Takes received bytes and returns replies.
#[pyclass(module = "ucall._core")]
pub(crate) struct ReplyReader {
    parser: Parser,
    /// The error after the replies that were returned last.
    fault: Option<ClientFault>,
}

#[pymethods]
impl ReplyReader {
    /// A reader for one connection and replies of up to `reply_bytes_max` bytes.
    #[new]
    #[pyo3(signature = (*, http, reply_bytes_max))]
    fn new(http: bool, reply_bytes_max: usize) -> Self {
        Self { parser: Parser::new(http, reply_bytes_max), fault: None }
    }

    /// Takes the next bytes and returns the replies that they complete. An error after a reply is
    /// raised by the next call.
    fn feed(&mut self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<Reply>> {
        ffi::with_buffer(data, |bytes| self.take(bytes))?.map_err(|fault| fault.into_error(py))
    }

    /// Handles the end of the connection. Returns the reply that ends with it, if there is one.
    fn end(&mut self, py: Python<'_>) -> PyResult<Option<Reply>> {
        if let Some(fault) = self.fault.take() {
            return Err(fault.into_error(py));
        }
        let ended =
            self.parser.end().and_then(|message| message.map(Reply::from_message).transpose());
        ended.map_err(|fault| fault.into_error(py))
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
    fn take(&mut self, bytes: &[u8]) -> Result<Vec<Reply>, ClientFault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut replies = Vec::new();
        match self.take_into(bytes, &mut replies) {
            Err(fault) if replies.is_empty() => return Err(fault),
            Err(fault) => self.fault = Some(fault),
            Ok(()) => {}
        }
        Ok(replies)
    }

    fn take_into(&mut self, mut bytes: &[u8], replies: &mut Vec<Reply>) -> Result<(), ClientFault> {
        while !bytes.is_empty() {
            let (target, bytes_max) = self.parser.space();
            let (now, later) = bytes.split_at(bytes_max.min(bytes.len()));
            target.extend_from_slice(now);
            bytes = later;
            while let Some(message) = self.parser.advance()? {
                replies.push(Reply::from_message(message)?);
            }
        }
        Ok(())
    }
}
