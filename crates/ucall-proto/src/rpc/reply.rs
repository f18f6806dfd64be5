//! One reply, written straight into the output.

use memchr::memmem;

use super::RpcError;
use super::route::{ROUTE_ID, write_error_response};
use crate::json::{Reader, extend_short};

/// What precedes the id of a reply.
const RESULT_HEAD: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
/// What precedes the result.
const RESULT_NAME: &[u8] = br#","result":"#;
/// What a reply has besides its id and its result.
pub(crate) const AROUND_RESULT_BYTES: usize = RESULT_HEAD.len() + RESULT_NAME.len() + 1;

/// The reply of one call, which the handler writes.
///
/// Nothing is sent before the call has ended, so an error may replace a result that was begun.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    id: Option<&'a [u8]>,
    /// Behind a reference: it was written just before, and a copy would wait for that.
    limit: &'a ReplyLimit,
    state: ReplyState,
}

/// How much may be written for one document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyLimit {
    /// Bytes of all its replies together.
    bytes_max: usize,
    /// The length of the output at which they are reached.
    len_max: usize,
}

impl ReplyLimit {
    /// A limit for bytes that are appended to `out` from now on.
    pub(crate) fn after(out: &[u8], bytes_max: usize) -> Self {
        Self { bytes_max, len_max: out.len() + bytes_max }
    }

