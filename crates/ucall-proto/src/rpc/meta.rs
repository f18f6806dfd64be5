//! The optional member `_meta` of a request: what a call needs beside its params.
//!
//! | member | meaning |
//! |---|---|
//! | `progressToken` | the caller takes a stream's items by `$/progress`, with this token |
//! | `timeout_ms` | the caller waits no longer than that |
//! | `priority` | which calls wait for a batch before others: -8 to 7, higher first |
//! | `cookie` | validates the caller's address, over UDP ([`CookieKey`](crate::CookieKey)) |
//! | `traceparent`, `tracestate` | the caller's trace (W3C Trace Context) |
//! | `hops` | the number of relays that the call has passed; only `ucall-relay` reads it |
//!
//! Other members are ignored. Over HTTP the headers `Accept`, `Ucall-Timeout-Ms`, `traceparent` and
//! `tracestate` can take the place of the members.

use std::time::Duration;

use crate::json::{Reader, Text, ValueKind};

/// Checks the members that are known. `text` is valid JSON, and an object.
pub(super) fn check(text: &[u8]) -> Result<(), &'static str> {
    check_members(text, |_, _| {}).map(drop)
}

/// [`check`], which passes on the names and the values of members that are not known here. Returns
/// whether there are others.
pub(super) fn check_members<'a>(
    text: &'a [u8],
    mut other: impl FnMut(&[u8], &'a [u8]),
) -> Result<bool, &'static str> {
    let mut has_known = false;
    let mut reader = Reader::new(text);
    reader.enter();
    while let Some(name) = reader.next_key() {
        let (kind, start) = (reader.kind(), reader.skip());
        let (is_valid, expected) = match name.unescaped().as_ref() {
            b"progressToken" => (
                kind == ValueKind::String || is_integer(start),
                "expected a progressToken that is a string or an integer",
            ),
            b"timeout_ms" => (
                kind == ValueKind::Number && !start.starts_with(b"-"),
                "expected a timeout_ms that is a number, at least 0",
            ),
            b"priority" => (
                kind == ValueKind::Number && priority_of(start).is_some(),
                "expected a priority that is an integer from -8 to 7",
            ),
            b"traceparent" => (kind == ValueKind::String, "expected a traceparent in a string"),
            b"tracestate" => (kind == ValueKind::String, "expected a tracestate in a string"),
            name => {
                other(name, start);
                continue;
            }
        };
        if !is_valid {
            return Err(expected);
        }
        has_known = true;
    }
    Ok(has_known)
}

fn priority_of(text: &[u8]) -> Option<i8> {
    let priority = std::str::from_utf8(text).ok()?.parse().ok()?;
    (-8..=7).contains(&priority).then_some(priority)
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    digits.iter().all(u8::is_ascii_digit)
}

/// The text of a valid `_meta`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta<'a>(pub &'a [u8]);

impl<'a> Meta<'a> {
    /// The text of the progress token, byte for byte.
    pub fn progress_token(self) -> Option<&'a [u8]> {
        self.find(b"progressToken")
    }

    /// The time after which the caller needs no reply.
    pub fn timeout(self) -> Option<Duration> {
        let millis = Reader::new(self.find(b"timeout_ms")?).number().as_f64();
        Duration::try_from_secs_f64(millis / 1e3).ok()
    }

    /// The priority that the caller asks for.
    pub fn priority(self) -> Option<i8> {
        priority_of(self.find(b"priority")?)
    }

    /// The caller's `traceparent`.
    pub fn traceparent(self) -> Option<Text<'a>> {
        Some(Reader::new(self.find(b"traceparent")?).string())
    }

    /// The caller's `tracestate`.
    pub fn tracestate(self) -> Option<Text<'a>> {
        Some(Reader::new(self.find(b"tracestate")?).string())
    }

    /// The text of the last value with this name.
    pub fn find(self, wanted: &[u8]) -> Option<&'a [u8]> {
        let mut reader = Reader::new(self.0);
        reader.enter();
        let mut found = None;
        while let Some(name) = reader.next_key() {
            let value = reader.skip();
            if name.unescaped().as_ref() == wanted {
                found = Some(value);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_members_are_read_and_others_ignored() {
        let text = br#"{"x":[1],"progressToken":"a\"b","timeout_ms":1.5,"traceparent":"00-1"}"#;
        assert_eq!(check(text), Ok(()));
        let meta = Meta(text);
        assert_eq!(meta.progress_token(), Some(&br#""a\"b""#[..]));
        assert_eq!(meta.timeout(), Some(Duration::from_micros(1500)));
        assert_eq!(meta.traceparent().unwrap().raw(), b"00-1");
        assert!(meta.tracestate().is_none());
        assert_eq!(meta.priority(), None);
        for (text, priority) in [(r#"{"priority":7}"#, 7), (r#"{"priority":-8}"#, -8)] {
            assert_eq!(check(text.as_bytes()), Ok(()));
            assert_eq!(Meta(text.as_bytes()).priority(), Some(priority));
        }
        assert_eq!(
            Meta(br#"{"progressToken":1,"progressToken":-2}"#).progress_token(),
            Some(&b"-2"[..])
        );
        assert_eq!(Meta(b"{}").timeout(), None);
        assert_eq!(Meta(br#"{"timeout_ms":1e300}"#).timeout(), None);
    }

    #[test]
    fn a_member_of_another_type_is_refused_by_its_name() {
        for (text, name) in [
            (r#"{"progressToken":1.5}"#, "progressToken"),
            (r#"{"progressToken":null}"#, "progressToken"),
            (r#"{"progressToken":[]}"#, "progressToken"),
            (r#"{"timeout_ms":"1"}"#, "timeout_ms"),
            (r#"{"timeout_ms":-1}"#, "timeout_ms"),
            (r#"{"priority":8}"#, "priority"),
            (r#"{"priority":-9}"#, "priority"),
            (r#"{"priority":1.0}"#, "priority"),
            (r#"{"priority":"1"}"#, "priority"),
            (r#"{"traceparent":1}"#, "traceparent"),
            (r#"{"tracestate":{}}"#, "tracestate"),
        ] {
            assert!(check(text.as_bytes()).unwrap_err().contains(name), "{text}");
        }
    }
}
