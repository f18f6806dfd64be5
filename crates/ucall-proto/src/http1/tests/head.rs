//! Parses every case whole, as every prefix, resumed byte by byte, resumed from every split, and
//! with bytes after it.

use super::splits;
use crate::http1::{
    BodyLength, ConnectionOption, Head, HeadLimits, HeadParser, HttpError, Method, Target, Version,
    parse_head,
};

pub(super) const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 16 * 1024, headers_max: 100, negotiates_coding: false };

/// Parses a valid head in every split, and returns it.
#[track_caller]
fn valid(input: &[u8]) -> Head<'_> {
    let head = parse_head(input, &LIMITS).unwrap().expect("complete");
    assert_eq!(head.len(), input.len());
    let mut parser = HeadParser::default();
    for end in 0..input.len() {
        assert_eq!(parse_head(&input[..end], &LIMITS), Ok(None), "prefix of {end}");
        assert_eq!(parser.parse(&input[..end], &LIMITS), Ok(None), "resumed at {end}");
    }
    assert_eq!(parser.parse(input, &LIMITS), Ok(Some(head)));
    for split in splits(input.len() - 1) {
        assert_eq!(parser.parse(&input[..split], &LIMITS), Ok(None), "split at {split}");
        assert_eq!(parser.parse(input, &LIMITS), Ok(Some(head)), "split at {split}");
    }
    for trailing in [b"{}".as_slice(), b"\0\r\n\n", b"POST / HTTP/1.1\r\n\r\n"] {
        let longer = [input, trailing].concat();
        assert_eq!(parse_head(&longer, &LIMITS), Ok(Some(head)));
    }
    head
}

/// Parses an invalid head in every split.
#[track_caller]
fn refused(input: &[u8]) -> HttpError {
    let error = parse_head(input, &LIMITS).expect_err("refused");
    for trailing in [b"{}".as_slice(), b"\r\n\r\n"] {
        let longer = [input, trailing].concat();
        assert_eq!(parse_head(&longer, &LIMITS), Err(error));
    }
    let mut parser = HeadParser::default();
    let resumed = (0..=input.len()).find_map(|end| parser.parse(&input[..end], &LIMITS).err());
    assert_eq!(resumed, Some(error), "byte by byte");
    for split in splits(input.len()) {
        let mut parser = HeadParser::default();
        let first = parser.parse(&input[..split], &LIMITS);
        let both = first.and_then(|head| match head {
            None => parser.parse(input, &LIMITS),
            some => Ok(some),
        });
        assert_eq!(both, Err(error), "split at {split}");
    }
    error
}

/// A head of HTTP/1.1 with these header lines after its Host.
pub(super) fn with(lines: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n").into_bytes()
}

#[test]
fn reads_a_fast_path_head() {
    let head = valid(
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1:8545\r\nContent-Type: application/json\r\n\
          Content-Length: 66\r\n\r\n",
    );
    assert_eq!(head.method(), Method::Post);
    assert_eq!(head.target(), Target::Root);
    assert_eq!(head.version(), Version::Http11);
    assert_eq!(head.body(), BodyLength::Length(66));
    assert!(head.keep_alive() && !head.expect_continue());
    assert_eq!(head.host(), Some(b"127.0.0.1:8545".as_slice()));
    assert_eq!(head.origin(), None);
    assert_eq!(head.reply_connection(), ConnectionOption::Implied);
}

#[test]
fn gives_headers_as_they_came() {
    let head = valid(&with("X-Empty:\r\nx-tab:\ta\t \r\nUTF: \u{e9}t\u{e9}\r\nX-Tab: \tb\tc"))
        .headers()
        .map(|(name, value)| format!("{}={}", text(name), text(value)))
        .collect::<Vec<_>>();
    assert_eq!(head, ["Host=a", "X-Empty=", "x-tab=a", "UTF=été", "X-Tab=b\tc"]);
    let input = with("X-Tab2: 0\r\nX-Tab: 1\r\nx-tab: 2");
    assert_eq!(valid(&input).header("x-TAB"), Some(b"1".as_slice()));
    assert_eq!(valid(&input).header("tab"), None);
    assert_eq!(valid(b"GET / HTTP/1.0\r\n\r\n").headers().count(), 0);
}

