//! What the Model Context Protocol (MCP) adds to JSON-RPC: which era a request is of, the headers
//! that repeat its body, and the codes of errors.
//!
//! Source: <https://modelcontextprotocol.io/specification/2026-07-28>.
//!
//! | the request has | it is of |
//! |---|---|
//! | a version in `params._meta` | the newest era, if that is its version |
//! | the method `initialize`, or `MCP-Protocol-Version` with an older version | an older era |
//! | neither | 2025-03-26, which knew no such header |
//!
//! | code | means | HTTP status, newest era |
//! |---|---|---|
//! | -32700, -32600 | no JSON, no request | 400, in all eras |
//! | -32601 | unknown method | 404 |
//! | -32602 | wrong params; `_meta` lacks what it must have | 200; 400 |
//! | -32020, -32021, -32022 | headers differ from the body, capability or version missing | 400 |
//! | -32603 | the server failed; overload and drain among others | 200; 503 |
//!
//! The specification forbids new servers the codes from -32000 to -32019, so ours become -32603
//! here.

use std::borrow::Cow;

use base64ct::{Base64, Encoding};

use super::{Call, ItemFormat, Meta, RpcError};
use crate::http1::Head;
use crate::json::{Reader, Text, ValueKind, write_string};

/// The version of the newest era.
const NEWEST: &str = "2026-07-28";
/// The versions of the eras before, which begin with `initialize`.
const OLDER: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
/// The version that a request without any has.
const UNSTATED: &str = "2025-03-26";

const VERSION_MEMBER: &[u8] = b"io.modelcontextprotocol/protocolVersion";
const CAPABILITIES_MEMBER: &[u8] = b"io.modelcontextprotocol/clientCapabilities";

const VERSION_HEADER: &str = "MCP-Protocol-Version";
const METHOD_HEADER: &str = "Mcp-Method";
const NAME_HEADER: &str = "Mcp-Name";

/// The notification that asks to cancel a call, which gets no reply then.
pub const CANCELLED: &[u8] = b"notifications/cancelled";
/// The method that gets what clients reply to requests of the server.
pub const RESPONSE: &[u8] = b"$/response";

/// The code by which the function of a tool gives a whole reply, in the data of its error: an
/// object with the member `result`, or `error`. It never leaves the server.
pub const WHOLE_REPLY: i64 = -32099;
/// The code for headers that differ from the body.
pub const HEADER_MISMATCH: i64 = -32020;
/// The code for a capability that the client lacks.
const CAPABILITY_MISSING: i64 = -32021;
/// The code for a version that the server does not have.
const VERSION_UNSUPPORTED: i64 = -32022;

/// A request of MCP whose envelope is valid.
#[derive(Clone, Copy, Debug)]
pub struct McpRequest<'a> {
    /// The text of its params, an object.
    pub params: Option<&'a [u8]>,
    /// The text of their member `name`.
    pub name: Option<&'a [u8]>,
    /// The text of their member `arguments`.
    pub arguments: Option<&'a [u8]>,
    /// Their member `_meta`, if it says anything that the call needs.
    pub meta: Option<Meta<'a>>,
    /// The version that it states; the one of requests that state none, over HTTP; else empty.
    pub version: &'static str,
}

impl<'a> McpRequest<'a> {
    /// Reads a request, and compares the headers of HTTP with it.
    ///
    /// # Errors
    /// It is none of any era, or its headers say something else.
    pub fn read(call: &Call<'a>) -> Result<Self, RpcError> {
        check_id(call.id)?;
        let names = [&b"name"[..], b"arguments", b"uri", b"_meta"];
        let [name, arguments, uri, meta] = match call.params {
            None => [None; 4],
            Some(params) => Reader::new(params)
                .members(names)
                .ok_or_else(|| invalid("expected params that are an object"))?,
        };
        let stated = meta.map(read_meta).transpose()?.unwrap_or_default();
        let headers = call.head.map(Headers::read).transpose()?;
        let version = match stated.version {
            Some(version) => {
                newest_version(version, headers.as_ref(), call, stated.has_capabilities)?
            }
            None => older_version(headers.as_ref(), call)?,
        };
        let meta = meta.filter(|_| stated.has_known).map(Meta);
        let request = Self { params: call.params, name, arguments, meta, version };
        if request.is_newest() {
            if call.number.item > 0 {
                return Err(RpcError::invalid_request("expected one message, not an array"));
            }
            if let (Some(headers), Some(_)) = (&headers, call.id) {
                headers.check(call, name, uri)?;
            }
        }
        Ok(request)
    }

