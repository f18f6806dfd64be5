//! The messages by which an application sends a response.

use std::mem;
use std::sync::MutexGuard;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::exchange::{Conversation, Exchange, State};
use super::http::{Http, Kinds, Response};
use super::output::{Output, PIECE_BYTES_MAX, Received, bytes_of, complete, unexpected};
use super::response::ResponseHead;

impl Exchange {
    /// Takes a message of the response.
    pub(super) fn send_http<'py>(
        &self,
        py: Python<'py>,
        kind: Option<&str>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        let Kinds { start, body } = match &self.state().conversation {
            Conversation::Http(http) => http.kinds,
            Conversation::WebSocket(_) => return Ok(Received::Done),
        };
        match kind {
            Some(kind) if kind == body => self.send_body(py, message),
            Some(kind) if kind == start => {
                let head = ResponseHead::read(message)?;
                match &mut self.state().conversation {
                    Conversation::Http(Http {
                        response: it @ Response::Expected, status, ..
                    }) => {
                        *status = head.status();
                        *it = Response::Started { head, parts: None };
                        Ok(Received::Done)
                    }
                    _ => Err(unexpected(start, "the response has begun")),
                }
            }
            kind => Err(PyRuntimeError::new_err(format!(
                "expected a message {start} or {body}, got {}",
                kind.unwrap_or("one without a type")
            ))),
        }
    }

    fn send_body<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyDict>,
    ) -> PyResult<Received<'py>> {
        let body = message.get_item(intern!(py, "body"))?;
        let body = body.map(|body| bytes_of("body", &body)).transpose()?;
        let more = message.get_item(intern!(py, "more_body"))?;
        let is_last = !more.map(|more| more.is_truthy()).transpose()?.unwrap_or(false);
        self.send_part(py, body.as_deref().unwrap_or_default(), is_last)
    }

    /// Sends a part of the response's body.
    pub(super) fn send_part<'py>(
        &self,
        py: Python<'py>,
        body: &[u8],
        is_last: bool,
    ) -> PyResult<Received<'py>> {
        let mut state = self.state();
        let State { conversation, output, receivers, .. } = &mut *state;
        let Conversation::Http(Http { response, is_head, kinds, sent_bytes, .. }) = conversation
        else {
            return Ok(Received::Done);
        };
        let is_head = *is_head;
        let next = response.after(kinds.body, body.len(), is_last, is_head)?;
        *sent_bytes += if is_head { 0 } else { body.len() };
        let Output::Caller(call) = output else {
            return self.buffer(py, state, body, is_last);
        };
        let call = call.clone();
        let before = mem::replace(response, next);
        let receivers = if is_last { mem::take(receivers) } else { Vec::new() };
        drop(state);
        let body = if is_head { &[] } else { body };
        let mut text = Vec::new();
        if let Response::Started { head, .. } = &before {
            head.write(is_last.then_some(body.len()), is_head, &mut text);
            if is_last && text.len() + body.len() <= PIECE_BYTES_MAX {
                text.extend_from_slice(body);
                call.finish(py, text)?;
                return complete(py, receivers).map(|()| Received::Done);
            }
            call.put_part(py, &mut text);
        }
        text.extend_from_slice(body);
        let waits = !body.is_empty() && call.put_part(py, &mut text);
        if is_last {
            call.finish(py, Vec::new())?;
            return complete(py, receivers).map(|()| Received::Done);
        }
        self.sent(py, &call, waits)
    }

    /// Keeps a part of the body, or the whole response if it is the last, until the task's first
    /// step is over.
    fn buffer<'py>(
        &self,
        py: Python<'py>,
        mut state: MutexGuard<'_, State>,
        body: &[u8],
        is_last: bool,
    ) -> PyResult<Received<'py>> {
        let State { conversation, output, receivers, .. } = &mut *state;
        let Conversation::Http(http) = conversation else { return Ok(Received::Done) };
        let (Response::Started { head, parts }, Output::Buffer { text, .. }) =
            (&mut http.response, output)
        else {
            return Ok(Received::Done);
        };
        if is_last {
            let len = parts.as_ref().map_or(0, Vec::len) + body.len();
            text.reserve(256 + len);
            head.write(Some(len), http.is_head, text);
            if !http.is_head {
                text.extend_from_slice(parts.as_deref().unwrap_or_default());
                text.extend_from_slice(body);
            }
            let receivers = mem::take(receivers);
            http.response = Response::Complete;
            drop(state);
            return complete(py, receivers).map(|()| Received::Done);
        }
        let parts = parts.get_or_insert_default();
        parts.extend_from_slice(body);
        if parts.len() < PIECE_BYTES_MAX {
            return Ok(Received::Done);
        }
        drop(state);
        self.wait_in_buffer(py)
    }
}
