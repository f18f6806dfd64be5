//! The extensions of a chunk (RFC 9112, section 7.1.1), checked a byte at a time and ignored.
//!
//! ```text
//! chunk-ext = *( BWS ";" BWS chunk-ext-name [ BWS "=" BWS chunk-ext-val ] )
//! ```
//!
//! | state        | byte             | next                        |
//! |--------------|------------------|-----------------------------|
//! | `Start`      | token byte       | `Name`                      |
//! | `Name`       | token byte       | `Name`                      |
//! | `NameEnd`    | `=`              | `ValueStart`                |
//! | `ValueStart` | token byte       | `Value`                     |
//! | `ValueStart` | `"`              | `Quoted`                    |
//! | `Value`      | token byte       | `Value`                     |
//! | `Quoted`     | `\`              | `QuotedPair`                |
//! | `Quoted`     | `"`              | `QuoteEnd`                  |
//! | `Quoted`     | other text       | `Quoted`                    |
//! | `QuotedPair` | text             | `Quoted`                    |
//!
//! White space leads from `Name` to `NameEnd` and from `Value` and `QuoteEnd` to `ValueEnd`, and
//! changes nothing in front of a name, `=`, a value or `;`. `=` may follow `Name` as well. A `;`
//! leads from behind a name or a value to `Start`. The line ends directly behind a name or a value.
//!
//! The grammar allows white space also between the size and the first `;`. The decoder refuses it
//! there, because strict parsers (h11, llhttp) do.

use super::bytes::{is_text, is_token};

/// The state within the extensions of one chunk, which start after a `;`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkExtension {
    Start,
    Name,
    NameEnd,
    ValueStart,
    Value,
    ValueEnd,
    Quoted,
    QuotedPair,
    QuoteEnd,
}

impl ChunkExtension {
    /// The state after `byte`; `None` where the grammar does not allow it.
    pub(super) fn after(self, byte: u8) -> Option<Self> {
        use ChunkExtension::{
            Name, NameEnd, QuoteEnd, Quoted, QuotedPair, Start, Value, ValueEnd, ValueStart,
        };
        match (self, byte) {
            (QuotedPair, _) if is_text(byte) => Some(Quoted),
            (Quoted, b'\\') => Some(QuotedPair),
            (Quoted, b'"') => Some(QuoteEnd),
            (Quoted, _) if is_text(byte) => Some(Quoted),
            (Start | NameEnd | ValueStart | ValueEnd, b' ' | b'\t') => Some(self),
            (Name, b' ' | b'\t') => Some(NameEnd),
            (Value | QuoteEnd, b' ' | b'\t') => Some(ValueEnd),
            (Name | NameEnd | Value | ValueEnd | QuoteEnd, b';') => Some(Start),
            (Name | NameEnd, b'=') => Some(ValueStart),
            (ValueStart, b'"') => Some(Quoted),
            (Start | Name, _) if is_token(byte) => Some(Name),
            (ValueStart | Value, _) if is_token(byte) => Some(Value),
            _ => None,
        }
    }

    /// Whether the line may end here.
    pub(super) fn is_complete(self) -> bool {
        matches!(self, Self::Name | Self::Value | Self::QuoteEnd)
    }
}
