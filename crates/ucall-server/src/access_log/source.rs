//! Who has made a call, as lines of logs show it.
//!
//! Methods, ids and users are what callers send, so their control characters are escaped, and what
//! is longer than [`SHOWN_MAX`] is cut.

use std::borrow::Cow;

use ucall_engine::Peer;
use ucall_proto::json::Reader;

use crate::caller::Transport;

/// The characters of a caller's text that are shown.
pub(super) const SHOWN_MAX: usize = 128;

/// Who has made a call, and its id.
#[derive(Debug)]
pub struct CallSource {
    peer: Option<String>,
    pub(super) transport: Transport,
    pub(super) user: Option<String>,
    pub(super) method: String,
    /// `None` for a notification.
    id: Option<IdField>,
    trace_id: Option<String>,
}

#[derive(Debug)]
enum IdField {
    Text(String),
    /// A number, or null.
    Json(String),
}

impl CallSource {
    /// Of a method and the text of an id. `traceparent` is the caller's, valid or not.
    pub fn new(
        method: &[u8],
        id: Option<&[u8]>,
        peer: Option<Peer>,
        transport: Transport,
        user: Option<String>,
        traceparent: Option<&[u8]>,
    ) -> Self {
        let peer = match peer {
            // A proxy seldom names its client's port.
            Some(Peer::Address(address)) if address.port() == 0 => Some(address.ip().to_string()),
            Some(Peer::Address(address)) => Some(address.to_string()),
            Some(Peer::Process { pid, .. }) => Some(format!("pid:{pid}")),
            _ => None,
        };
        Self {
            peer,
            transport,
            user: user.map(|user| shown(&user)),
            method: shown(&String::from_utf8_lossy(method)),
            id: id.map(IdField::new),
            trace_id: traceparent.and_then(trace_id),
        }
    }

    /// The fields in text, without the method.
    pub fn text(&self) -> String {
        let mut text = format!("{} {} id={}", self.peer(), self.transport.name(), self.id());
        if let Some(user) = &self.user {
            text += &format!(" user={}", bare(user));
        }
        if let Some(trace_id) = &self.trace_id {
            text += &format!(" trace_id={trace_id}");
        }
        text
    }

    /// The fields as a JSON object.
    pub fn json(&self) -> String {
        format!("{{{}}}", self.json_members().trim_end_matches(','))
    }

    /// The members of [`CallSource::json`], each with a comma behind it.
    pub(super) fn json_members(&self) -> String {
        let peer = self.peer.as_deref().map_or_else(|| "null".to_owned(), quoted);
        let mut text = format!(r#""peer":{peer},"transport":"{}","#, self.transport.name());
        if let Some(user) = &self.user {
            text += &format!(r#""user":{},"#, quoted(user));
        }
        text += &format!(r#""method":{},"#, quoted(&self.method));
        match &self.id {
            None => {}
            Some(IdField::Json(id)) => text += &format!(r#""id":{id},"#),
            Some(IdField::Text(id)) => text += &format!(r#""id":{},"#, quoted(id)),
        }
        if let Some(trace_id) = &self.trace_id {
            text += &format!(r#""trace_id":"{trace_id}","#);
        }
        text
    }

    pub(super) fn peer(&self) -> &str {
        self.peer.as_deref().unwrap_or("-")
    }

    /// The id in text; a string is quoted, so that it differs from a number.
    pub(super) fn id(&self) -> Cow<'_, str> {
        match &self.id {
            None => Cow::Borrowed("-"),
            Some(IdField::Json(text)) => Cow::Borrowed(text),
            Some(IdField::Text(text)) => Cow::Owned(quoted(text)),
        }
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

/// The trace id of a `traceparent` (W3C Trace Context), if it has a valid one.
fn trace_id(traceparent: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(traceparent).ok()?;
    let id = text.split('-').nth(1).filter(|id| id.len() == 32)?;
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (id.bytes().all(is_hex) && id.bytes().any(|byte| byte != b'0')).then(|| id.to_owned())
}

/// The beginning of a text.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

/// A text as it is, if it cannot be taken for another field, and else quoted.
pub(super) fn bare(text: &str) -> Cow<'_, str> {
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

    fn source(id: Option<&[u8]>, user: Option<&str>, traceparent: Option<&[u8]>) -> CallSource {
        let peer = Some(Peer::Address(([127, 0, 0, 1], 9).into()));
        CallSource::new(b"sum", id, peer, Transport::Http, user.map(str::to_owned), traceparent)
    }

    #[test]
    fn fields_are_shown_in_text_and_json() {
        let trace = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let all = source(Some(b"1"), Some("ada"), Some(trace));
        let trace_id = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(all.text(), format!("127.0.0.1:9 http id=1 user=ada trace_id={trace_id}"));
        let caller =
            r#""peer":"127.0.0.1:9","transport":"http","user":"ada","method":"sum","id":1"#;
        assert_eq!(all.json(), format!(r#"{{{caller},"trace_id":"{trace_id}"}}"#));
        let none = source(None, None, None);
        assert_eq!(none.text(), "127.0.0.1:9 http id=-");
        assert_eq!(none.json(), r#"{"peer":"127.0.0.1:9","transport":"http","method":"sum"}"#);
    }

    #[test]
    fn texts_of_callers_are_escaped() {
        let hostile = source(Some(b"\"a\\nb\""), Some("x\ny id=3"), Some(b"00-evil\n-1-01"));
        assert_eq!(hostile.text(), r#"127.0.0.1:9 http id="a\u000ab" user="x\u000ay id=3""#);
        assert!(hostile.json().contains(r#""user":"x\u000ay id=3","method""#));
    }

    #[test]
    fn only_a_valid_trace_id_is_shown() {
        let zeros = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
        let capital = format!("00-{}-b7ad6b7169203331-01", "A".repeat(32));
        let short = format!("00-{}-b7ad6b7169203331-01", "a".repeat(31));
        for text in [zeros, capital, short, String::new()] {
            assert_eq!(source(None, None, Some(text.as_bytes())).trace_id, None, "{text}");
        }
    }
}