#[test]
fn the_header_of_brokers_is_dropped() {
    let input = with("a: 1\r\nUcall-Broker: nats\r\nUCALL-BROKER:\r\nucall-brokers: 2");
    let head = valid(&input);
    assert_eq!(head.header("Ucall-Broker"), None);
    let names: Vec<_> = head.headers().map(|(name, _)| text(name)).collect();
    assert_eq!(names, ["Host", "a", "ucall-brokers"]);
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn reads_methods() {
    for (name, method) in [
        ("POST", Method::Post),
        ("OPTIONS", Method::Options),
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("post", Method::Other),
        ("DELETE", Method::Delete),
        ("M-SEARCH", Method::Other),
    ] {
        let input = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(valid(input.as_bytes()).method(), method, "{name}");
    }
}

#[test]
fn reads_targets() {
    let long = format!("/{}", "x".repeat(2000));
    for (line, target, host) in [
        ("POST / ", Target::Root, "a:1"),
        ("POST /?x=/../&y ", Target::Root, "a:1"),
        ("POST /rpc ", Target::Other(b"/rpc"), "a:1"),
        ("GET /ws ", Target::WebSocket, "a:1"),
        ("GET http://b/ws?q ", Target::WebSocket, "b"),
        ("GET /ws/ ", Target::Other(b"/ws/"), "a:1"),
        ("POST // ", Target::Other(b"//"), "a:1"),
        ("POST /%2f?q ", Target::Other(b"/%2f?q"), "a:1"),
        ("OPTIONS * ", Target::Asterisk, "a:1"),
        ("POST http://b:2/ ", Target::Root, "b:2"),
        ("POST http://b:2 ", Target::Root, "b:2"),
        ("POST HTTPS://b?q ", Target::Root, "b"),
        ("POST http://[::1]:8/?q ", Target::Root, "[::1]:8"),
        ("POST http://b/x ", Target::Other(b"http://b/x"), "b"),
        ("CONNECT b:443 ", Target::Authority, "a:1"),
        (&format!("GET {long} "), Target::Other(long.as_bytes()), "a:1"),
    ] {
        for start in ["", "\r\n", "\r\n\r\n"] {
            let input = format!("{start}{line}HTTP/1.1\r\nHost: a:1\r\n\r\n");
            let head = valid(input.as_bytes());
            assert_eq!(head.target(), target, "{line}");
            assert_eq!(head.host().map(text), Some(host), "{line}");
        }
    }
}

#[test]
fn refuses_request_lines() {
    use HttpError::{
        CarriageReturnAlone, ControlCharacter, LineFeedAlone, RequestLineMalformed,
        TargetMalformed, VersionUnsupported,
    };
    for (line, error) in [
        ("GARBAGE\r\n", RequestLineMalformed),
        ("POST /\r\n", RequestLineMalformed),
        ("POST  / HTTP/1.1\r\n", RequestLineMalformed),
        ("POST / HTTP/1.1 \r\n", RequestLineMalformed),
        ("POST /  HTTP/1.1\r\n", RequestLineMalformed),
        ("POST / / HTTP/1.1\r\n", RequestLineMalformed),
        (" POST / HTTP/1.1\r\n", RequestLineMalformed),
        ("POST\t/\tHTTP/1.1\r\n", RequestLineMalformed),
        ("PO(ST / HTTP/1.1\r\n", RequestLineMalformed),
        (" / HTTP/1.1\r\n", RequestLineMalformed),
        ("POST / http/1.1\r\n", RequestLineMalformed),
        ("POST / HTTP/1\r\n", RequestLineMalformed),
        ("POST / HTTP/1.10\r\n", RequestLineMalformed),
        ("POST / HTTP/11\r\n", RequestLineMalformed),
        ("POST / HTTP/1.x\r\n", RequestLineMalformed),
        ("POST / HTTPS/1.1\r\n", RequestLineMalformed),
        ("POST / FTP/1.1\r\n", RequestLineMalformed),
        ("{\"jsonrpc\": \"2.0\"}\r\n", RequestLineMalformed),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", VersionUnsupported),
        ("POST / HTTP/2.0\r\n", VersionUnsupported),
        ("POST / HTTP/1.2\r\n", VersionUnsupported),
        ("POST / HTTP/0.9\r\n", VersionUnsupported),
        ("POST * HTTP/1.1\r\n", TargetMalformed),
        ("POST rpc HTTP/1.1\r\n", TargetMalformed),
        ("POST ?q HTTP/1.1\r\n", TargetMalformed),
        ("POST a:80 HTTP/1.1\r\n", TargetMalformed),
        ("POST ftp://a/ HTTP/1.1\r\n", TargetMalformed),
        ("POST http:// HTTP/1.1\r\n", TargetMalformed),
        ("POST http:/// HTTP/1.1\r\n", TargetMalformed),
        ("POST http://user@a/ HTTP/1.1\r\n", TargetMalformed),
        ("POST http://a:b/ HTTP/1.1\r\n", TargetMalformed),
        ("CONNECT / x HTTP/1.1\r\n", RequestLineMalformed),
        ("CONNECT / HTTP/1.1\r\n", TargetMalformed),
        ("GET /a#b HTTP/1.1\r\n", TargetMalformed),
        ("GET http://a#b HTTP/1.1\r\n", TargetMalformed),
        ("POST /\u{e9} HTTP/1.1\r\n", TargetMalformed),
        ("POST /a\tb HTTP/1.1\r\n", TargetMalformed),
        ("POST / HTTP/1.1\n", LineFeedAlone),
        ("POST / HTTP/1.1\nHost: a\r\n\r\n", LineFeedAlone),
        ("\nPOST / HTTP/1.1\r\n", LineFeedAlone),
        ("\r\n\nPOST / HTTP/1.1\r\n", LineFeedAlone),
        ("\r\r\nPOST / HTTP/1.1\r\n", CarriageReturnAlone),
        ("\rPOST / HTTP/1.1\r\n", CarriageReturnAlone),
        ("POST / \rHTTP/1.1\r\n", CarriageReturnAlone),
        ("POST /\0 HTTP/1.1\r\n", ControlCharacter),
        ("POST /\x7f HTTP/1.1\r\n", ControlCharacter),
        ("\x16\x03\x01\x02\0\x01\0\n", ControlCharacter),
    ] {
        assert_eq!(refused(line.as_bytes()), error, "{line:?}");
    }
}

#[test]
fn refuses_header_lines() {
    use HttpError::{
        CarriageReturnAlone, ControlCharacter, HeaderFolded, HeaderNameMalformed, LineFeedAlone,
        SpaceBeforeColon,
    };
    for (lines, error) in [
        ("X: a\n", LineFeedAlone),
        ("X: a\nb: c", LineFeedAlone),
        ("X: a\r\n\nb: c", LineFeedAlone),
        ("X\n: a", LineFeedAlone),
        ("X: a\r\r\n", CarriageReturnAlone),
        ("X: a\rb", CarriageReturnAlone),
        ("X: \rContent-Length: 5", CarriageReturnAlone),
        ("\rX: a", CarriageReturnAlone),
        ("X: a\0b", ControlCharacter),
        ("X: \x0b", ControlCharacter),
        ("X: \x1b[0m", ControlCharacter),
        ("X: a long value, longer than a word\x7f", ControlCharacter),
        ("X : a", SpaceBeforeColon),
        ("X\t: a", SpaceBeforeColon),
        ("Content-Length : 5", SpaceBeforeColon),
        ("Two Words: a", SpaceBeforeColon),
        (": a", HeaderNameMalformed),
        ("X", HeaderNameMalformed),
        ("X(y): a", HeaderNameMalformed),
        ("X\0: a", HeaderNameMalformed),
        ("\u{e9}: a", HeaderNameMalformed),
        ("\"X\": a", HeaderNameMalformed),
        ("X: a\r\n folded", HeaderFolded),
        ("X: a\r\n\tfolded", HeaderFolded),
        (" X: a", HeaderFolded),
    ] {
        assert_eq!(refused(&with(lines)), error, "{lines:?}");
    }
    let after_request_line = b"POST / HTTP/1.1\r\n Host: a\r\n\r\n";
    assert_eq!(refused(after_request_line), HeaderFolded);
}

#[test]
fn refuses_every_control_character_everywhere() {
    for byte in (0..=0x1f).chain([0x7f]).filter(|byte| *byte != b'\t') {
        for padding in 0..20 {
            let mut lines = b"X: ".to_vec();
            lines.extend(std::iter::repeat_n(b'a', padding));
            lines.push(byte);
            lines.extend_from_slice(b"tail of some length");
            let lines = String::from_utf8(lines).unwrap();
            assert_eq!(refused(&with(&lines)).status(), 400, "{lines:?}");
        }
    }
}

#[test]
fn accepts_every_other_byte_in_values() {
    for byte in (0x20..=0xff).filter(|byte| *byte != 0x7f).chain([b'\t']) {
        for padding in 0..10 {
            let mut input = b"POST / HTTP/1.1\r\nHost: a\r\nX: a".to_vec();
            input.extend(std::iter::repeat_n(b'\t', padding));
            input.push(byte);
            input.extend_from_slice(b"b\r\n\r\n");
            assert!(valid(&input).header("X").is_some_and(|value| value.contains(&byte)));
        }
    }
}

#[test]
fn reads_and_refuses_hosts() {
    for host in [
        "a",
        "a.b-c.d_e",
        "A:80",
        "a:",
        "1.2.3.4",
        "1.2.3.4:65535",
        "[::1]",
        "[::1]:8545",
        "[fe80::1:2]",
        "xn--4gbwdl.xn--wgbh1c",
        "a%20b",
        "a.",
        "~",
    ] {
        let input = format!("POST / HTTP/1.1\r\nhOsT:{host}\r\n\r\n");
        assert_eq!(valid(input.as_bytes()).host().map(text), Some(host));
        let input = format!("POST / HTTP/1.0\r\nHost:  {host}\t\r\n\r\n");
        assert_eq!(valid(input.as_bytes()).host().map(text), Some(host));
    }
    for host in [
        "",
        " ",
        ":80",
        "a b",
        "a, b",
        "a/",
        "a?",
        "a#",
        "http://a",
        "user@a",
        "a:b",
        "a:+80",
        "a:65536",
        "a:1:2",
        "::1",
        "[::1",
        "[]",
        "[::1]x",
        "[::1]:x",
        "[1.2.3.4]",
        "[fe80::1%25eth0]",
        "a\\",
        "\"a\"",
        "<a>",
        "a%",
        "a%2",
        "a%zz",
        "\u{e9}",
        "a:99999999999999999999999",
    ] {
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            let input = format!("POST / {version}\r\nHost: {host}\r\n\r\n");
            assert_eq!(refused(input.as_bytes()), HttpError::HostMalformed, "{host:?}");
            let input = format!("POST http://b/ {version}\r\nHost: {host}\r\n\r\n");
            assert_eq!(refused(input.as_bytes()), HttpError::HostMalformed, "{host:?}");
        }
    }
    for version in ["HTTP/1.1", "HTTP/1.0"] {
        let input = format!("POST / {version}\r\nHost: a\r\nX: y\r\nhost: a\r\n\r\n");
        assert_eq!(refused(input.as_bytes()), HttpError::HostRepeated);
    }
    assert_eq!(refused(b"POST / HTTP/1.1\r\n\r\n"), HttpError::HostMissing);
    assert_eq!(refused(b"POST http://a/ HTTP/1.1\r\n\r\n"), HttpError::HostMissing);
    assert_eq!(valid(b"POST / HTTP/1.0\r\n\r\n").host(), None);
}

