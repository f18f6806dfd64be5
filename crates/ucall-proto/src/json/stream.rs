//! Validates a document that arrives in pieces, reading each byte once, and finds its end.
//!
//! It refuses the same text as [`scan`](super::scan), at the same byte, except for invalid UTF-8,
//! which the scan of the whole document detects. So a document gets the same reply however it is
//! split, and a slow client costs no more than a fast one.

use super::JsonError;
use super::text::plain_prefix;

/// Where in the grammar the next byte falls.
///
/// | state | byte | next |
/// |---|---|---|
/// | `Value`, `ValueOrEnd` | `{` | `KeyOrEnd`, one deeper |
/// | | `[` | `ValueOrEnd`, one deeper |
/// | | `"` | `String` |
/// | | digit, `-` | a number state |
/// | | `t` `f` `n` | `Literal` |
/// | `Key`, `KeyOrEnd` | `"` | `KeyString` |
/// | `Colon` | `:` | `Value` |
/// | `After` | `,` | `Key` or `Value`, by container |
/// | | `}` `]` | `After`, one higher; the end at the top |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DocumentState {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    After,
    String(StringState),
    /// After `-`, `.` or an exponent's sign, where a digit must follow.
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// What is left of `true`, `false` or `null`.
    Literal(&'static [u8]),
}

/// Where inside a string the next byte falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StringState {
    Plain,
    Escape,
    /// The number of missing digits, and the value so far.
    Hex(u8, u16),
    LowBackslash,
    LowU,
    LowHex(u8),
}

/// What a scan passes on, with the number of containers that are open and a position in the bytes
/// of the scan.
pub(crate) trait DocumentEvents {
    /// A value begins with the byte `first`.
    fn value(&mut self, depth: usize, first: u8, at: usize);
    /// The opening quote of a key.
    fn key(&mut self, depth: usize, at: usize);
    /// The closing quote of a key.
    fn key_end(&mut self, depth: usize, at: usize);
    /// The comma or the bracket after a value.
    fn value_end(&mut self, depth: usize, at: usize);
}

/// For a scan that only validates.
struct NoEvents;

impl DocumentEvents for NoEvents {
    #[inline(always)]
    fn value(&mut self, _: usize, _: u8, _: usize) {}
    #[inline(always)]
    fn key(&mut self, _: usize, _: usize) {}
    #[inline(always)]
    fn key_end(&mut self, _: usize, _: usize) {}
    #[inline(always)]
    fn value_end(&mut self, _: usize, _: usize) {}
}

/// Follows one document.
#[derive(Clone, Debug)]
pub struct DocumentStream {
    state: DocumentState,
    /// Whether the string being read is a key.
    key: bool,
    /// For each open container, whether it is an object.
    containers: Vec<bool>,
}

impl Default for DocumentStream {
    fn default() -> Self {
        Self::new()
    }
}

impl DocumentStream {
    /// The start of a document.
    pub fn new() -> Self {
        Self { state: DocumentState::Value, key: false, containers: Vec::new() }
    }

    /// Reads the next bytes; `Some(n)` if the document ends after the first `n` of them.
    ///
    /// A raw document is an object or an array, which end with their bracket.
    ///
    /// # Errors
    /// At the first byte that cannot be part of JSON, or that nests deeper than `nesting_max`.
    pub fn scan(&mut self, bytes: &[u8], nesting_max: usize) -> Result<Option<usize>, JsonError> {
        self.scan_with(bytes, nesting_max, &mut NoEvents)
    }

