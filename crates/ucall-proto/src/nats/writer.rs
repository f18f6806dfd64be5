//! Writes what a server of calls sends to a broker.

use std::io::Write as _;

use crate::rpc::RpcError;

pub(crate) const PING: &[u8] = b"PING\r\n";
pub(crate) const PONG: &[u8] = b"PONG\r\n";

/// Letters of a message in the header of an error. The payload has all of it.
const ERROR_LINE_LETTERS_MAX: usize = 512;

/// Appends the reply that has a result.
pub(crate) fn write_result(out: &mut Vec<u8>, subject: &[u8], result: &[u8]) {
    out.extend_from_slice(b"PUB ");
    out.extend_from_slice(subject);
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(result.len()).as_bytes());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(result);
    out.extend_from_slice(b"\r\n");
}

/// Appends the reply that has an error, with the headers of ADR-32 and the error as its payload.
pub(crate) fn write_error(out: &mut Vec<u8>, subject: &[u8], error: &RpcError) {
    let (headers, payload) = error_parts(error);
    let (length, total) = (headers.len(), headers.len() + payload.len());
    out.extend_from_slice(b"HPUB ");
    out.extend_from_slice(subject);
    let _ = write!(out, " {length} {total}\r\n");
    out.extend_from_slice(&headers);
    out.extend_from_slice(&payload);
    out.extend_from_slice(b"\r\n");
}

/// The bytes of an error reply that count towards the broker's `max_payload`.
pub(crate) fn error_length(error: &RpcError) -> usize {
    let (headers, payload) = error_parts(error);
    headers.len() + payload.len()
}

fn error_parts(error: &RpcError) -> (Vec<u8>, Vec<u8>) {
    let (code, line) = (error.code, error_line(&error.message));
    let headers = format!(
        "NATS/1.0\r\nNats-Service-Error-Code: {code}\r\nNats-Service-Error: {line}\r\n\r\n"
    );
    let mut payload = Vec::new();
    error.write(&mut payload);
    (headers.into_bytes(), payload)
}

/// A message as a header can have it: one line of ASCII, not empty.
fn error_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    let letters = words.join(" ");
    let printable = |letter| if matches!(letter, ' '..='~') { letter } else { '?' };
    let line: String = letters.chars().take(ERROR_LINE_LETTERS_MAX).map(printable).collect();
    if line.is_empty() { "error".to_owned() } else { line }
}

/// Appends the end of a subscription.
pub(crate) fn write_unsubscribe(out: &mut Vec<u8>, subscription: u64) {
    let _ = write!(out, "UNSUB {subscription}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_have_their_lengths() {
        let result = written(|out| write_result(out, b"_INBOX.1", b"[1,2]"));
        assert_eq!(result, "PUB _INBOX.1 5\r\n[1,2]\r\n");
        let mut error = RpcError::new(7, "no such\r\n item: \u{e9}");
        error.data = Some(b"{}".to_vec());
        let text = written(|out| write_error(out, b"r", &error));
        let headers =
            "NATS/1.0\r\nNats-Service-Error-Code: 7\r\nNats-Service-Error: no such item: ?\r\n\r\n";
        let (line, rest) = text.split_once("\r\n").unwrap();
        let payload = rest.strip_prefix(headers).unwrap().strip_suffix("\r\n").unwrap();
        let total = headers.len() + payload.len();
        assert_eq!(line, format!("HPUB r {} {total}", headers.len()));
        assert_eq!(error_length(&error), total);
        assert!(payload.starts_with(r#"{"code":7,"#) && payload.ends_with(r#""data":{}}"#));
    }

    #[test]
    fn the_line_of_an_error_is_short_and_never_empty() {
        assert_eq!(error_line(" \n "), "error");
        assert_eq!(error_line("a\u{1}b"), "a?b");
        assert_eq!(error_line(&"x".repeat(600)).len(), ERROR_LINE_LETTERS_MAX);
    }
}