#[test]
fn reads_lengths() {
    for (lines, body) in [
        ("X: y", BodyLength::None),
        ("Content-Length: 0", BodyLength::Length(0)),
        ("content-length:5", BodyLength::Length(5)),
        ("CONTENT-LENGTH:\t 0005 ", BodyLength::Length(5)),
        ("Content-Length: 18446744073709551615", BodyLength::Length(u64::MAX)),
        ("Transfer-Encoding: chunked", BodyLength::Chunked),
        ("transfer-encoding:\tCHUNKED ", BodyLength::Chunked),
    ] {
        assert_eq!(valid(&with(lines)).body(), body, "{lines:?}");
    }
}

#[test]
fn refuses_lengths() {
    use HttpError::{
        ContentLengthMalformed, ContentLengthRepeated, LengthAndTransferEncoding,
        TransferCodingUnknown, TransferEncodingMalformed,
    };
    for (lines, error) in [
        ("Content-Length: +5", ContentLengthMalformed),
        ("Content-Length: -1", ContentLengthMalformed),
        ("Content-Length: 1_0", ContentLengthMalformed),
        ("Content-Length:", ContentLengthMalformed),
        ("Content-Length: \t", ContentLengthMalformed),
        ("Content-Length: 0x5", ContentLengthMalformed),
        ("Content-Length: 5a", ContentLengthMalformed),
        ("Content-Length: 5 5", ContentLengthMalformed),
        ("Content-Length: 5, 5", ContentLengthMalformed),
        ("Content-Length: 5,", ContentLengthMalformed),
        ("Content-Length: 5.0", ContentLengthMalformed),
        ("Content-Length: 5;", ContentLengthMalformed),
        ("Content-Length: \u{665}", ContentLengthMalformed),
        ("Content-Length: 18446744073709551616", ContentLengthMalformed),
        ("Content-Length: 99999999999999999999999999", ContentLengthMalformed),
        ("Content-Length: 5\r\nContent-Length: 6", ContentLengthRepeated),
        ("Content-Length: 5\r\ncontent-length: 5", ContentLengthRepeated),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", LengthAndTransferEncoding),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", LengthAndTransferEncoding),
        ("Transfer-Encoding: gzip\r\nContent-Length: 5", LengthAndTransferEncoding),
        ("Transfer-Encoding: chunked, chunked", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked, gzip", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked, identity", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked,", TransferEncodingMalformed),
        ("Transfer-Encoding: , chunked", TransferEncodingMalformed),
        ("Transfer-Encoding:", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked chunked", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked;q=1", TransferEncodingMalformed),
        ("Transfer-Encoding: chunked ;q=1", TransferEncodingMalformed),
        ("Transfer-Encoding: \"chunked\"", TransferEncodingMalformed),
        ("Transfer-Encoding: gzip, chunked", TransferCodingUnknown),
        ("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", TransferCodingUnknown),
        ("Transfer-Encoding: gzip;level=9", TransferCodingUnknown),
        ("Transfer-Encoding: identity", TransferCodingUnknown),
        ("Transfer-Encoding: xchunked", TransferCodingUnknown),
        ("Transfer-Encoding: chunked-", TransferCodingUnknown),
    ] {
        assert_eq!(refused(&with(lines)), error, "{lines:?}");
    }
    for coding in ["chunked", "gzip", "identity"] {
        let input = format!("POST / HTTP/1.0\r\nTransfer-Encoding: {coding}\r\n\r\n");
        assert_eq!(refused(input.as_bytes()), HttpError::TransferEncodingOnHttp10);
    }
}