    /// Reads the next bytes as [`DocumentStream::scan`], and reports keys and values to `events`.
    pub(crate) fn scan_with(
        &mut self,
        bytes: &[u8],
        nesting_max: usize,
        events: &mut impl DocumentEvents,
    ) -> Result<Option<usize>, JsonError> {
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            if self.state == DocumentState::String(StringState::Plain) {
                position += plain_prefix(&bytes[position..]).0;
                let Some(&special) = bytes.get(position) else { break };
                if special == b'"' && self.key {
                    events.key_end(self.containers.len(), position);
                }
                self.string_special(special)?;
            } else if self.step(byte, nesting_max, position, events)? {
                return Ok(Some(position + 1));
            }
            position += 1;
        }
        Ok(None)
    }

    /// Takes one byte; `true` when it ends the document.
    fn step(
        &mut self,
        byte: u8,
        nesting_max: usize,
        position: usize,
        events: &mut impl DocumentEvents,
    ) -> Result<bool, JsonError> {
        if self.number(byte)? {
            return Ok(false);
        }
        match self.state {
            DocumentState::String(inside) => {
                self.state = DocumentState::String(escape(inside, byte)?)
            }
            DocumentState::Literal([expected, rest @ ..]) if byte == *expected => {
                self.state = if rest.is_empty() {
                    DocumentState::After
                } else {
                    DocumentState::Literal(rest)
                };
            }
            DocumentState::Literal(_) => return Err(JsonError::Invalid),
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {}
            DocumentState::After => {
                events.value_end(self.containers.len(), position);
                return self.after(byte);
            }
            DocumentState::ValueOrEnd if byte == b']' => return Ok(self.close()),
            DocumentState::Value | DocumentState::ValueOrEnd => {
                events.value(self.containers.len(), byte, position);
                self.value(byte, nesting_max)?;
            }
            DocumentState::KeyOrEnd if byte == b'}' => return Ok(self.close()),
            DocumentState::Key | DocumentState::KeyOrEnd if byte == b'"' => {
                events.key(self.containers.len(), position);
                self.open_string(true);
            }
            DocumentState::Colon if byte == b':' => self.state = DocumentState::Value,
            _ => return Err(JsonError::Invalid),
        }
        Ok(false)
    }

    fn value(&mut self, byte: u8, nesting_max: usize) -> Result<(), JsonError> {
        self.state = match byte {
            b'{' | b'[' => return self.open(byte == b'{', nesting_max),
            b'"' => {
                self.open_string(false);
                return Ok(());
            }
            b'-' => DocumentState::Minus,
            b'0' => DocumentState::Zero,
            b'1'..=b'9' => DocumentState::Integer,
            b't' => DocumentState::Literal(b"rue"),
            b'f' => DocumentState::Literal(b"alse"),
            b'n' => DocumentState::Literal(b"ull"),
            _ => return Err(JsonError::Invalid),
        };
        Ok(())
    }

    fn open(&mut self, object: bool, nesting_max: usize) -> Result<(), JsonError> {
        if self.containers.len() == nesting_max {
            return Err(JsonError::TooDeep);
        }
        self.containers.push(object);
        self.state = if object { DocumentState::KeyOrEnd } else { DocumentState::ValueOrEnd };
        Ok(())
    }

    fn close(&mut self) -> bool {
        self.containers.pop();
        self.state = DocumentState::After;
        self.containers.is_empty()
    }

    fn after(&mut self, byte: u8) -> Result<bool, JsonError> {
        let object = self.containers.last().copied();
        match (byte, object) {
            (b',', Some(true)) => self.state = DocumentState::Key,
            (b',', Some(false)) => self.state = DocumentState::Value,
            (b'}', Some(true)) | (b']', Some(false)) => return Ok(self.close()),
            _ => return Err(JsonError::Invalid),
        }
        Ok(false)
    }

    fn open_string(&mut self, key: bool) {
        self.key = key;
        self.state = DocumentState::String(StringState::Plain);
    }

    fn string_special(&mut self, byte: u8) -> Result<(), JsonError> {
        self.state = match byte {
            b'"' if self.key => DocumentState::Colon,
            b'"' => DocumentState::After,
            b'\\' => DocumentState::String(StringState::Escape),
            _ => return Err(JsonError::Invalid),
        };
        Ok(())
    }

    /// Takes a byte of a number; `false` when the state is no number or the byte ends it.
    fn number(&mut self, byte: u8) -> Result<bool, JsonError> {
        let digit = byte.is_ascii_digit();
        self.state = match (self.state, byte) {
            (DocumentState::Minus, b'0') => DocumentState::Zero,
            (DocumentState::Minus | DocumentState::Integer, _) if digit => DocumentState::Integer,
            (DocumentState::Zero | DocumentState::Integer, b'.') => DocumentState::Point,
            (DocumentState::Point | DocumentState::Fraction, _) if digit => DocumentState::Fraction,
            (
                DocumentState::Zero | DocumentState::Integer | DocumentState::Fraction,
                b'e' | b'E',
            ) => DocumentState::Exponent,
            (DocumentState::Exponent, b'+' | b'-') => DocumentState::ExponentSign,
            (
                DocumentState::Exponent
                | DocumentState::ExponentSign
                | DocumentState::ExponentDigits,
                _,
            ) if digit => DocumentState::ExponentDigits,
            (
                DocumentState::Minus
                | DocumentState::Point
                | DocumentState::Exponent
                | DocumentState::ExponentSign,
                _,
            ) => {
                return Err(JsonError::Invalid);
            }
            (
                DocumentState::Zero
                | DocumentState::Integer
                | DocumentState::Fraction
                | DocumentState::ExponentDigits,
                _,
            ) => {
                self.state = DocumentState::After;
                return Ok(false);
            }
            _ => return Ok(false),
        };
        Ok(true)
    }
}

