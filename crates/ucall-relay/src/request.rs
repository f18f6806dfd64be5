//! What is written to an upstream for a call.
//!
//! The method and the params come first. What depends on the connection, such as the id, comes
//! last, so that a call whose text was never sent is written again for another connection.

use std::time::Instant;

use ucall_proto::Call;
use ucall_proto::json::{Text, write_string};
use ucall_server::Deadline;

/// What goes along with a call beside its method and params.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallContext {
    /// The relays that the call has passed.
    pub(crate) hops: u32,
    pub(crate) deadline: Option<Deadline>,
    pub(crate) trace: Option<Box<TraceContext>>,
    /// Whether the caller takes the items of a stream.
    pub(crate) takes_items: bool,
    /// Whether line breaks may be in the reply, because it is no line.
    pub(crate) keeps_line_breaks: bool,
}

/// The caller's trace (W3C Trace Context), in visible ASCII.
#[derive(Clone, Debug)]
pub(crate) struct TraceContext {
    parent: String,
    state: Option<String>,
}

impl TraceContext {
    /// That of a request: in its `_meta`, or else in its HTTP headers.
    pub(crate) fn of(request: &Call<'_>) -> Option<Box<Self>> {
        let unescaped = |text: Text<'_>| text_of(&text.unescaped());
        let in_meta = request.meta.and_then(|meta| Some((meta, unescaped(meta.traceparent()?)?)));
        if let Some((meta, parent)) = in_meta {
            let state = meta.tracestate().and_then(unescaped);
            return Some(Box::new(Self { parent, state }));
        }
        let head = request.head?;
        let parent = text_of(head.header("traceparent")?)?;
        Some(Box::new(Self { parent, state: head.header("tracestate").and_then(text_of) }))
    }

    /// Names and values, for `_meta` and for HTTP alike.
    pub(crate) fn members(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let state = self.state.as_deref().map(|state| ("tracestate", state));
        std::iter::once(("traceparent", self.parent.as_str())).chain(state)
    }
}

/// The names of the method and the params, and what is between them.
const AROUND_BYTES: usize = 64;
/// The hops, the time, the token and the id, with all digits.
const ADDED_BYTES_MAX: usize = 128;
/// The longest text: two of them fit into the heads and the `_meta` that upstreams take.
const TEXT_BYTES_MAX: usize = 1024;

/// A text that may be in a header: line breaks would end it.
fn text_of(bytes: &[u8]) -> Option<String> {
    let is_visible = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    // In `_meta` these have a backslash.
    let escaped = bytes.iter().filter(|byte| matches!(byte, b'"' | b'\\')).count();
    (is_visible && bytes.len() + escaped <= TEXT_BYTES_MAX)
        .then(|| String::from_utf8_lossy(bytes).into_owned())
}

/// Appends the text of a call up to its params. The method is as within the quotes of its text.
/// `added_bytes` may be added later: a long text is not copied for them.
pub(crate) fn write_call(
    out: &mut Vec<u8>,
    method: &[u8],
    params: Option<&[u8]>,
    added_bytes: usize,
) {
    out.reserve(AROUND_BYTES + method.len() + params.map_or(0, <[u8]>::len) + added_bytes);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":""#);
    out.extend_from_slice(method);
    out.push(b'"');
    if let Some(params) = params {
        out.extend_from_slice(br#","params":"#);
        out.extend_from_slice(params);
    }
}

/// Appends `_meta` to a call, for a server of this project. The items of a stream have the token
/// `token`.
pub(crate) fn write_meta(
    out: &mut Vec<u8>,
    context: &CallContext,
    token: Option<u32>,
    now: Instant,
) {
    out.extend_from_slice(br#","_meta":{"hops":"#);
    write_number(out, u64::from(context.hops));
    if let Some(deadline) = context.deadline {
        let remaining = deadline.at.saturating_duration_since(now);
        out.extend_from_slice(br#","timeout_ms":"#);
        write_number(out, remaining.as_millis().max(1) as u64);
    }
    if let Some(token) = token.filter(|_| context.takes_items) {
        out.extend_from_slice(br#","progressToken":"#);
        write_number(out, u64::from(token));
    }
    for (name, value) in context.trace.iter().flat_map(|trace| trace.members()) {
        out.extend_from_slice(b",\"");
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        write_string(out, value);
    }
    out.push(b'}');
}

/// The longest text that [`write_meta`] and [`end_call`] append.
pub(crate) fn added_bytes_max(trace: Option<&TraceContext>) -> usize {
    // A character of a trace has two bytes at most, once it is escaped.
    let members = trace.into_iter().flat_map(TraceContext::members);
    let members = members.map(|(name, value)| name.len() + 2 * value.len() + 6);
    ADDED_BYTES_MAX + members.sum::<usize>()
}

/// Ends a call, whose id is `id`; a notification without one.
pub(crate) fn end_call(out: &mut Vec<u8>, id: Option<u32>) {
    if let Some(id) = id {
        out.extend_from_slice(br#","id":"#);
        write_number(out, u64::from(id));
    }
    out.extend_from_slice(b"}\n");
}

/// Appends the notification that asks to cancel a call.
pub(crate) fn write_cancel(out: &mut Vec<u8>, id: u32) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":"#);
    write_number(out, u64::from(id));
    out.extend_from_slice(b"}}\n");
}

/// Appends a number in decimal digits.
pub(crate) fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_its_params_and_gets_the_id_of_its_slot() {
        let (mut out, now) = (Vec::new(), Instant::now());
        let trace = TraceContext { parent: "00-1-2-01".to_owned(), state: Some("a=\"".to_owned()) };
        let context = CallContext {
            hops: 2,
            deadline: None,
            trace: Some(Box::new(trace)),
            takes_items: true,
            keeps_line_breaks: false,
        };
        write_call(&mut out, br"a\u002eb", Some(b"[ 1.0 ]"), 0);
        write_meta(&mut out, &context, Some(7), now);
        end_call(&mut out, Some(7));
        write_call(&mut out, b"n", None, 0);
        end_call(&mut out, None);
        write_cancel(&mut out, 7);
        let expected = concat!(
            r#"{"jsonrpc":"2.0","method":"a\u002eb","params":[ 1.0 ],"#,
            r#""_meta":{"hops":2,"progressToken":7,"#,
            r#""traceparent":"00-1-2-01","tracestate":"a=\""},"id":7}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"n"}"#,
            "\n",
            r#"{"jsonrpc":"2.0","method":"$/cancelRequest","params":{"id":7}}"#,
            "\n",
        );
        assert_eq!(out.escape_ascii().to_string(), expected.as_bytes().escape_ascii().to_string());
    }

    #[test]
    fn a_trace_that_could_end_a_header_is_dropped() {
        assert_eq!(text_of(b"00-1-2-01").as_deref(), Some("00-1-2-01"));
        assert!(text_of(&[b'a'; TEXT_BYTES_MAX]).is_some());
        assert!(text_of(&[b'"'; TEXT_BYTES_MAX / 2]).is_some());
        let (long, quotes) = ([b'a'; TEXT_BYTES_MAX + 1], [b'"'; TEXT_BYTES_MAX / 2 + 1]);
        for bytes in [&b"a\r\nX: 1"[..], b"\xff", b"a\0", &long, &quotes] {
            assert_eq!(text_of(bytes), None);
        }
    }
}