    /// Whether it is of the newest era.
    pub fn is_newest(&self) -> bool {
        self.version == NEWEST
    }

    /// Whether the caller asks for progress.
    pub fn takes_progress(&self) -> bool {
        self.meta.is_some_and(|meta| meta.progress_token().is_some())
    }

    /// Whether the caller takes notifications before the reply: over HTTP it accepts events.
    pub(super) fn takes_notifications(&self, head: Option<&Head<'_>>) -> bool {
        head.is_none_or(|head| ItemFormat::accepted_by(head) == Some(ItemFormat::Events))
    }

    /// Compares a header with a value of the body: a string, an integer or a boolean.
    ///
    /// # Errors
    /// They differ, or one of them is missing. A `null` has no header.
    pub fn check_header(&self, head: &Head<'_>, name: &str, value: &[u8]) -> Result<(), RpcError> {
        check_value(name, only_header(head, name)?, value)
    }

    /// Checks that a value that the body lacks has no header either.
    ///
    /// # Errors
    /// It has one.
    pub fn check_absent(&self, head: &Head<'_>, name: &str) -> Result<(), RpcError> {
        match only_header(head, name)? {
            None => Ok(()),
            Some(_) => Err(mismatch(format!("the body has no value for {name}"))),
        }
    }
}

/// The headers that repeat the body.
#[derive(Clone, Copy, Default)]
struct Headers<'h> {
    version: Option<&'h [u8]>,
    method: Option<&'h [u8]>,
    name: Option<&'h [u8]>,
}

impl<'h> Headers<'h> {
    fn read(head: &Head<'h>) -> Result<Self, RpcError> {
        let mut headers = Self::default();
        for (name, value) in head.headers() {
            let (known, place) = match name.len() {
                20 => (VERSION_HEADER, &mut headers.version),
                10 => (METHOD_HEADER, &mut headers.method),
                8 => (NAME_HEADER, &mut headers.name),
                _ => continue,
            };
            if name.eq_ignore_ascii_case(known.as_bytes()) && place.replace(value).is_some() {
                return Err(repeated(known));
            }
        }
        Ok(headers)
    }

    /// Compares the headers with the method, and with the name of what it uses.
    fn check(
        &self,
        call: &Call<'_>,
        name: Option<&[u8]>,
        uri: Option<&[u8]>,
    ) -> Result<(), RpcError> {
        let method = call.method.unescaped();
        compare(METHOD_HEADER, self.method, &method)?;
        let named = match &*method {
            b"tools/call" | b"prompts/get" => name,
            b"resources/read" => uri,
            _ => None,
        };
        // Its absence is an error of the params.
        named.map_or(Ok(()), |value| check_value(NAME_HEADER, self.name, value))
    }
}

/// Compares a header with a string, an integer or a boolean of the body.
fn check_value(name: &str, sent: Option<&[u8]>, value: &[u8]) -> Result<(), RpcError> {
    let mut reader = Reader::new(value);
    match reader.kind() {
        ValueKind::Null if sent.is_none() => Ok(()),
        ValueKind::Null => Err(mismatch(format!("the body has no value for {name}"))),
        ValueKind::String => {
            let sent = sent.map(|text| decoded(text, name)).transpose()?;
            compare(name, sent.as_deref(), &reader.string().unescaped())
        }
        ValueKind::Number => {
            let sent_number: Option<f64> =
                sent.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
            match sent_number {
                // Integers that have a header are exact as doubles.
                Some(number) if reader.number().as_f64() == number => Ok(()),
                _ => compare(name, sent, value),
            }
        }
        _ => compare(name, sent, value),
    }
}

