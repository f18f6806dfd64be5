//! A change of one key, as it is logged for watchers.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the kind: 0 for JSON text, 1 for bytes, 2 for a deletion, 3 for an expiry |
//! | 2 | the length of the key, little-endian |
//! | … | the key, and the new value |

use crate::entry::Value;

const JSON: u8 = 0;
const BYTES: u8 = 1;
const DELETED: u8 = 2;
const EXPIRED: u8 = 3;

/// What happened to a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Event<'a> {
    /// It has a new value: JSON text.
    Json(&'a [u8]),
    /// It has a new value: bytes.
    Bytes(&'a [u8]),
    Deleted,
    Expired,
}

/// A change of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) event: Event<'a>,
}

impl<'a> From<&'a Value> for Event<'a> {
    fn from(value: &'a Value) -> Self {
        match value {
            Value::Json(text) => Self::Json(text),
            Value::Bytes(bytes) => Self::Bytes(bytes),
        }
    }
}

impl<'a> Change<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, value): (_, &[u8]) = match self.event {
            Event::Json(text) => (JSON, text),
            Event::Bytes(bytes) => (BYTES, bytes),
            Event::Deleted => (DELETED, &[]),
            Event::Expired => (EXPIRED, &[]),
        };
        let key_len = (self.key.len() as u16).to_le_bytes();
        [&[kind], &key_len[..], self.key, value].concat()
    }

    /// `None` if another program has written it.
    pub(crate) fn decode(logged: &'a [u8]) -> Option<Self> {
        let (kind, rest) = logged.split_first()?;
        let (key_len, rest) = rest.split_first_chunk::<2>()?;
        let (key, value) = rest.split_at_checked(usize::from(u16::from_le_bytes(*key_len)))?;
        let event = match *kind {
            JSON => Event::Json(value),
            BYTES => Event::Bytes(value),
            DELETED => Event::Deleted,
            EXPIRED => Event::Expired,
            _ => return None,
        };
        Some(Self { key, event })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_read_back_and_short_or_unknown_ones_are_refused() {
        for event in [Event::Json(b"1"), Event::Bytes(b"\0"), Event::Deleted, Event::Expired] {
            let change = Change { key: b"ab\xff", event };
            let logged = change.encode();
            assert_eq!(Change::decode(&logged), Some(change));
            assert_eq!(Change::decode(&logged[..5]), None);
        }
        assert_eq!(Change::decode(&[4, 1, 0, b'a']), None);
    }
}