/// What follows a byte of an escape.
fn escape(inside: StringState, byte: u8) -> Result<StringState, JsonError> {
    let digit = (byte as char).to_digit(16).map(|digit| digit as u16);
    Ok(match (inside, byte, digit) {
        (StringState::Escape, b'u', _) => StringState::Hex(4, 0),
        (StringState::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', _) => {
            StringState::Plain
        }
        (StringState::Hex(left, code), _, Some(digit)) => match (left, code << 4 | digit) {
            (1, 0xD800..0xDC00) => StringState::LowBackslash,
            (1, 0xDC00..0xE000) => return Err(JsonError::Invalid),
            (1, _) => StringState::Plain,
            (_, code) => StringState::Hex(left - 1, code),
        },
        (StringState::LowBackslash, b'\\', _) => StringState::LowU,
        (StringState::LowU, b'u', _) => StringState::LowHex(4),
        (StringState::LowHex(4), b'd' | b'D', _) => StringState::LowHex(3),
        (StringState::LowHex(3), b'c'..=b'f' | b'C'..=b'F', _) => StringState::LowHex(2),
        (StringState::LowHex(2), _, Some(_)) => StringState::LowHex(1),
        (StringState::LowHex(1), _, Some(_)) => StringState::Plain,
        _ => return Err(JsonError::Invalid),
    })
}

#[cfg(test)]
mod tests {
    use super::super::scan::Scanner;
    use super::*;
    use proptest::prelude::*;

    /// The verdict of the one-pass scan: the end of the document, or an error.
    fn whole(text: &[u8]) -> Result<usize, JsonError> {
        let mut scanner = Scanner::new(text, 8);
        scanner.value().map(|()| scanner.position())
    }

    /// The verdict of the stream, byte by byte.
    fn stepwise(text: &[u8]) -> Result<usize, JsonError> {
        let mut stream = DocumentStream::new();
        for (index, byte) in text.iter().enumerate() {
            if stream.scan(std::slice::from_ref(byte), 8)?.is_some() {
                return Ok(index + 1);
            }
        }
        Err(JsonError::Incomplete)
    }

    fn in_one(text: &[u8]) -> Result<usize, JsonError> {
        DocumentStream::new().scan(text, 8)?.ok_or(JsonError::Incomplete)
    }

    /// Tokens rather than bytes, so that deep and nearly valid texts are common.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let tokens = prop::sample::select(vec![
            "{", "}", "[", "]", ",", ":", "\"", "\"a\"", "\\", "\\u", "d83d", "\\ude00", "0041",
            "dc00", "0", "1", "-", ".", "e", "+", "true", "nul", "l", " ", "\n", "é", "\u{1}",
            "\"k\":", "[1,",
        ]);
        prop::collection::vec(tokens, 0..24).prop_map(|tokens| tokens.concat().into_bytes())
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn agrees_with_the_whole_scan(
            inner in texts(),
            open in prop::sample::select(vec![b'{', b'[']),
        ) {
            let mut text = vec![open];
            text.extend(inner);
            prop_assert_eq!(stepwise(&text), whole(&text));
            prop_assert_eq!(in_one(&text), whole(&text));
        }
    }
}