/// What `_meta` says of the protocol.
#[derive(Clone, Copy, Default)]
struct Stated<'a> {
    version: Option<Text<'a>>,
    has_capabilities: bool,
    /// Whether it has members that other calls may have, too.
    has_known: bool,
}

fn read_meta(meta: &[u8]) -> Result<Stated<'_>, RpcError> {
    if !meta.starts_with(b"{") {
        return Err(invalid("expected a _meta that is an object"));
    }
    let (mut version, mut capabilities) = (None, None);
    let checked = super::meta::check_members(meta, |name, value| match name {
        VERSION_MEMBER => version = Some(value),
        CAPABILITIES_MEMBER => capabilities = Some(value),
        _ => {}
    });
    let has_known = checked.map_err(invalid)?;
    let version = match version.map(Text::of_quoted) {
        None => None,
        Some(Some(version)) => Some(version),
        Some(None) => return Err(invalid("expected a protocolVersion that is a string")),
    };
    let has_capabilities = capabilities.is_some_and(|text| text.starts_with(b"{"));
    Ok(Stated { version, has_capabilities, has_known })
}

/// The version of a request whose `_meta` states one.
fn newest_version(
    version: Text<'_>,
    headers: Option<&Headers<'_>>,
    call: &Call<'_>,
    has_capabilities: bool,
) -> Result<&'static str, RpcError> {
    let version = version.unescaped();
    if let (Some(headers), Some(_)) = (headers, call.id) {
        compare(VERSION_HEADER, headers.version, &version)?;
    }
    if *version != *NEWEST.as_bytes() {
        return Err(unsupported_version(&version));
    }
    if !has_capabilities {
        let member = String::from_utf8_lossy(CAPABILITIES_MEMBER);
        return Err(invalid(&format!("expected {member} in _meta, an object")));
    }
    Ok(NEWEST)
}

/// The version of a request without one in `_meta`.
fn older_version(headers: Option<&Headers<'_>>, call: &Call<'_>) -> Result<&'static str, RpcError> {
    let Some(header) = headers.and_then(|it| it.version) else {
        return Ok(if headers.is_some() { UNSTATED } else { "" });
    };
    if call.method.raw() == b"initialize" {
        return Ok("");
    }
    if header == NEWEST.as_bytes() {
        if call.id.is_none() {
            return Ok(UNSTATED);
        }
        let member = String::from_utf8_lossy(VERSION_MEMBER);
        return Err(invalid(&format!("expected {member} in _meta")));
    }
    let known = OLDER.into_iter().find(|version| header == version.as_bytes());
    known.ok_or_else(|| unsupported_version(header))
}

/// The token for the progress of a request of MCP with these params.
pub(crate) fn progress_token(params: Option<&[u8]>) -> Option<&[u8]> {
    let [meta] = Reader::new(params?).members([b"_meta"])?;
    meta.filter(|meta| meta.starts_with(b"{")).map(Meta)?.progress_token()
}

/// Checks that an id is a string or an integer.
fn check_id(id: Option<&[u8]>) -> Result<(), RpcError> {
    let is_valid = id.is_none_or(|id| {
        id.starts_with(b"\"") || id.iter().all(|&byte| byte == b'-' || byte.is_ascii_digit())
    });
    match is_valid {
        true => Ok(()),
        false => Err(RpcError::invalid_request("expected an id that is a string or an integer")),
    }
}

/// The value of a header that may come once.
fn only_header<'h>(head: &Head<'h>, name: &str) -> Result<Option<&'h [u8]>, RpcError> {
    let mut values = head.headers().named(name);
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => Err(repeated(name)),
    }
}

