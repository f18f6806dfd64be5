//! What is wrong with a request as HTTP, as opposed to JSON-RPC, and the status it gets.
//!
//! One table maps a kind to its status and its explanation, so that the two cannot part.

use std::fmt;

use super::method::Methods;

/// An error that gets a 4xx or 5xx reply, after which the connection closes.
///
/// All kinds but [`HttpError::AuthenticationFailed`], [`HttpError::AuthenticationUnavailable`],
/// [`HttpError::Overloaded`] and [`HttpError::Draining`] are the peer's fault. [`fmt::Display`]
/// states what was expected, and names the limit that was exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpError {
    /// 400: the request line is not `method SP target SP version`.
    RequestLineMalformed,
    /// 400: the target is neither a path, nor an `http` address, nor the `*` of OPTIONS.
    TargetMalformed,
    /// 400: a line ended by LF alone.
    LineFeedAlone,
    /// 400: a CR that no LF follows.
    CarriageReturnAlone,
    /// 400: NUL or another control character in a line.
    ControlCharacter,
    /// 400: an empty or invalid header name, or a line without a colon.
    HeaderNameMalformed,
    /// 400: white space between a header name and its colon.
    SpaceBeforeColon,
    /// 400: a header continued on the next line.
    HeaderFolded,
    /// 400: HTTP/1.1 without `Host`.
    HostMissing,
    /// 400: more than one `Host`.
    HostRepeated,
    /// 400: a `Host` that is not a host with an optional port.
    HostMalformed,
    /// 400: a `Content-Length` that is not a number below 2^64.
    ContentLengthMalformed,
    /// 400: more than one `Content-Length`, alike or not.
    ContentLengthRepeated,
    /// 400: `Content-Length` together with `Transfer-Encoding`.
    LengthAndTransferEncoding,
    /// 400: `Transfer-Encoding` on HTTP/1.0.
    TransferEncodingOnHttp10,
    /// 400: `chunked` twice or not last, or an invalid list.
    TransferEncodingMalformed,
    /// 400: more than one `Origin`.
    OriginRepeated,
    /// 400: a `Ucall-Timeout-Ms` that is not a number below 2^64, or more than one.
    TimeoutMalformed,
    /// 400: a chunk size that is not hexadecimal digits, or overflows.
    ChunkSizeMalformed,
    /// 400: a chunk extension that is not `;name`, `;name=value` or `;name="value"`.
    ChunkExtensionMalformed,
    /// 400: the data of a chunk is not followed by CRLF.
    ChunkUnterminated,
    /// 400: the body is not what its content coding says.
    ContentCodingMalformed,
    /// 400: the body is in zstd with a window of more than 8 MiB.
    ZstdWindowTooLarge,
    /// 400: chunk extensions and trailers exceed their limit together.
    ChunkOverheadTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// 400: an upgrade to WebSocket whose key is missing, repeated, or not base64 of 16 bytes.
    WebSocketKeyMalformed,
    /// 400: an upgrade to WebSocket with a body.
    WebSocketBody,
    /// 400: a `bearer.` subprotocol that is not base64url of visible characters, or comes with an
    /// `Authorization` header.
    WebSocketTokenMalformed,
    /// 400: plaintext where TLS is spoken.
    PlaintextOnTls,
    /// 400: TLS where plaintext is spoken.
    TlsOnPlaintext,
    /// 401: the credentials are missing, or invalid.
    Unauthorized,
    /// 403: the credentials are valid, but lack a scope.
    InsufficientScope,
    /// 403: a `Host` that this server does not answer to.
    HostForbidden,
    /// 403: an `Origin` that may not call this server.
    OriginForbidden,
    /// 404: neither the path `/` nor that of a route.
    NotFound,
    /// 405: a method that the path does not have.
    MethodNotAllowed {
        /// Those that it has.
        allow: Methods,
    },
    /// 408: the head was not complete in time.
    HeadTimeout,
    /// 408: the body was not complete in time.
    BodyTimeout,
    /// 413: the body is larger than the limit.
    BodyTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// 413: the body is decoded to more than the limit.
    DecodedBodyTooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// 413: the body is decoded to more than its length times the limit.
    BodyRatioTooLarge {
        /// The limit, a factor.
        limit: u64,
    },
    /// 415: a body in a content coding that is not supported, or in several.
    ContentCodingUnsupported,
    /// 415: a body in several parts, as forms send files.
    MultipartUnsupported,
    /// 417: an `Expect` other than `100-continue`.
    ExpectationUnknown,
    /// 426: an upgrade to WebSocket with another version than 13.
    WebSocketVersionUnsupported,
    /// 431: request line and headers are larger than the limit.
    HeadTooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// 431: more headers than the limit.
    TooManyHeaders {
        /// The limit in headers.
        limit: usize,
    },
    /// 500: the server failed to authenticate the request.
    AuthenticationFailed,
    /// 501: a transfer coding other than `chunked`.
    TransferCodingUnknown,
    /// 503: the server cannot check the credentials yet.
    AuthenticationUnavailable,
    /// 503: the server has no memory for another request.
    Overloaded,
    /// 503: the server drains, and accepts no WebSockets.
    Draining,
    /// 505: a version other than HTTP/1.0 and HTTP/1.1.
    VersionUnsupported,
}

