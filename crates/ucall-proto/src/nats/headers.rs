//! The headers of a message, as the head of an HTTP request.
//!
//! Calls through NATS have their headers where HTTP has them, so that the same code reads
//! credentials, deadlines and traces. The parser of heads refuses invalid names and values.

/// Headers of messages that concern NATS, the connection or the body of an HTTP request, browsers,
/// or proxies, whose word only their own connections give.
const DROPPED: [&[u8]; 18] = [
    b"accept",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"expect",
    b"forwarded",
    b"host",
    b"origin",
    b"sec-websocket-extensions",
    b"sec-websocket-key",
    b"sec-websocket-protocol",
    b"sec-websocket-version",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"x-forwarded-for",
];
/// Names that begin with this are NATS's own.
const DROPPED_PREFIX: &[u8] = b"nats-";

/// Writes the head of the request that the headers of a message stand for. Returns the value of
/// `call_id`; `None` without that header.
///
/// # Errors
/// The headers are malformed.
pub(crate) fn write_head<'a>(
    headers: &'a [u8],
    call_id: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<&'a [u8]>, ()> {
    out.clear();
    out.extend_from_slice(b"POST / HTTP/1.1\r\nHost: localhost\r\n");
    let mut found = None;
    if !headers.is_empty() {
        let lines = headers.strip_suffix(b"\r\n\r\n").ok_or(())?;
        let mut lines = lines.split(|byte| *byte == b'\n');
        lines.next().filter(|version| version.starts_with(b"NATS/1.0")).ok_or(())?;
        for line in lines {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let colon = line.iter().position(|byte| *byte == b':').ok_or(())?;
            let (name, value) = line.split_at(colon);
            if name.eq_ignore_ascii_case(call_id) {
                found = value.get(1..).map(<[u8]>::trim_ascii);
            }
            if !is_dropped(name) {
                out.extend_from_slice(line);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(found)
}

fn is_dropped(name: &[u8]) -> bool {
    let start = name.get(..DROPPED_PREFIX.len()).unwrap_or_default();
    start.eq_ignore_ascii_case(DROPPED_PREFIX)
        || DROPPED.iter().any(|dropped| name.eq_ignore_ascii_case(dropped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{HeadLimits, parse_head};

    const ID: &[u8] = b"Ucall-Call-Id";

    /// The headers after those of the server, unless the head is refused.
    fn passed_on(headers: &str) -> Result<String, ()> {
        let mut head = Vec::new();
        write_head(headers.as_bytes(), ID, &mut head)?;
        let parsed = parse_head(&head, &HeadLimits::default()).map_err(|_| ())?.ok_or(())?;
        assert_eq!(parsed.len(), head.len());
        assert_eq!(parsed.header("ucall-broker"), None);
        let lines = parsed.headers().skip(1).map(|(name, value)| {
            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        });
        Ok(lines.collect::<Vec<_>>().join("|"))
    }

    #[test]
    fn headers_are_passed_on_except_those_of_connections() {
        assert_eq!(passed_on("").unwrap(), "");
        let given = "NATS/1.0\r\nAuthorization: Bearer x\r\nHOST: evil\r\nNats-Msg-Id: 1\r\n\
                     ucall-BROKER: forged\r\nX-Forwarded-For: 9.9.9.9\r\nforwarded: for=9.9.9.9\r\n\
                     Content-Length: 3\r\nTransfer-Encoding: chunked\r\nx:y\r\n\r\n";
        assert_eq!(passed_on(given).unwrap(), "Authorization=Bearer x|x=y");
        assert_eq!(passed_on("NATS/1.0 503\r\n\r\n").unwrap(), "");
    }

    #[test]
    fn the_id_of_a_call_is_found() {
        let mut head = Vec::new();
        let mut found = |headers| write_head(headers, ID, &mut head).unwrap();
        assert_eq!(found(b"NATS/1.0\r\nucall-call-id:  call 1 \r\n\r\n"), Some(&b"call 1"[..]));
        assert_eq!(found(b"NATS/1.0\r\nUcall-Call-Ids: 1\r\n\r\n"), None);
        assert_eq!(found(b""), None);
    }

    #[test]
    fn malformed_headers_are_refused() {
        for headers in [
            "x: y\r\n\r\n",
            "NATS/1.0\r\nx: y\r\n",
            "NATS/1.0\r\nx\r\n\r\n",
            "NATS/1.0\r\n\r\nx: y\r\n\r\n",
            "NATS/1.0\r\nx y: z\r\n\r\n",
            "NATS/1.0\r\nx : z\r\n\r\n",
            "NATS/1.0\r\n: z\r\n\r\n",
            "NATS/1.0\r\nx: a\u{1}b\r\n\r\n",
            "NATS/1.0\r\nx: a\rb\r\n\r\n",
        ] {
            assert!(passed_on(headers).is_err(), "{headers:?}");
        }
    }
}