#[cold]
fn repeated(name: &str) -> RpcError {
    mismatch(format!("{name} comes more than once"))
}

/// The value that a header stands for.
fn decoded<'t>(text: &'t [u8], name: &str) -> Result<Cow<'t, [u8]>, RpcError> {
    if let Some(encoded) = text.strip_prefix(b"=?base64?").and_then(|rest| rest.strip_suffix(b"?="))
    {
        let mut bytes = vec![0; encoded.len()];
        return match Base64::decode(encoded, &mut bytes).map(<[u8]>::len) {
            Ok(len) => {
                bytes.truncate(len);
                Ok(Cow::Owned(bytes))
            }
            Err(_) => Err(mismatch(format!("{name} is no base64 between its marks"))),
        };
    }
    match text.iter().all(|&byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
        true => Ok(Cow::Borrowed(text)),
        false => Err(mismatch(format!("{name} has characters that must be encoded"))),
    }
}

/// Compares a header with what the body has.
fn compare(name: &str, sent: Option<&[u8]>, wanted: &[u8]) -> Result<(), RpcError> {
    let shown = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes.get(..SHOWN_MAX).unwrap_or(bytes)).into_owned();
        format!("{text:?}")
    };
    match sent {
        Some(sent) if sent == wanted => Ok(()),
        Some(sent) => {
            Err(mismatch(format!("{name} is {}, the body says {}", shown(sent), shown(wanted))))
        }
        None => Err(mismatch(format!("{name} is missing, the body says {}", shown(wanted)))),
    }
}

/// The bytes of a value that an error shows, at most.
const SHOWN_MAX: usize = 64;

#[cold]
fn mismatch(text: String) -> RpcError {
    RpcError::new(HEADER_MISMATCH, format!("Header mismatch: {text}"))
}

#[cold]
fn invalid(expected: &str) -> RpcError {
    RpcError::new(RpcError::INVALID_PARAMS, "Invalid params").expected(expected)
}