impl HttpError {
    /// The status code.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.status_and_detail().0
    }

    /// The reason phrase of the status code (RFC 9110, section 15).
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self.status() {
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            413 => "Content Too Large",
            415 => "Unsupported Media Type",
            417 => "Expectation Failed",
            426 => "Upgrade Required",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            501 => "Not Implemented",
            503 => "Service Unavailable",
            505 => "HTTP Version Not Supported",
            _ => "Bad Request",
        }
    }

    /// The error for a byte that is not allowed at its position in a line.
    #[cold]
    pub(super) fn for_byte(byte: u8) -> Self {
        match byte {
            b'\n' => Self::LineFeedAlone,
            b'\r' => Self::CarriageReturnAlone,
            _ => Self::ControlCharacter,
        }
    }

    fn status_and_detail(&self) -> (u16, &'static str) {
        match self {
            Self::RequestLineMalformed => (400, "the request line must read like: POST / HTTP/1.1"),
            Self::TargetMalformed => {
                (400, "the request target must be a path, an http address, or * for OPTIONS")
            }
            Self::PlaintextOnTls => {
                (400, "this port speaks TLS; the address must begin with https://")
            }
            Self::TlsOnPlaintext => {
                (400, "this port speaks no TLS; the address must begin with http://")
            }
            Self::LineFeedAlone => (400, "lines must end with CR LF, not with LF alone"),
            Self::CarriageReturnAlone => (400, "a CR must be followed by a LF"),
            Self::ControlCharacter => (400, "control characters are not allowed here"),
            Self::HeaderNameMalformed => (400, "a header must read like: name: value"),
            Self::SpaceBeforeColon => (400, "no white space is allowed before a header's colon"),
            Self::HeaderFolded => (400, "a header must not continue on the next line"),
            Self::HostMissing => (400, "HTTP/1.1 requires a Host header"),
            Self::HostRepeated => (400, "only one Host header is allowed"),
            Self::HostMalformed => (400, "the Host header must be a host, or host:port"),
            Self::ContentLengthMalformed => {
                (400, "Content-Length must be decimal digits below 2^64")
            }
            Self::ContentLengthRepeated => (400, "only one Content-Length is allowed"),
            Self::LengthAndTransferEncoding => {
                (400, "Content-Length and Transfer-Encoding must not be combined")
            }
            Self::TransferEncodingOnHttp10 => (400, "HTTP/1.0 has no Transfer-Encoding"),
            Self::TransferEncodingMalformed => {
                (400, "Transfer-Encoding must name chunked once, and last")
            }
            Self::OriginRepeated => (400, "only one Origin header is allowed"),
            Self::TimeoutMalformed => {
                (400, "Ucall-Timeout-Ms must be sent once, in decimal digits")
            }
            Self::ChunkSizeMalformed => {
                (400, "a chunk size must be at most 16 hexadecimal digits, then CR LF or ;")
            }
            Self::ChunkExtensionMalformed => {
                (400, "a chunk extension must read like: ;name or ;name=value or ;name=\"value\"")
            }
            Self::ChunkUnterminated => (400, "the data of a chunk must be followed by CR LF"),
            Self::ContentCodingMalformed => {
                (400, "the body must be whole data of the coding that Content-Encoding names")
            }
            Self::ZstdWindowTooLarge => {
                (400, "zstd must be sent with a window of at most 8 MiB (RFC 9659)")
            }
            Self::ChunkOverheadTooLarge { .. } => {
                (400, "chunk extensions and trailers are larger than max_chunk_overhead_bytes")
            }
            Self::WebSocketKeyMalformed => {
                (400, "Sec-WebSocket-Key must be sent once, as 16 bytes in base64")
            }
            Self::WebSocketBody => (400, "an upgrade to WebSocket must have no body"),
            Self::WebSocketTokenMalformed => (
                400,
                "a bearer. subprotocol must hold a token in base64url, and replaces Authorization",
            ),
            Self::Unauthorized => (401, "the request needs valid credentials"),
            Self::InsufficientScope => {
                (403, "the token lacks a scope; the header WWW-Authenticate names those needed")
            }
            Self::HostForbidden => (
                403,
                "this Host is not served here; the server's operator may name it in allowed_hosts",
            ),
            Self::OriginForbidden => (
                403,
                "this Origin may not call; the server's operator may name it in allow_origins",
            ),
            Self::NotFound => {
                (404, "there is no such path; calls go to /, or to /name for a function")
            }
            Self::MethodNotAllowed { allow: Methods::CALLS } => {
                (405, "requests are sent with POST")
            }
            Self::MethodNotAllowed { allow: Methods::NONE } => {
                (405, "this server is no proxy, so it has no CONNECT")
            }
            Self::MethodNotAllowed { .. } => {
                (405, "this path has other methods; the header Allow names them")
            }
            Self::HeadTimeout => (408, "the headers were not complete within head_timeout"),
            Self::BodyTimeout => (408, "the body was not complete within body_timeout"),
            Self::BodyTooLarge { .. } => (413, "the body is larger than max_body_bytes"),
            Self::DecodedBodyTooLarge { .. } => {
                (413, "the body, decoded, is larger than max_body_bytes")
            }
            Self::BodyRatioTooLarge { .. } => {
                (413, "the body, decoded, is larger than its length times max_body_ratio")
            }
            Self::ContentCodingUnsupported => (
                415,
                "Content-Encoding must be one of those in Accept-Encoding of this reply, or absent",
            ),
            Self::MultipartUnsupported => {
                (415, "the body must be JSON, not multipart; files are params in base64")
            }
            Self::ExpectationUnknown => (417, "the only supported expectation is 100-continue"),
            Self::WebSocketVersionUnsupported => (426, "Sec-WebSocket-Version must be 13"),
            Self::HeadTooLarge { .. } => {
                (431, "request line and headers are larger than max_head_bytes")
            }
            Self::TooManyHeaders { .. } => (431, "there are more headers than max_headers"),
            Self::AuthenticationFailed => {
                (500, "the server failed to authenticate the request; its log has the reason")
            }
            Self::TransferCodingUnknown => (501, "the only supported transfer coding is chunked"),
            Self::AuthenticationUnavailable => {
                (503, "the server cannot check the credentials yet; send the request again")
            }
            Self::Overloaded => (503, "the server is overloaded"),
            Self::Draining => (503, "the server is shutting down"),
            Self::VersionUnsupported => (505, "the supported versions are HTTP/1.1 and HTTP/1.0"),
        }
    }

    /// The limit that was passed, and its unit.
    fn limit(&self) -> Option<(u64, &'static str)> {
        match *self {
            Self::BodyTooLarge { limit } | Self::DecodedBodyTooLarge { limit } => {
                Some((limit, "bytes"))
            }
            Self::BodyRatioTooLarge { limit } => Some((limit, "times")),
            Self::HeadTooLarge { limit } | Self::ChunkOverheadTooLarge { limit } => {
                Some((limit as u64, "bytes"))
            }
            Self::TooManyHeaders { limit } => Some((limit as u64, "headers")),
            _ => None,
        }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.status_and_detail().1)?;
        match self.limit() {
            Some((limit, unit)) => write!(formatter, " ({limit} {unit})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for HttpError {}
