//! Writes the results of the native procedures.

use base64ct::{Base64, Encoding};
use ucall_proto::json::{write_i64, write_string};

use crate::entry::StoredValue;
use crate::operation::Outcome;

/// Appends `{"version":1,"value":…}`.
pub(crate) fn write_entry(out: &mut Vec<u8>, entry: &StoredValue<'_>) {
    out.push(b'{');
    write_members(out, entry);
}

/// Appends `{"key":"…","version":1,"value":…}`.
pub(crate) fn write_item(out: &mut Vec<u8>, key: &[u8], entry: &StoredValue<'_>) {
    out.extend_from_slice(br#"{"key":"#);
    write_key(out, key);
    out.push(b',');
    write_members(out, entry);
}

fn write_members(out: &mut Vec<u8>, entry: &StoredValue<'_>) {
    out.extend_from_slice(br#""version":"#);
    write_i64(out, entry.version as i64);
    if entry.is_json {
        out.extend_from_slice(br#","value":"#);
        out.extend_from_slice(entry.bytes);
    } else {
        out.extend_from_slice(br#","bytes":""#);
        out.extend_from_slice(Base64::encode_string(entry.bytes).as_bytes());
        out.push(b'"');
    }
    out.push(b'}');
}

/// Appends a key as a string, or `null`.
pub(crate) fn write_cursor(out: &mut Vec<u8>, cursor: Option<&[u8]>) {
    match cursor {
        Some(cursor) => write_key(out, cursor),
        None => out.extend_from_slice(b"null"),
    }
}

fn write_key(out: &mut Vec<u8>, key: &[u8]) {
    write_string(out, &String::from_utf8_lossy(key));
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