#[test]
fn reads_connection_options() {
    for (version, lines, connection) in [
        ("1.1", "", ConnectionOption::Implied),
        ("1.1", "Connection: keep-alive\r\n", ConnectionOption::Implied),
        ("1.1", "Connection: Close\r\n", ConnectionOption::Close),
        ("1.1", "Connection: x, close ,y\r\n", ConnectionOption::Close),
        ("1.1", "Connection: keep-alive\r\nconnection: close\r\n", ConnectionOption::Close),
        ("1.1", "Connection: closed\r\n", ConnectionOption::Implied),
        ("1.1", "X: close\r\n", ConnectionOption::Implied),
        ("1.0", "", ConnectionOption::Close),
        ("1.0", "Connection: Keep-Alive\r\n", ConnectionOption::KeepAlive),
        ("1.0", "Connection: x,,keep-alive\r\n", ConnectionOption::KeepAlive),
        ("1.0", "Connection: keep-alive, close\r\n", ConnectionOption::Close),
    ] {
        let input = format!("POST / HTTP/{version}\r\nHost: a\r\n{lines}\r\n");
        let head = valid(input.as_bytes());
        assert_eq!(head.reply_connection(), connection, "{input:?}");
        assert_eq!(head.keep_alive(), connection != ConnectionOption::Close);
    }
}

