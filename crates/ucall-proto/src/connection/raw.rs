//! JSON documents one after another, each reply ended by a newline, in whatever order they finish.

use super::calls::{DocumentOutcome, RequestContext, run_document, run_outlined};
use super::http_framing::HttpFraming;
use super::{Environment, PlainConnection, Protocol, Step};
use crate::Limits;
use crate::http1::{ErrorBody, HttpError};
use crate::json::JsonError;
use crate::rpc::frame::FRAME_BYTE;
use crate::rpc::{CallerIdentity, DocumentOutline, RpcError, Service, write_error_reply};
use crate::tls::starts_tls_record;

/// The state of the current document, while it is incomplete.
#[derive(Debug, Default)]
pub(super) struct Raw {
    partial: Option<Box<DocumentOutline>>,
    /// The length of the frame that is being received, as far as it is known.
    pub(super) frame_bytes: usize,
    /// The caller, if the service requires authentication.
    pub(super) identity: Option<CallerIdentity>,
}

impl Raw {
    /// The memory of the outline of the current document.
    pub(super) fn held_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.held_bytes())
    }

    /// Discards the document that is being received.
    pub(super) fn discard_document(&mut self) {
        (self.partial, self.frame_bytes) = (None, 0);
    }

    /// Whether the current document is incomplete.
    pub(super) fn is_partial(&self) -> bool {
        self.partial.is_some() || self.frame_bytes > 0
    }
}

impl PlainConnection {
    pub(super) fn is_raw(&self) -> bool {
        matches!(self.protocol, Protocol::Raw(_))
    }

    /// Replies that the protocol is unknown. TLS clients display an HTTP reply, but report any
    /// other as broken TLS.
    #[cold]
    pub(super) fn refuse_unknown<S: Service>(
        &mut self,
        bytes: &[u8],
        environment: &mut Environment<'_, S>,
    ) {
        if starts_tls_record(bytes) && self.session.is_none() {
            self.refuse_http(&HttpError::TlsOnPlaintext, ErrorBody::Text, environment);
        } else {
            refuse_unknown(environment.limits, environment.out);
            self.discard_input();
        }
    }

