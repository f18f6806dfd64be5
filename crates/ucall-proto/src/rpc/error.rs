//! The error object of a reply.

use std::borrow::Cow;

use crate::Limits;
use crate::json::{JsonError, Reader, Text, ValueKind, write_i64, write_string};

/// Why authentication failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuthenticationError {
    /// The credentials are missing, or invalid: 401, or -32004.
    Unauthorized,
    /// The credentials are valid, but lack a scope: 403, or -32004.
    InsufficientScope,
    /// The service cannot check them yet: 503, or -32003.
    Unavailable,
    /// The service could not check them, which is its own fault: 500, or -32603.
    Failed,
}

/// Why a call is refused whose caller is not authenticated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallRefusal {
    /// Why.
    pub error: AuthenticationError,
    /// The `WWW-Authenticate` of its response, if it is not that of all requests.
    pub challenge: Option<String>,
}

/// The error object of a reply (§5.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcError {
    /// What kind of error; the constants of this type name ours.
    pub code: i64,
    /// One short sentence.
    pub message: Cow<'static, str>,
    /// More about it, as JSON text.
    pub data: Option<Vec<u8>>,
}

impl RpcError {
    /// The text is no JSON.
    pub const PARSE_ERROR: i64 = -32700;
    /// It is JSON and no request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Params are missing, unexpected or of the wrong type.
    pub const INVALID_PARAMS: i64 = -32602;
    /// The handler failed.
    pub const INTERNAL_ERROR: i64 = -32603;
    /// The deadline passed.
    pub const DEADLINE_PASSED: i64 = -32001;
    /// The server is draining: the call was not started.
    pub const DRAINING: i64 = -32002;
    /// The call was ended before its reply, and may have run in part.
    pub const ABORTED: i64 = -32007;
    /// The caller has asked to cancel the call. The Language Server Protocol has this code.
    pub const REQUEST_CANCELLED: i64 = -32800;
    /// Too many calls at once.
    pub const OVERLOADED: i64 = -32003;
    /// The upstream of a relayed call is unavailable.
    pub const UPSTREAM_UNAVAILABLE: i64 = -32005;
    /// UDP: the reply is too long for an address that has sent no valid cookie, or there are too
    /// many calls to run one from such an address.
    pub const COOKIE_REQUIRED: i64 = -32006;
    /// The caller is not authenticated, or may not call.
    pub const UNAUTHORIZED: i64 = -32004;

    /// An error without data.
    pub fn new(code: i64, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Sets the data to a string that names what was expected.
    #[must_use]
    pub fn expected(mut self, what: &str) -> Self {
        let mut data = Vec::with_capacity(what.len() + 2);
        write_string(&mut data, what);
        self.data = Some(data);
        self
    }

    /// The error that an error object describes; its text is valid JSON.
    pub fn of_object(text: &[u8]) -> Self {
        let members = Reader::new(text).members([&b"code"[..], b"message", b"data"]);
        let [code, message, data] = members.unwrap_or_default();
        let number = code.filter(|code| Reader::new(code).kind() == ValueKind::Number);
        let code = number.and_then(|code| Reader::new(code).number().as_i64());
        let message = message.and_then(Text::of_quoted).map(|text| text.unescaped());
        let message = String::from_utf8_lossy(&message.unwrap_or_default()).into_owned();
        let error = Self::new(code.unwrap_or(Self::INTERNAL_ERROR), message);
        Self { data: data.map(<[u8]>::to_vec), ..error }
    }

    /// Appends the object.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(br#"{"code":"#);
        write_i64(out, self.code);
        out.extend_from_slice(br#","message":"#);
        write_string(out, &self.message);
        if let Some(data) = &self.data {
            out.extend_from_slice(br#","data":"#);
            out.extend_from_slice(data);
        }
        out.push(b'}');
    }

    /// The server has no memory for another request; the client may retry after a second.
    pub fn overloaded() -> Self {
        let mut error = Self::new(Self::OVERLOADED, "Overloaded");
        error.data = Some(br#"{"retry_after_ms":1000}"#.to_vec());
        error
    }

    /// The header of a response with an error, whose JSON text may have `retry_after_ms`: that time
    /// in whole seconds, else one.
    #[cold]
    pub(crate) fn retry_after_line(text: &[u8]) -> String {
        const NAME: &[u8] = br#""retry_after_ms":"#;
        let at = text.windows(NAME.len()).position(|window| window == NAME);
        let digits = at.and_then(|at| text.get(at + NAME.len()..)).unwrap_or_default().iter();
        let digits = digits.take_while(|byte| byte.is_ascii_digit()).take(9);
        let ms = digits.fold(0, |number: u64, digit| 10 * number + u64::from(digit - b'0'));
        format!("Retry-After: {}\r\n", ms.div_ceil(1000).max(1))
    }

    /// The call has to ask for a stream, and does not.
    pub fn items_required() -> Self {
        Self::invalid_request(
            "the method is a stream: expected a progressToken in _meta, or over HTTP \
             Accept: text/event-stream or application/x-ndjson",
        )
    }

    /// For replies that have no status for it, as over raw TCP.
    pub fn unauthenticated(error: AuthenticationError) -> Self {
        match error {
            AuthenticationError::Unauthorized => Self::new(Self::UNAUTHORIZED, "Unauthorized"),
            AuthenticationError::InsufficientScope => {
                Self::new(Self::UNAUTHORIZED, "Insufficient scope")
            }
            AuthenticationError::Unavailable => Self::overloaded(),
            AuthenticationError::Failed => Self::new(Self::INTERNAL_ERROR, "Internal error"),
        }
    }

    pub(crate) fn parse(fault: JsonError, limits: &Limits) -> Self {
        let error = Self::new(Self::PARSE_ERROR, "Parse error");
        match fault {
            JsonError::TooDeep => {
                let levels = limits.nesting_max;
                error
                    .expected(&format!("expected at most {levels} levels of nesting (max_nesting)"))
            }
            JsonError::Incomplete => {
                error.expected("expected a whole JSON document; it ends too early")
            }
            JsonError::Invalid => error.expected("expected a JSON document in UTF-8"),
        }
    }

    /// A document that is longer than `body_bytes_max`.
    pub(crate) fn document_too_long(limits: &Limits) -> Self {
        let bytes_max = limits.body_bytes_max;
        Self::invalid_request(&format!(
            "expected a document of at most {bytes_max} bytes (max_body_bytes)"
        ))
    }

    pub(crate) fn invalid_request(expected: &str) -> Self {
        Self::new(Self::INVALID_REQUEST, "Invalid Request").expected(expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_whole_seconds() {
        let line = |text: &str| RpcError::retry_after_line(text.as_bytes());
        for (ms, seconds) in [("1", 1), ("1000", 1), ("1001", 2), ("10000", 10), ("x", 1)] {
            let text = format!(r#"{{"error":{{"data":{{"retry_after_ms":{ms},"a":1}}}}}}"#);
            assert_eq!(line(&text), format!("Retry-After: {seconds}\r\n"));
        }
        assert_eq!(line(""), "Retry-After: 1\r\n");
        let long = format!(r#""retry_after_ms":{}"#, "9".repeat(40));
        assert_eq!(line(&long), "Retry-After: 1000000\r\n", "it is bounded");
        assert_eq!(line(r#""retry_after_ms":"#), "Retry-After: 1\r\n");
    }
}