    /// A limit for one part of a batch's reply, in an output of its own, if this one is for all.
    /// `written` are the bytes of the other parts, with a separator for each.
    pub(crate) fn for_part(&self, written: usize) -> Self {
        Self { bytes_max: self.bytes_max, len_max: self.bytes_max.saturating_sub(written + 1) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ReplyState {
    Empty,
    Result,
    Response,
    /// With its code.
    Error(i64),
}

/// Has a call of this id answered whose outcome no connection takes. `respond` gets its reply, of
/// up to `bytes_max` bytes, and `out` its memory, which is cleared.
pub fn reply_apart<T>(
    out: &mut Vec<u8>,
    id: Option<&[u8]>,
    bytes_max: usize,
    respond: impl FnOnce(&mut Reply<'_>) -> T,
) -> T {
    out.clear();
    let limit = ReplyLimit::after(out, bytes_max);
    let outcome = respond(&mut Reply::new(out, id, &limit));
    out.clear();
    outcome
}

impl<'a> Reply<'a> {
    /// A reply that is appended to `out`.
    pub(crate) fn new(out: &'a mut Vec<u8>, id: Option<&'a [u8]>, limit: &'a ReplyLimit) -> Self {
        Self { start: out.len(), out, id, limit, state: ReplyState::Empty }
    }

    /// Begins the result; the caller appends its JSON text to the returned buffer.
    #[inline(always)]
    pub fn result(&mut self) -> &mut Vec<u8> {
        self.out.truncate(self.start);
        self.state = ReplyState::Result;
        self.out.extend_from_slice(RESULT_HEAD);
        extend_short(self.out, self.id.unwrap_or(b"null"));
        self.out.extend_from_slice(RESULT_NAME);
        self.out
    }

    /// Begins the response of a route: the caller appends its status line, its headers and its
    /// body. See [`Service::respond`](crate::Service::respond).
    pub fn response(&mut self) -> &mut Vec<u8> {
        self.out.truncate(self.start);
        self.state = ReplyState::Response;
        self.out
    }

    /// A reply to the same request in an output of its own, whose outcome [`Reply::outcome`] has.
    pub fn apart<'b>(&self, out: &'b mut Vec<u8>) -> Reply<'b>
    where
        'a: 'b,
    {
        Reply::new(out, self.id, self.limit)
    }

    /// The text of the result, or the error.
    ///
    /// # Errors
    /// That which was replied with, or one that says that nothing was.
    pub fn outcome(&self) -> Result<&[u8], RpcError> {
        let text = self.out.get(self.start..).unwrap_or_default();
        match self.state {
            ReplyState::Result => Ok(text
                .get(self.out.len() - self.start - self.result_bytes()..)
                .unwrap_or_default()),
            ReplyState::Error(_) => {
                let error = Reader::new(text).members([b"error"]).and_then(|[error]| error);
                Err(error.map_or_else(no_reply, RpcError::of_object))
            }
            ReplyState::Empty | ReplyState::Response => Err(no_reply()),
        }
    }

    /// Replaces an error whose code MCP does not allow; see [`RpcError::for_mcp`].
    pub fn adapt_to_mcp(&mut self) {
        if let ReplyState::Error(code) = self.state
            && RpcError::is_foreign_to_mcp(code)
            && let Err(error) = self.outcome()
        {
            self.error(&error.for_mcp());
        }
    }

    /// The length of the buffer above which the reply is too large. Writers of long results check
    /// it now and then.
    pub fn len_max(&self) -> usize {
        self.limit.len_max
    }

    /// Replies with an error, and discards a result that was begun.
    pub fn error(&mut self, error: &RpcError) {
        self.out.truncate(self.start);
        self.state = ReplyState::Error(error.code);
        match self.id {
            None => {}
            Some(ROUTE_ID) => write_error_response(self.out, error),
            Some(_) => write_error_reply(self.out, self.id, error),
        }
    }

    /// The code of the error that is replied with, if any: also of that which [`Reply::end`] puts
    /// in the place of a missing or too long result.
    pub fn error_code(&self) -> Option<i64> {
        let end = usize::from(self.state == ReplyState::Result);
        match self.state {
            ReplyState::Error(code) => Some(code),
            _ if self.id.is_none() => None,
            ReplyState::Empty => Some(RpcError::INTERNAL_ERROR),
            _ if self.out.len() + end > self.limit.len_max => Some(RpcError::INTERNAL_ERROR),
            _ => None,
        }
    }

    /// The status of the response of a route, and the bytes of its body.
    pub fn response_summary(&self) -> Option<(u16, usize)> {
        let text = self.out.get(self.start..).unwrap_or_default();
        let status = std::str::from_utf8(text.get(9..12)?).ok()?.parse().ok()?;
        let body_at = memmem::find(text, b"\r\n\r\n")? + 4;
        Some((status, text.len() - body_at))
    }

    /// The bytes of the result so far.
    pub fn result_bytes(&self) -> usize {
        let head = RESULT_HEAD.len() + self.id.unwrap_or(b"null").len() + RESULT_NAME.len();
        match self.state {
            ReplyState::Result => self.out.len().saturating_sub(self.start + head),
            _ => 0,
        }
    }

    /// Whether the call is a notification, which gets no reply.
    pub fn is_notification(&self) -> bool {
        self.id.is_none()
    }

    /// Ends the reply. Discards it for a notification or a deferred call.
    #[inline(always)]
    pub(crate) fn end(&mut self, keep: bool) {
        if !keep || self.id.is_none() {
            return self.out.truncate(self.start);
        }
        if self.state == ReplyState::Result {
            self.out.push(b'}');
        }
        if self.out.len() > self.limit.len_max {
            self.refuse_too_large();
        } else if self.state == ReplyState::Empty {
            self.refuse_empty();
        }
    }

    #[cold]
    fn refuse_too_large(&mut self) {
        self.error(&too_large(self.limit.bytes_max));
    }

    #[cold]
    fn refuse_empty(&mut self) {
        self.error(&no_reply());
    }
}

fn no_reply() -> RpcError {
    RpcError::new(RpcError::INTERNAL_ERROR, "The handler did not reply")
}

/// The error in place of a reply that is longer than `bytes_max`.
pub(crate) fn too_large(bytes_max: usize) -> RpcError {
    RpcError::new(RpcError::INTERNAL_ERROR, "The reply is too large").expected(&format!(
        "expected at most {bytes_max} bytes, a whole batch's together (max_reply_bytes)"
    ))
}

/// Appends a whole reply that carries an error; a missing id is written as null (§5).
#[cold]
pub(crate) fn write_error_reply(out: &mut Vec<u8>, id: Option<&[u8]>, error: &RpcError) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.unwrap_or(b"null"));
    out.extend_from_slice(br#","error":"#);
    error.write(out);
    out.push(b'}');
}