    /// Runs the document that `rest` starts with.
    #[inline(never)]
    pub(super) fn step_raw<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let limits = environment.limits;
        let space = rest.iter().take_while(|byte| b" \t\r\n".contains(byte)).count();
        match rest.get(space) {
            Some(b'{' | b'[') if space == 0 => {}
            Some(&FRAME_BYTE) if space == 0 => return self.step_raw_frame(rest, environment),
            Some(b'{' | b'[' | &FRAME_BYTE) | None => return Step::Consumed(space),
            Some(_) => return self.refuse_raw(JsonError::Invalid, limits, environment.out),
        }
        // Bytes beyond the limit are not read, so that the reply is the same however the document
        // is split.
        let window = rest.get(..limits.body_bytes_max).unwrap_or(rest);
        match self.scan_partial(window, limits) {
            Ok(true) => {}
            Ok(false) => return self.wait_for_more(rest.len(), limits, environment.out),
            Err(fault) => return self.refuse_raw(fault, limits, environment.out),
        }
        if environment.service.requires_authentication()
            && let Protocol::Raw(Raw { identity: Some(identity), .. }) = &self.protocol
        {
            environment.service.set_identity(identity);
        }
        let request = self.requests + 1;
        let context = RequestContext { request, head: None, session: self.session.as_ref() };
        match run_document::<false, S>(window, context, environment) {
            Ok((ran, len)) => {
                self.end_raw(request, ran, environment);
                Step::Consumed(len)
            }
            Err(JsonError::Incomplete) if rest.len() > window.len() => {
                self.wait_for_more(rest.len(), limits, environment.out)
            }
            Err(JsonError::Incomplete) if environment.scratch.is_full(limits) => {
                self.refuse_with(&RpcError::overloaded(), environment.out)
            }
            Err(JsonError::Incomplete) => self.scan_new(rest, limits, environment.out),
            Err(fault) => self.refuse_raw(fault, limits, environment.out),
        }
    }

    /// A document has run as the request of this number.
    #[inline(always)]
    pub(super) fn end_raw<S: Service>(
        &mut self,
        request: u64,
        ran: DocumentOutcome,
        environment: &mut Environment<'_, S>,
    ) {
        self.requests = request;
        match ran {
            DocumentOutcome::Replied => environment.out.push(b'\n'),
            DocumentOutcome::NoReply => {}
            DocumentOutcome::Deferred(reply) => {
                self.exchanges.push(request, HttpFraming::default(), *reply);
            }
        }
        if !environment.scratch.cancel_requests.is_empty() {
            self.cancel_requested(environment);
        }
        if self.is_last(request, environment) {
            self.discard_input();
        }
    }

    /// Takes the outline of the first document in `input`, if it is long and complete.
    pub(super) fn take_long_raw(
        &mut self,
        input: &[u8],
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Option<(Box<DocumentOutline>, usize)> {
        let Protocol::Raw(raw) = &mut self.protocol else { return None };
        let window = input.get(..limits.body_bytes_max).unwrap_or(input);
        match raw.partial.as_mut()?.scan(window, limits) {
            Ok(Some(len)) if len > limits.long_bytes_min => Some((raw.partial.take()?, len)),
            Ok(_) => None,
            Err(fault) => {
                self.refuse_raw(fault, limits, out);
                None
            }
        }
    }

    /// Runs a long document.
    pub(super) fn run_long_raw<S: Service>(
        &mut self,
        text: &[u8],
        outline: &DocumentOutline,
        environment: &mut Environment<'_, S>,
    ) {
        if environment.service.requires_authentication()
            && let Protocol::Raw(Raw { identity: Some(identity), .. }) = &self.protocol
        {
            environment.service.set_identity(identity);
        }
        let request = self.requests + 1;
        let context = RequestContext { request, head: None, session: self.session.as_ref() };
        match run_outlined(text, outline, context, environment) {
            Ok(ran) => self.end_raw(request, ran, environment),
            Err(fault) => {
                self.refuse_raw(fault, environment.limits, environment.out);
            }
        }
    }

    /// Scans the new bytes of an incomplete document. Returns `true` if there is none, or if it is
    /// complete now.
    #[inline]
    fn scan_partial(&mut self, rest: &[u8], limits: &Limits) -> Result<bool, JsonError> {
        let Protocol::Raw(raw) = &mut self.protocol else { return Ok(true) };
        let Some(partial) = &mut raw.partial else { return Ok(true) };
        let is_whole = partial.scan(rest, limits)?.is_some();
        if is_whole {
            raw.partial = None;
        }
        Ok(is_whole)
    }

    #[cold]
    fn scan_new(&mut self, rest: &[u8], limits: &Limits, out: &mut Vec<u8>) -> Step {
        if let Protocol::Raw(raw) = &mut self.protocol {
            raw.partial = Some(Box::default());
        }
        match self.scan_partial(rest, limits) {
            Ok(_) => self.wait_for_more(rest.len(), limits, out),
            Err(fault) => self.refuse_raw(fault, limits, out),
        }
    }

    fn wait_for_more(&mut self, len: usize, limits: &Limits, out: &mut Vec<u8>) -> Step {
        if len <= limits.body_bytes_max {
            return Step::Incomplete;
        }
        self.refuse_with(&RpcError::document_too_long(limits), out)
    }

    #[cold]
    fn refuse_raw(&mut self, fault: JsonError, limits: &Limits, out: &mut Vec<u8>) -> Step {
        self.refuse_with(&RpcError::parse(fault, limits), out)
    }

    pub(super) fn refuse_with(&mut self, error: &RpcError, out: &mut Vec<u8>) -> Step {
        write_error_line(error, out);
        self.discard_input();
        Step::Incomplete
    }
}

/// Says that the peer ended its side within a document.
pub(super) fn refuse_truncated(limits: &Limits, out: &mut Vec<u8>) {
    write_error_line(&RpcError::parse(JsonError::Incomplete, limits), out);
}

/// Replies to plaintext on a port that expects TLS.
pub(super) fn refuse_plaintext(out: &mut Vec<u8>) {
    write_error_line(&RpcError::invalid_request("expected TLS on this port"), out);
}

/// Replies to an unknown protocol.
pub(super) fn refuse_unknown(limits: &Limits, out: &mut Vec<u8>) {
    write_error_line(&RpcError::parse(JsonError::Invalid, limits), out);
}

/// Says that there is no memory for a document.
pub(super) fn write_overloaded(out: &mut Vec<u8>) {
    write_error_line(&RpcError::overloaded(), out);
}

/// Replies that a document was not complete in time, or had not begun in that for a head.
pub(super) fn refuse_timeout(in_head: bool, limits: &Limits, out: &mut Vec<u8>) {
    let timeout = if in_head { limits.head_timeout } else { limits.body_timeout };
    let seconds = timeout.as_secs();
    let error = RpcError::new(RpcError::PARSE_ERROR, "Parse error")
        .expected(&format!("expected the rest of the document within {seconds} s"));
    write_error_line(&error, out);
}

fn write_error_line(error: &RpcError, out: &mut Vec<u8>) {
    write_error_reply(out, None, error);
    out.push(b'\n');
}
