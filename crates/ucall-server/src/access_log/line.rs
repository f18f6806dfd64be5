//! The fields of a line, and its two formats.
//!
//! Methods, ids and users are what callers send, so their control characters are escaped, and what
//! is longer than [`SHOWN_MAX`] is cut.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use ucall_engine::Peer;
use ucall_proto::Call;
use ucall_proto::http1::{Head, civil_date};
use ucall_proto::json::Reader;

use crate::caller::{Caller, Transport};

/// The characters of a caller's text that are shown.
const SHOWN_MAX: usize = 128;

/// How lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object on each line.
    Json,
}

/// The fields that are known when a call begins.
#[derive(Debug)]
pub(super) struct CallFields {
    peer: Option<String>,
    transport: Transport,
    user: Option<String>,
    method: String,
    /// `None` for a notification.
    id: Option<IdField>,
    params_bytes: usize,
}

#[derive(Debug)]
enum IdField {
    Text(String),
    /// A number, or null.
    Json(String),
}

impl CallFields {
    pub(super) fn new(
        call: &Call<'_>,
        caller: &Caller,
        transport: Transport,
        user: Option<String>,
    ) -> Self {
        Self {
            peer: peer_of(caller),
            transport,
            user: user.map(|user| shown(&user)),
            method: shown(&String::from_utf8_lossy(&call.method.unescaped())),
            id: call.id.map(IdField::new),
            params_bytes: call.params.map_or(0, <[u8]>::len),
        }
    }

    /// Those of a request to an application, without its query, which may be secret.
    pub(super) fn of_request(head: &Head<'_>, body_bytes: usize, caller: &Caller) -> Self {
        let (path, _) = head.path_and_query();
        let text = [head.method_text(), b" ", path].concat();
        Self {
            peer: peer_of(caller),
            transport: Transport::Http,
            user: None,
            method: shown(&String::from_utf8_lossy(&text)),
            id: None,
            params_bytes: body_bytes,
        }
    }

