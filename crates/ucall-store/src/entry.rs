//! A value as it is stored: a header of 17 bytes, and its bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 1 | the kind: 0 for JSON text, 1 for bytes |
//! | 8 | the version, little-endian |
//! | 8 | when it expires, in milliseconds since 1970, little-endian; 0 for never |

const HEADER_BYTES: usize = 17;
const JSON: u8 = 0;
const BYTES: u8 = 1;

/// A value of a caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// JSON text, which is valid and has no line breaks.
    Json(Vec<u8>),
    /// Any bytes.
    Bytes(Vec<u8>),
}

impl Value {
    pub(crate) fn bytes(&self) -> &[u8] {
        let (Self::Json(bytes) | Self::Bytes(bytes)) = self;
        bytes
    }
}

/// A stored value, in the memory of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoredValue<'a> {
    pub(crate) version: u64,
    /// In milliseconds since 1970; 0 for never.
    pub(crate) expires_at: u64,
    pub(crate) is_json: bool,
    pub(crate) bytes: &'a [u8],
}

impl<'a> StoredValue<'a> {
    /// `None` if another program has written it.
    pub(crate) fn decode(stored: &'a [u8]) -> Option<Self> {
        let (kind, rest) = stored.split_first()?;
        let (version, rest) = rest.split_first_chunk::<8>()?;
        let (expires_at, bytes) = rest.split_first_chunk::<8>()?;
        (*kind <= BYTES).then_some(Self {
            version: u64::from_le_bytes(*version),
            expires_at: u64::from_le_bytes(*expires_at),
            is_json: *kind == JSON,
            bytes,
        })
    }

    /// Whether it counts as absent at `now`, in milliseconds since 1970.
    #[inline]
    pub(crate) fn has_expired(&self, now: u64) -> bool {
        self.expires_at != 0 && self.expires_at <= now
    }
}

/// Encodes a value.
pub(crate) fn encode(value: &Value, version: u64, expires_at: u64) -> Vec<u8> {
    let kind = if matches!(value, Value::Json(_)) { JSON } else { BYTES };
    let mut stored = Vec::with_capacity(HEADER_BYTES + value.bytes().len());
    stored.push(kind);
    stored.extend_from_slice(&version.to_le_bytes());
    stored.extend_from_slice(&expires_at.to_le_bytes());
    stored.extend_from_slice(value.bytes());
    stored
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back_and_short_or_unknown_ones_are_refused() {
        for value in [Value::Json(b"[1]".to_vec()), Value::Bytes(b"\0\xff".to_vec())] {
            let stored = encode(&value, 7, 9);
            let read = StoredValue::decode(&stored).unwrap();
            assert_eq!((read.version, read.expires_at, read.bytes), (7, 9, value.bytes()));
            assert_eq!(read.is_json, matches!(value, Value::Json(_)));
            assert!(!read.has_expired(8) && read.has_expired(9));
            assert_eq!(StoredValue::decode(&stored[..HEADER_BYTES - 1]), None);
        }
        assert_eq!(StoredValue::decode(&[2; 20]), None);
        assert!(!StoredValue::decode(&[0; 17]).unwrap().has_expired(u64::MAX));
    }
}
