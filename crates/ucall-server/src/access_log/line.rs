//! The fields of a line, and its two formats.

use std::io::Write;
use std::time::Duration;

use ucall_proto::Call;
use ucall_proto::http1::{Head, civil_date};

use super::source::{CallSource, bare};
use crate::caller::{Caller, Transport};

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
    source: CallSource,
    params_bytes: usize,
}

impl CallFields {
    pub(super) fn new(
        call: &Call<'_>,
        caller: &Caller,
        transport: Transport,
        user: Option<String>,
    ) -> Self {
        let (method, params_bytes) = (call.method.unescaped(), call.params.map_or(0, <[u8]>::len));
        let source = CallSource::new(&method, call.id, caller.peer, transport, user, None);
        Self { source, params_bytes }
    }

    /// Those of a request to an application, without its query, which may be secret.
    pub(super) fn of_request(head: &Head<'_>, body_bytes: usize, caller: &Caller) -> Self {
        let (path, _) = head.path_and_query();
        let text = [head.method_text(), b" ", path].concat();
        let source = CallSource::new(&text, None, caller.peer, Transport::Http, None, None);
        Self { source, params_bytes: body_bytes }
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
        let CallSource { transport, user, .. } = &self.source;
        let (peer, transport) = (self.source.peer(), transport.name());
        let (method, id, bytes_in) =
            (bare(&self.source.method), self.source.id(), self.params_bytes);
        let code = code.map_or_else(|| "ok".to_owned(), |code| code.to_string());
        write!(out, "{time} {peer} {transport} {method} id={id} {code} {duration_ms:.3}ms ")?;
        write!(out, "in={bytes_in} out={result_bytes}")?;
        match user {
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
        write!(out, r#"{{"time":"{time}",{}"#, self.source.json_members())?;
        let code = code.map_or_else(|| "null".to_owned(), |code| code.to_string());
        write!(out, r#""code":{code},"duration_ms":{duration_ms:.3},"#)?;
        writeln!(out, r#""bytes_in":{},"bytes_out":{result_bytes}}}"#, self.params_bytes)
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

#[cfg(test)]
mod tests {
    use ucall_engine::Peer;

    use super::super::source::SHOWN_MAX;
    use super::*;

    fn fields(method: &str, id: Option<&[u8]>, user: Option<&str>) -> CallFields {
        let (peer, user) =
            (Some(Peer::Address(([127, 0, 0, 1], 9).into())), user.map(str::to_owned));
        let source = CallSource::new(method.as_bytes(), id, peer, Transport::WebSocket, user, None);
        CallFields { source, params_bytes: 5 }
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
