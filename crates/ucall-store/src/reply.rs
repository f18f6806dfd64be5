//! Writes the results of the native procedures.

use base64ct::{Base64, Encoding};
use ucall_proto::json::{is_plain_ascii, write_i64, write_string};

use crate::change::{Change, Event};
use crate::entry::StoredValue;
use crate::operation::Outcome;

/// Appends `{"version":1,"value":…}`.
pub(crate) fn write_entry(out: &mut Vec<u8>, entry: &StoredValue<'_>) {
    out.push(b'{');
    write_members(out, entry);
}

/// The most bytes of an item beside its key and value, if these are written as they are.
const ITEM_BYTES: usize = r#"{"key":"","version":,"value":},"#.len() + 20;

/// Appends `{"key":"…","version":1,"value":…}`.
#[inline]
pub(crate) fn write_item(out: &mut Vec<u8>, key: &[u8], entry: &StoredValue<'_>) {
    // So that no part of it grows the memory.
    out.reserve(ITEM_BYTES + key.len() + entry.bytes.len());
    out.extend_from_slice(br#"{"key":"#);
    write_key(out, key);
    out.push(b',');
    write_members(out, entry);
}

/// Appends `{"key":"…","value":…}`, with `"expires_at_ms"` if the entry expires, and a line break.
pub(crate) fn write_dumped(out: &mut Vec<u8>, key: &[u8], entry: &StoredValue<'_>) {
    out.extend_from_slice(br#"{"key":"#);
    write_key(out, key);
    write_value(out, entry.is_json, entry.bytes);
    if entry.expires_at != 0 {
        out.extend_from_slice(br#","expires_at_ms":"#);
        write_i64(out, entry.expires_at as i64);
    }
    out.extend_from_slice(b"}\n");
}

/// Appends `{"event":"put","key":"…","version":1,"value":…}`, or another event without a value.
pub(crate) fn write_change(out: &mut Vec<u8>, version: u64, change: &Change<'_>) {
    let event: &[u8] = match change.event {
        Event::Json(_) | Event::Bytes(_) => br#"{"event":"put","key":"#,
        Event::Deleted => br#"{"event":"delete","key":"#,
        Event::Expired => br#"{"event":"expire","key":"#,
    };
    out.extend_from_slice(event);
    write_key(out, change.key);
    out.extend_from_slice(br#","version":"#);
    write_i64(out, version as i64);
    match change.event {
        Event::Json(text) => write_value(out, true, text),
        Event::Bytes(bytes) => write_value(out, false, bytes),
        Event::Deleted | Event::Expired => {}
    }
    out.push(b'}');
}

/// Appends the first item of a watcher: the version after which it gets changes.
pub(crate) fn write_watched(out: &mut Vec<u8>, version: u64) {
    out.extend_from_slice(br#"{"event":"watch","version":"#);
    write_i64(out, version as i64);
    out.push(b'}');
}

#[inline]
fn write_members(out: &mut Vec<u8>, entry: &StoredValue<'_>) {
    out.extend_from_slice(br#""version":"#);
    write_i64(out, entry.version as i64);
    write_value(out, entry.is_json, entry.bytes);
    out.push(b'}');
}

#[inline]
fn write_value(out: &mut Vec<u8>, is_json: bool, bytes: &[u8]) {
    if !is_json {
        return write_base64(out, br#","bytes":""#, bytes);
    }
    out.extend_from_slice(br#","value":"#);
    out.extend_from_slice(bytes);
}

/// Appends bytes as a string, after `opening`, which ends with its quote.
#[inline(never)]
fn write_base64(out: &mut Vec<u8>, opening: &[u8], bytes: &[u8]) {
    out.extend_from_slice(opening);
    out.extend_from_slice(Base64::encode_string(bytes).as_bytes());
    out.push(b'"');
}

/// Appends a key, or `null`.
pub(crate) fn write_cursor(out: &mut Vec<u8>, cursor: Option<&[u8]>) {
    match cursor {
        Some(cursor) => write_key(out, cursor),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends a key as a string, or `{"bytes":"…"}` if it is no UTF-8.
#[inline]
fn write_key(out: &mut Vec<u8>, key: &[u8]) {
    if !is_plain_ascii(key) {
        return write_other_key(out, key);
    }
    out.push(b'"');
    out.extend_from_slice(key);
    out.push(b'"');
}

#[cold]
fn write_other_key(out: &mut Vec<u8>, key: &[u8]) {
    match std::str::from_utf8(key) {
        Ok(text) => write_string(out, text),
        Err(_) => {
            write_base64(out, br#"{"bytes":""#, key);
            out.push(b'}');
        }
    }
}

/// Appends what a write has done.
pub(crate) fn write_outcome(out: &mut Vec<u8>, outcome: &Outcome) {
    match outcome {
        Outcome::Version(version) => write_i64(out, *version as i64),
        Outcome::OtherVersion => out.extend_from_slice(b"null"),
        Outcome::Deleted(was_present) => {
            out.extend_from_slice(if *was_present { b"true" } else { b"false" });
        }
        Outcome::Number(number) => write_i64(out, *number),
        Outcome::Batch(outcomes) => {
            out.push(b'[');
            for (index, outcome) in outcomes.iter().enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                write_outcome(out, outcome);
            }
            out.push(b']');
        }
    }
}