#[test]
fn accepts_only_100_continue() {
    let length = "Content-Length: 5\r\n";
    for (lines, expected) in [
        (format!("{length}Expect: 100-continue"), true),
        (format!("{length}expect:100-Continue"), true),
        ("Transfer-Encoding: chunked\r\nExpect: 100-continue".to_owned(), true),
        ("Expect: 100-continue".to_owned(), false),
        ("Content-Length: 0\r\nExpect: 100-continue".to_owned(), false),
    ] {
        assert_eq!(valid(&with(&lines)).expect_continue(), expected, "{lines}");
    }
    let old = b"POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
    assert!(!valid(old).expect_continue());
    for value in ["", "200-ok", "100-continue, x"] {
        assert_eq!(refused(&with(&format!("Expect: {value}"))), HttpError::ExpectationUnknown);
    }
}

#[test]
fn reads_the_timeout_header() {
    assert_eq!(valid(&with("A: b")).timeout_ms(), None);
    assert_eq!(valid(&with("ucall-timeout-MS: 1500")).timeout_ms(), Some(1500));
    assert_eq!(valid(&with("Ucall-Timeout-Ms: 0")).timeout_ms(), Some(0));
    for value in ["", "-1", "1.5", "1s", "18446744073709551616", "1\r\nUcall-Timeout-Ms: 1"] {
        let input = with(&format!("Ucall-Timeout-Ms: {value}"));
        assert_eq!(refused(&input), HttpError::TimeoutMalformed, "{value}");
    }
}

