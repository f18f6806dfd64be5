//! The head of an application's response, as the layers below take it.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::ffi;

/// Headers that the server writes: those of the connection, of a handshake, of the body's framing,
/// and the date.
const RESERVED: [&[u8]; 8] = [
    b"connection",
    b"date",
    b"keep-alive",
    b"sec-websocket-accept",
    b"sec-websocket-extensions",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// The head of a response that waits for the first part of its body.
pub(super) struct ResponseHead {
    status: u16,
    /// The headers' lines, with the blank one.
    lines: Vec<u8>,
    /// The length that the application has stated.
    length: Option<u64>,
}

impl ResponseHead {
    /// Reads the message that starts a response.
    pub(super) fn read(message: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = message.py();
        let status = message.get_item(intern!(py, "status"))?;
        let status: Option<u16> = status.and_then(|status| status.extract().ok());
        let status = status.filter(|status| (200..1000).contains(status)).ok_or_else(|| {
            PyValueError::new_err("status: expected an int from 200 on, of three digits")
        })?;
        Self::with_headers(status, message)
    }

    /// The head of a response without a body that denies a WebSocket.
    pub(super) fn forbidden() -> Self {
        Self { status: 403, lines: b"\r\n".to_vec(), length: None }
    }

    /// The lines of the headers in a message that accepts a WebSocket, with the blank one.
    pub(super) fn accepted_lines(message: &Bound<'_, PyDict>) -> PyResult<Vec<u8>> {
        Ok(Self::with_headers(101, message)?.lines)
    }

    fn with_headers(status: u16, message: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = message.py();
        let mut head = Self { status, lines: Vec::with_capacity(128), length: None };
        if let Some(headers) = message.get_item(intern!(py, "headers"))? {
            for header in headers.try_iter()? {
                head.add_header(&header?)?;
            }
        }
        head.lines.extend_from_slice(b"\r\n");
        Ok(head)
    }

    fn add_header(&mut self, header: &Bound<'_, PyAny>) -> PyResult<()> {
        let pair = match header.cast::<PyTuple>() {
            Ok(pair) => pair.clone(),
            Err(_) => {
                let items = header.try_iter()?.collect::<PyResult<Vec<_>>>()?;
                PyTuple::new(header.py(), items)?
            }
        };
        if pair.len() != 2 {
            return Err(PyValueError::new_err("headers: expected pairs of a name and a value"));
        }
        let (name, value) = (pair.get_item(0)?, pair.get_item(1)?);
        let (name, value) = (as_bytes(&name)?, as_bytes(&value)?);
        if name.is_empty() || !name.iter().copied().all(is_token) {
            let shown = name.escape_ascii();
            return Err(PyValueError::new_err(format!("headers: {shown} is no name of a header")));
        }
        if value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            let shown = name.escape_ascii();
            return Err(PyValueError::new_err(format!("headers: {shown}: a line break or a NUL")));
        }
        if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
            return Ok(());
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            if length.is_none() || self.length.is_some_and(|known| Some(known) != length) {
                return Err(PyValueError::new_err("headers: content-length: expected one number"));
            }
            self.length = length;
            return Ok(());
        }
        self.lines.extend_from_slice(name);
        self.lines.extend_from_slice(b": ");
        self.lines.extend_from_slice(value);
        self.lines.extend_from_slice(b"\r\n");
        Ok(())
    }

    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Whether a response with this status has no body (RFC 9110, section 6.4.1).
    fn is_bodiless(&self) -> bool {
        matches!(self.status, 204 | 304)
    }

    /// The length of the body that the application has stated; 0 for a status without one.
    pub(super) fn body_len(&self) -> Option<u64> {
        if self.is_bodiless() { Some(0) } else { self.length }
    }

    /// Appends the head. `whole` is the length of the body, if that is all there is.
    pub(super) fn write(&self, whole: Option<usize>, is_head: bool, out: &mut Vec<u8>) {
        let status = self.status;
        out.extend_from_slice(format!("HTTP/1.1 {status} {}\r\n", reason(status)).as_bytes());
        // The response to HEAD has the length that one to GET would have.
        let whole = whole.filter(|_| !is_head).map(|whole| whole as u64);
        match self.length.or(whole) {
            _ if self.is_bodiless() => {}
            Some(length) => {
                out.extend_from_slice(format!("content-length: {length}\r\n").as_bytes());
            }
            None if is_head => {}
            // The layer below looks for it in the first header.
            None => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        }
        out.extend_from_slice(&self.lines);
    }
}

fn as_bytes<'a>(object: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let bytes = object.cast::<PyBytes>().map_err(|_| {
        let found = ffi::type_name(object);
        PyTypeError::new_err(format!("headers: expected pairs of bytes, got {found}"))
    })?;
    Ok(bytes.as_bytes())
}

/// Whether a byte may be part of a header's name (RFC 9110, section 5.6.2).
pub(super) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The reason phrase of a status; empty for those that have none.
fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        418 => "I'm a Teapot",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        507 => "Insufficient Storage",
        511 => "Network Authentication Required",
        _ => "",
    }
}