#[cold]
fn unsupported_version(requested: &[u8]) -> RpcError {
    let mut error = RpcError::new(VERSION_UNSUPPORTED, "Unsupported protocol version");
    let mut data = format!(r#"{{"supported":["{NEWEST}","#);
    data.push_str(&OLDER.map(|version| format!("{version:?}")).join(","));
    data.push_str(r#"],"requested":"#);
    let mut data = data.into_bytes();
    let requested = requested.get(..SHOWN_MAX).unwrap_or(requested);
    write_string(&mut data, &String::from_utf8_lossy(requested));
    data.push(b'}');
    error.data = Some(data);
    error
}

/// The status of a reply over HTTP, apart from those to what is no request. `error` is its code.
pub(crate) fn status(error: Option<i64>, is_newest: bool) -> McpStatus {
    match error {
        Some(RpcError::OVERLOADED | RpcError::DRAINING | RpcError::ABORTED) => {
            McpStatus::Unavailable
        }
        Some(RpcError::UNAUTHORIZED) => McpStatus::Forbidden,
        Some(RpcError::METHOD_NOT_FOUND) if is_newest => McpStatus::NotFound,
        Some(HEADER_MISMATCH | CAPABILITY_MISSING | VERSION_UNSUPPORTED) => McpStatus::BadRequest,
        _ => McpStatus::Ok,
    }
}

/// The status of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum McpStatus {
    Ok,
    BadRequest,
    Forbidden,
    NotFound,
    Unavailable,
}

impl McpStatus {
    /// The status, and the headers that belong to it.
    pub(crate) fn lines(self) -> (&'static str, &'static str) {
        match self {
            Self::Ok => ("200 OK", ""),
            Self::BadRequest => ("400 Bad Request", ""),
            Self::Forbidden => ("403 Forbidden", ""),
            Self::NotFound => ("404 Not Found", ""),
            Self::Unavailable => ("503 Service Unavailable", "Retry-After: 1\r\n"),
        }
    }
}

impl RpcError {
    /// The error as MCP allows it: with a code that is not this server's own.
    #[must_use]
    pub fn for_mcp(mut self) -> Self {
        if Self::is_foreign_to_mcp(self.code) {
            self.code = Self::INTERNAL_ERROR;
        }
        self
    }

    /// Whether MCP does not allow a code.
    pub(super) fn is_foreign_to_mcp(code: i64) -> bool {
        (-32019..=-32000).contains(&code) || [Self::REQUEST_CANCELLED, WHOLE_REPLY].contains(&code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::http1::parse_head;
    use crate::rpc::CallNumber;

    const META: &str = concat!(
        r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
        r#""io.modelcontextprotocol/clientCapabilities":{}}"#
    );
    const HEADERS: [(&str, &str); 3] =
        [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "sum")];

    /// Reads a request that has come over HTTP; without headers, over raw TCP.
    fn read(
        method: &str,
        params: Option<&str>,
        id: Option<&str>,
        headers: Option<&[(&str, &str)]>,
        item: u32,
    ) -> Result<(&'static str, bool), i64> {
        let mut text = "POST /mcp HTTP/1.1\r\nHost: a\r\n".to_owned();
        for (name, value) in headers.unwrap_or_default() {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        let head = parse_head(text.as_bytes(), &Limits::default().head).expect("it is valid");
        let call = Call {
            method: Text::plain(method.as_bytes()),
            params: params.map(str::as_bytes),
            members: None,
            id: id.map(str::as_bytes),
            meta: None,
            number: CallNumber { request: 1, item },
            head: head.as_ref().filter(|_| headers.is_some()),
            session: None,
            mcp: None,
        };
        McpRequest::read(&call).map(|it| (it.version, it.is_newest())).map_err(|error| error.code)
    }

    fn call_of_sum(meta: &str) -> String {
        format!(r#"{{"name":"sum","arguments":{{}},"_meta":{meta}}}"#)
    }

    #[test]
    fn meta_chooses_the_newest_era_and_headers_or_initialize_an_older_one() {
        let newest = Ok((NEWEST, true));
        let params = call_of_sum(META);
        let read = |method, params: &str, headers: Option<&[(&str, &str)]>| {
            read(method, Some(params), Some("1"), headers, 0)
        };
        assert_eq!(read("tools/call", &params, Some(&HEADERS)), newest);
        assert_eq!(read("tools/call", &params, None), newest);
        assert_eq!(read("tools/call", "{}", None), Ok(("", false)));
        assert_eq!(read("tools/call", "{}", Some(&[])), Ok(("2025-03-26", false)));
        for version in OLDER {
            let headers = [("MCP-Protocol-Version", version)];
            assert_eq!(read("ping", "{}", Some(&headers)), Ok((version, false)));
        }
        let header = |version| [("MCP-Protocol-Version", version)];
        assert_eq!(read("initialize", "{}", Some(&header("1900-01-01"))), Ok(("", false)));
        assert_eq!(read("ping", "{}", Some(&header("1900-01-01"))), Err(VERSION_UNSUPPORTED));
        assert_eq!(read("ping", "{}", Some(&header(NEWEST))), Err(RpcError::INVALID_PARAMS));
    }

    #[test]
    fn what_meta_must_have_is_checked() {
        let read = |meta: &str| read("tools/call", Some(&call_of_sum(meta)), Some("1"), None, 0);
        let unknown = META.replace("2026", "1999");
        assert_eq!(read(&unknown), Err(VERSION_UNSUPPORTED));
        for meta in [
            "[]",
            r#"{"io.modelcontextprotocol/protocolVersion":1}"#,
            r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#,
            &META.replace("{}", "[]"),
            &META.replacen('{', r#"{"progressToken":[],"#, 1),
        ] {
            assert_eq!(read(meta), Err(RpcError::INVALID_PARAMS), "{meta}");
        }
    }

    #[test]
    fn headers_of_the_newest_era_repeat_the_body() {
        let params = call_of_sum(META);
        let read = |headers: &[(&str, &str)]| {
            read("tools/call", Some(&params), Some("1"), Some(headers), 0)
        };
        for at in 0..HEADERS.len() {
            let mut missing = HEADERS.to_vec();
            let header = missing.remove(at);
            assert_eq!(read(&missing), Err(HEADER_MISMATCH), "without {}", header.0);
            let mut other = HEADERS;
            other[at].1 = "other";
            assert_eq!(read(&other), Err(HEADER_MISMATCH), "{}", header.0);
            let mut twice = HEADERS.to_vec();
            twice.push(header);
            assert_eq!(read(&twice), Err(HEADER_MISMATCH), "{} twice", header.0);
        }
        let mut encoded = HEADERS;
        encoded[2].1 = "=?base64?c3Vt?=";
        assert!(read(&encoded).is_ok());
        encoded[2].1 = "=?base64?c3V?=";
        assert_eq!(read(&encoded), Err(HEADER_MISMATCH));
    }

    #[test]
    fn values_are_compared_by_their_types() {
        for (sent, value, is_same) in [
            (Some("a"), r#""a""#, true),
            (Some("a"), r#""\u0061""#, true),
            (Some("=?base64?w6k=?="), "\"é\"", true),
            (Some("é"), "\"é\"", false),
            (Some("42"), "42", true),
            (Some("42.0"), "42", true),
            (Some("x"), "42", false),
            (Some("true"), "true", true),
            (Some("True"), "true", false),
            (None, "null", true),
            (Some("null"), "null", false),
            (None, "1", false),
        ] {
            let header = sent.map(|sent| format!("Mcp-Param-A: {sent}\r\n")).unwrap_or_default();
            let text = format!("POST /mcp HTTP/1.1\r\nHost: a\r\n{header}\r\n");
            let head = parse_head(text.as_bytes(), &Limits::default().head);
            let head = head.expect("it is valid").expect("it is whole");
            let request = McpRequest {
                params: None,
                name: None,
                arguments: None,
                meta: None,
                version: NEWEST,
            };
            let checked = request.check_header(&head, "Mcp-Param-A", value.as_bytes());
            assert_eq!(checked.is_ok(), is_same, "{sent:?} {value}");
            assert_eq!(request.check_absent(&head, "Mcp-Param-A").is_ok(), sent.is_none());
        }
    }

    #[test]
    fn ids_and_arrays_are_checked_by_era() {
        let params = call_of_sum(META);
        for (id, is_valid) in
            [("1", true), ("-1", true), (r#""a""#, true), ("1.5", false), ("null", false)]
        {
            let read = read("tools/call", Some(&params), Some(id), None, 0);
            assert_eq!(read.is_ok(), is_valid, "{id}");
        }
        let in_array = read("tools/call", Some(&params), Some("1"), None, 1);
        assert_eq!(in_array, Err(RpcError::INVALID_REQUEST));
        assert!(read("tools/call", Some("{}"), Some("1"), None, 1).is_ok());
        assert_eq!(read("ping", Some("[]"), Some("1"), None, 0), Err(RpcError::INVALID_PARAMS));
    }

    #[test]
    fn no_code_of_this_server_leaves_by_mcp() {
        for code in -32800..=-31990 {
            let sent = RpcError::new(code, "").for_mcp().code;
            assert!(!(-32019..=-32000).contains(&sent), "{code}");
            assert!(sent != -32800 && sent != WHOLE_REPLY, "{code}");
            assert!(sent == code || sent == RpcError::INTERNAL_ERROR);
        }
        assert_eq!(status(Some(RpcError::DRAINING), false), McpStatus::Unavailable);
        assert_eq!(status(Some(RpcError::METHOD_NOT_FOUND), false), McpStatus::Ok);
        assert_eq!(status(Some(RpcError::METHOD_NOT_FOUND), true), McpStatus::NotFound);
    }
}