#[test]
fn reads_origins() {
    let origin = "Origin: https://a.example";
    assert_eq!(valid(&with(origin)).origin(), Some(b"https://a.example".as_slice()));
    assert_eq!(refused(&with(&format!("{origin}\r\n{origin}"))), HttpError::OriginRepeated);
}

#[test]
fn limits_bytes_exactly() {
    let frame = with("X: ").len();
    let exact = with(&format!("X: {}", "y".repeat(LIMITS.bytes_max - frame)));
    assert_eq!(exact.len(), LIMITS.bytes_max);
    assert_eq!(parse_head(&exact, &LIMITS).unwrap().map(|head| head.len()), Some(exact.len()));
    let over = with(&format!("X: {}", "y".repeat(LIMITS.bytes_max - frame + 1)));
    let error = HttpError::HeadTooLarge { limit: LIMITS.bytes_max };
    assert_eq!(parse_head(&over, &LIMITS), Err(error));
    assert_eq!(parse_head(&over[..LIMITS.bytes_max], &LIMITS), Err(error));
    assert_eq!(parse_head(&over[..LIMITS.bytes_max - 1], &LIMITS), Ok(None));
    assert_eq!(error.status(), 431);
    assert!(error.to_string().contains("16384 bytes"));
}

#[test]
fn limits_unterminated_heads() {
    for (start, endless) in [
        ("", "\r\n"),
        ("", "A"),
        ("POST /", "a"),
        ("POST / HTTP/1.1\r\nHost: a\r\n", "X"),
        ("POST / HTTP/1.1\r\nHost: a\r\nX: ", "y"),
        ("POST / HTTP/1.1\r\nHost: a\r\nX: ", "\t"),
    ] {
        let input = format!("{start}{}", endless.repeat(LIMITS.bytes_max));
        let mut parser = HeadParser::default();
        let refusal = (1..=input.len()).find_map(|end| {
            parser.parse(&input.as_bytes()[..end], &LIMITS).err().map(|e| (end, e))
        });
        let error = HttpError::HeadTooLarge { limit: LIMITS.bytes_max };
        assert_eq!(refusal, Some((LIMITS.bytes_max, error)), "{endless:?}");
        assert_eq!(parse_head(input.as_bytes(), &LIMITS), Err(error));
    }
}

#[test]
fn limits_headers_exactly() {
    let lines = |count: usize| vec!["X: y"; count].join("\r\n");
    assert_eq!(valid(&with(&lines(99))).headers().count(), 100);
    let error = HttpError::TooManyHeaders { limit: 100 };
    assert_eq!(refused(&with(&lines(100))), error);
    assert_eq!(error.status(), 431);
}

#[test]
fn refuses_before_the_head_is_complete() {
    for start in [
        "GARBAGE\r\n",
        "PRI * HTTP/2.0\r\n",
        "POST / HTTP/1.1\n",
        "POST / HTTP/1.1\r\nHost: a\n",
        "POST / HTTP/1.1\r\nHost: a\r\n\n",
        "POST / HTTP/1.1\r\nHost: a\r\nHost: a\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n",
        "POST / HTTP/1.1\r\nX: a\r\n folded",
        "POST / HTTP/1.1\r\nX : ",
    ] {
        assert!(parse_head(start.as_bytes(), &LIMITS).is_err(), "{start:?}");
    }
}

#[test]
fn reads_pipelined_heads_with_one_parser() {
    let mut input = with("Content-Length: 0\r\nOrigin: null");
    let second = b"GET /x HTTP/1.0\r\n\r\n";
    let first_len = input.len();
    input.extend_from_slice(second);
    let mut parser = HeadParser::default();
    let first = parser.parse(&input, &LIMITS).unwrap().unwrap();
    assert_eq!((first.len(), first.origin()), (first_len, Some(b"null".as_slice())));
    let next = parser.parse(&input[first_len..], &LIMITS).unwrap().unwrap();
    assert_eq!(next, valid(second));
}