    /// Appends the line of a call that has ended.
    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        format: LogFormat,
        unix_time: Duration,
        duration: Duration,
        code: Option<i64>,
        result_bytes: usize,
    ) {
        let time = time_text(unix_time);
        let duration_ms = duration.as_micros() as f64 / 1e3;
        let written = match format {
            LogFormat::Text => self.write_text(out, &time, duration_ms, code, result_bytes),
            LogFormat::Json => self.write_json(out, &time, duration_ms, code, result_bytes),
        };
        debug_assert!(written.is_ok(), "memory is always written to");
    }

    fn write_text(
        &self,
        out: &mut Vec<u8>,
        time: &str,
        duration_ms: f64,
        code: Option<i64>,
        result_bytes: usize,
    ) -> std::io::Result<()> {
        let (peer, transport) = (self.peer.as_deref().unwrap_or("-"), self.transport.name());
        let (method, bytes_in) = (bare(&self.method), self.params_bytes);
        let id = match &self.id {
            None => Cow::Borrowed("-"),
            Some(IdField::Json(text)) => Cow::Borrowed(&**text),
            // Quoted, so that it differs from a number.
            Some(IdField::Text(text)) => Cow::Owned(quoted(text)),
        };
        let code = code.map_or_else(|| "ok".to_owned(), |code| code.to_string());
        write!(out, "{time} {peer} {transport} {method} id={id} {code} {duration_ms:.3}ms ")?;
        write!(out, "in={bytes_in} out={result_bytes}")?;
        match &self.user {
            Some(user) => writeln!(out, " user={}", bare(user)),
            None => writeln!(out),
        }
    }

    fn write_json(
        &self,
        out: &mut Vec<u8>,
        time: &str,
        duration_ms: f64,
        code: Option<i64>,
        result_bytes: usize,
    ) -> std::io::Result<()> {
        let peer = self.peer.as_deref().map_or_else(|| "null".to_owned(), quoted);
        let (transport, method) = (self.transport.name(), quoted(&self.method));
        write!(out, r#"{{"time":"{time}","peer":{peer},"transport":"{transport}","#)?;
        if let Some(user) = &self.user {
            write!(out, r#""user":{},"#, quoted(user))?;
        }
        write!(out, r#""method":{method},"#)?;
        match &self.id {
            None => {}
            Some(IdField::Json(text)) => write!(out, r#""id":{text},"#)?,
            Some(IdField::Text(text)) => write!(out, r#""id":{},"#, quoted(text))?,
        }
        let code = code.map_or_else(|| "null".to_owned(), |code| code.to_string());
        write!(out, r#""code":{code},"duration_ms":{duration_ms:.3},"#)?;
        writeln!(out, r#""bytes_in":{},"bytes_out":{result_bytes}}}"#, self.params_bytes)
    }
}

fn peer_of(caller: &Caller) -> Option<String> {
    match caller.peer {
        // A proxy seldom names its client's port.
        Some(Peer::Address(address)) if address.port() == 0 => Some(address.ip().to_string()),
        Some(Peer::Address(address)) => Some(address.to_string()),
        Some(Peer::Process { pid, .. }) => Some(format!("pid:{pid}")),
        _ => None,
    }
}

impl IdField {
    fn new(json: &[u8]) -> Self {
        if json.starts_with(b"\"") {
            let text = Reader::new(json).string();
            return Self::Text(shown(&String::from_utf8_lossy(&text.unescaped())));
        }
        let text = String::from_utf8_lossy(json);
        match text.len() > SHOWN_MAX {
            true => Self::Text(shown(&text)),
            false => Self::Json(text.into_owned()),
        }
    }
}

/// Appends the line that follows dropped ones.
pub(super) fn write_dropped(out: &mut Vec<u8>, format: LogFormat, unix_time: Duration, count: u64) {
    let time = time_text(unix_time);
    let line = match format {
        LogFormat::Text => format!("{time} dropped {count} lines: they were written too slowly\n"),
        LogFormat::Json => format!("{{\"time\":\"{time}\",\"dropped_lines\":{count}}}\n"),
    };
    out.extend_from_slice(line.as_bytes());
}

/// RFC 3339, in UTC with milliseconds.
fn time_text(unix_time: Duration) -> String {
    let (seconds, millis) = (unix_time.as_secs(), unix_time.subsec_millis());
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// The beginning of a text.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// A text as it is, if it cannot be taken for another field, and else quoted.
fn bare(text: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'=');
    match !text.is_empty() && text != "-" && text.bytes().all(is_plain) {
        true => Cow::Borrowed(text),
        false => Cow::Owned(quoted(text)),
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            _ if is_unsafe(letter) => quoted += &format!("\\u{:04x}", u32::from(letter)),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Whether a letter may change how a terminal or an editor shows the rest: control characters,
/// separators of lines, and marks that turn the direction of writing.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(letter, '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(method: &str, id: Option<&[u8]>, user: Option<&str>) -> CallFields {
        CallFields {
            peer: Some("127.0.0.1:9".to_owned()),
            transport: Transport::WebSocket,
            user: user.map(shown),
            method: shown(method),
            id: id.map(IdField::new),
            params_bytes: 5,
        }
    }

    fn line(fields: &CallFields, format: LogFormat, code: Option<i64>) -> String {
        let mut out = Vec::new();
        let (time, duration) =
            (Duration::from_millis(1_795_381_201_042), Duration::from_nanos(1_234_567));
        fields.write(&mut out, format, time, duration, code, 7);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn both_formats_have_all_fields() {
        let with_all = fields("a.sum", Some(b"1"), Some("ada"));
        assert_eq!(
            line(&with_all, LogFormat::Text, None),
            "2026-11-22T21:00:01.042Z 127.0.0.1:9 websocket a.sum id=1 ok 1.234ms in=5 out=7 \
             user=ada\n"
        );
        assert_eq!(
            line(&with_all, LogFormat::Json, Some(-32602)),
            "{\"time\":\"2026-11-22T21:00:01.042Z\",\"peer\":\"127.0.0.1:9\",\
             \"transport\":\"websocket\",\"user\":\"ada\",\"method\":\"a.sum\",\"id\":1,\
             \"code\":-32602,\"duration_ms\":1.234,\"bytes_in\":5,\"bytes_out\":7}\n"
        );
        let notification = fields("sum", None, None);
        assert!(
            line(&notification, LogFormat::Text, Some(7)).ends_with("id=- 7 1.234ms in=5 out=7\n")
        );
        assert!(!line(&notification, LogFormat::Json, None).contains("\"id\""));
    }

    #[test]
    fn texts_of_callers_are_escaped_and_cut() {
        let id = br#""1\n2\u202e""#;
        let hostile = fields("a\n2026 \x1b[31m\u{9b}\"\\=", Some(id), Some("x y"));
        let method = r#""a\u000a2026 \u001b[31m\u009b\"\\=""#;
        let text = line(&hostile, LogFormat::Text, None);
        assert!(text.contains(&format!(r#" {method} id="1\u000a2\u202e" ok "#)), "{text}");
        assert!(text.ends_with("user=\"x y\"\n"), "{text}");
        let json = line(&hostile, LogFormat::Json, None);
        assert!(json.contains(&format!(r#""method":{method},"id":"1\u000a2\u202e","#)), "{json}");
        assert_eq!(bare("-"), "\"-\"");
        assert_eq!(bare(""), "\"\"");
        let long = fields(&"é".repeat(200), Some(&[b'1'; 200]), None);
        let json = line(&long, LogFormat::Json, None);
        assert!(json.contains(&format!("\"{}…\"", "é".repeat(SHOWN_MAX))), "{json}");
        assert!(json.contains(&format!("\"id\":\"{}…\"", "1".repeat(SHOWN_MAX))), "{json}");
    }
}
