//! The request line: `method SP target SP version CRLF` (RFC 9112, section 3).
//!
//! The line that nearly every request has is compared whole; all others are taken apart.

use super::bytes::{Span, is_target, starts_with_ignoring_case, text_length, token_length};
use super::error::HttpError;
use super::head::{TargetKind, Version};
use super::host::is_authority;
use super::method::Method;

const COMMON_LINE: &[u8] = b"POST / HTTP/1.1\r\n";

/// A parsed request line; spans count from the start of the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestLine {
    pub method: Method,
    pub version: Version,
    pub target: TargetKind,
    /// Of the target.
    pub span: Span,
    /// Of the authority in an absolute target.
    pub authority: Option<Span>,
    /// Bytes of the line with its CRLF.
    pub len: usize,
}

/// Reads the line that `bytes` starts with, or returns `None` if it is incomplete.
#[inline]
pub(super) fn read(bytes: &[u8]) -> Result<Option<RequestLine>, HttpError> {
    if bytes.starts_with(COMMON_LINE) {
        let span = Span { start: 5, end: 6 };
        return Ok(Some(RequestLine { span, len: COMMON_LINE.len(), ..RequestLine::default() }));
    }
    read_general(bytes)
}

#[cold]
fn read_general(bytes: &[u8]) -> Result<Option<RequestLine>, HttpError> {
    let length = text_length(bytes);
    let Some((line, end)) = bytes.split_at_checked(length) else { return Ok(None) };
    match end {
        [] | [b'\r'] => Ok(None),
        [b'\r', b'\n', ..] => parse_request_line(line).map(Some),
        [byte, ..] => Err(HttpError::for_byte(*byte)),
    }
}

fn parse_request_line(line: &[u8]) -> Result<RequestLine, HttpError> {
    let mut parts = line.split(|&byte| byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(HttpError::RequestLineMalformed);
    };
    if method.is_empty() || token_length(method) != method.len() {
        return Err(HttpError::RequestLineMalformed);
    }
    let version = read_version(version)?;
    let start = method.len() + 1;
    let (kind, authority) = read_target(method, target)?;
    Ok(RequestLine {
        method: read_method(method),
        version,
        target: kind,
        span: Span { start, end: start + target.len() },
        authority: authority.map(|span| span.shifted(start)),
        len: line.len() + 2,
    })
}

fn read_method(method: &[u8]) -> Method {
    match method {
        b"POST" => Method::Post,
        b"OPTIONS" => Method::Options,
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"PUT" => Method::Put,
        b"PATCH" => Method::Patch,
        b"DELETE" => Method::Delete,
        _ => Method::Other,
    }
}

fn read_version(version: &[u8]) -> Result<Version, HttpError> {
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(HttpError::VersionUnsupported)
        }
        _ => Err(HttpError::RequestLineMalformed),
    }
}

fn read_target(method: &[u8], target: &[u8]) -> Result<(TargetKind, Option<Span>), HttpError> {
    if !target.iter().all(|&byte| is_target(byte)) {
        return Err(HttpError::TargetMalformed);
    }
    match target {
        _ if method == b"CONNECT" && is_authority(target) => Ok((TargetKind::Authority, None)),
        _ if method == b"CONNECT" => Err(HttpError::TargetMalformed),
        [b'/', ..] => Ok((path_kind(target), None)),
        b"*" if method == b"OPTIONS" => Ok((TargetKind::Asterisk, None)),
        _ => read_absolute(target),
    }
}

fn read_absolute(target: &[u8]) -> Result<(TargetKind, Option<Span>), HttpError> {
    let start = ["http://", "https://"]
        .iter()
        .find(|scheme| starts_with_ignoring_case(target, scheme.as_bytes()))
        .map(|scheme| scheme.len())
        .ok_or(HttpError::TargetMalformed)?;
    let rest = target.get(start..).unwrap_or_default();
    let length = rest.iter().position(|&byte| matches!(byte, b'/' | b'?'));
    let (authority, path) = rest.split_at(length.unwrap_or(rest.len()));
    if !is_authority(authority) {
        return Err(HttpError::TargetMalformed);
    }
    Ok((path_kind(path), Some(Span { start, end: start + authority.len() })))
}

fn path_kind(path: &[u8]) -> TargetKind {
    match path {
        b"" | b"/" | [b'?', ..] | [b'/', b'?', ..] => TargetKind::Root,
        b"/ws" | [b'/', b'w', b's', b'?', ..] => TargetKind::WebSocket,
        _ => TargetKind::Other,
    }
}
