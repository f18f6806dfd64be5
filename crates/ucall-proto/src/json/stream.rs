//! Follows a document that arrives in pieces, each byte once, and says where it ends.
//!
//! It refuses exactly what [`scan`](super::scan) refuses, at the same byte, except for invalid
//! UTF-8, which the scan of the whole document finds. So a document gets the same answer however
//! it was cut, and a slow sender costs no more than a fast one.

use super::Fault;
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
enum State {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    Colon,
    After,
    String(Inside),
    /// After `-`, or after `.` or an exponent's sign: a digit has to follow.
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
enum Inside {
    Plain,
    Escape,
    /// Digits still to come, and the value of those that came.
    Hex(u8, u16),
    LowBackslash,
    LowU,
    LowHex(u8),
}

/// Follows one document.
#[derive(Clone, Debug)]
pub struct DocumentStream {
    state: State,
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
    /// At the front of a document.
    pub fn new() -> Self {
        Self { state: State::Value, key: false, containers: Vec::new() }
    }

    /// Takes the next bytes; `Some(n)` when the document ends behind the first `n` of them.
    ///
    /// Only objects and arrays have an end of their own, and only they begin a raw document.
    ///
    /// # Errors
    /// As soon as a byte cannot be part of JSON, or nests deeper than `nesting_max`.
    pub fn follow(&mut self, bytes: &[u8], nesting_max: usize) -> Result<Option<usize>, Fault> {
        let mut position = 0;
        while let Some(&byte) = bytes.get(position) {
            if self.state == State::String(Inside::Plain) {
                position += plain_prefix(&bytes[position..]).0;
                let Some(&special) = bytes.get(position) else { break };
                self.string_special(special)?;
            } else if self.step(byte, nesting_max)? {
                return Ok(Some(position + 1));
            }
            position += 1;
        }
        Ok(None)
    }

    /// Takes one byte; `true` when it ends the document.
    fn step(&mut self, byte: u8, nesting_max: usize) -> Result<bool, Fault> {
        if self.number(byte)? {
            return Ok(false);
        }
        match self.state {
            State::String(inside) => self.state = State::String(escape(inside, byte)?),
            State::Literal([expected, rest @ ..]) if byte == *expected => {
                self.state = if rest.is_empty() { State::After } else { State::Literal(rest) };
            }
            State::Literal(_) => return Err(Fault::Invalid),
            _ if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') => {}
            State::After => return self.after(byte),
            State::ValueOrEnd if byte == b']' => return Ok(self.close()),
            State::Value | State::ValueOrEnd => self.value(byte, nesting_max)?,
            State::KeyOrEnd if byte == b'}' => return Ok(self.close()),
            State::Key | State::KeyOrEnd if byte == b'"' => self.open_string(true),
            State::Colon if byte == b':' => self.state = State::Value,
            _ => return Err(Fault::Invalid),
        }
        Ok(false)
    }

    fn value(&mut self, byte: u8, nesting_max: usize) -> Result<(), Fault> {
        self.state = match byte {
            b'{' | b'[' => return self.open(byte == b'{', nesting_max),
            b'"' => {
                self.open_string(false);
                return Ok(());
            }
            b'-' => State::Minus,
            b'0' => State::Zero,
            b'1'..=b'9' => State::Integer,
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            _ => return Err(Fault::Invalid),
        };
        Ok(())
    }

    fn open(&mut self, object: bool, nesting_max: usize) -> Result<(), Fault> {
        if self.containers.len() == nesting_max {
            return Err(Fault::TooDeep);
        }
        self.containers.push(object);
        self.state = if object { State::KeyOrEnd } else { State::ValueOrEnd };
        Ok(())
    }

    fn close(&mut self) -> bool {
        self.containers.pop();
        self.state = State::After;
        self.containers.is_empty()
    }

    fn after(&mut self, byte: u8) -> Result<bool, Fault> {
        let object = self.containers.last().copied();
        match (byte, object) {
            (b',', Some(true)) => self.state = State::Key,
            (b',', Some(false)) => self.state = State::Value,
            (b'}', Some(true)) | (b']', Some(false)) => return Ok(self.close()),
            _ => return Err(Fault::Invalid),
        }
        Ok(false)
    }

    fn open_string(&mut self, key: bool) {
        self.key = key;
        self.state = State::String(Inside::Plain);
    }

    fn string_special(&mut self, byte: u8) -> Result<(), Fault> {
        self.state = match byte {
            b'"' if self.key => State::Colon,
            b'"' => State::After,
            b'\\' => State::String(Inside::Escape),
            _ => return Err(Fault::Invalid),
        };
        Ok(())
    }

    /// Takes a byte of a number; `false` when the state is no number or the byte ends it.
    fn number(&mut self, byte: u8) -> Result<bool, Fault> {
        let digit = byte.is_ascii_digit();
        self.state = match (self.state, byte) {
            (State::Minus, b'0') => State::Zero,
            (State::Minus | State::Integer, _) if digit => State::Integer,
            (State::Zero | State::Integer, b'.') => State::Point,
            (State::Point | State::Fraction, _) if digit => State::Fraction,
            (State::Zero | State::Integer | State::Fraction, b'e' | b'E') => State::Exponent,
            (State::Exponent, b'+' | b'-') => State::ExponentSign,
            (State::Exponent | State::ExponentSign | State::ExponentDigits, _) if digit => {
                State::ExponentDigits
            }
            (State::Minus | State::Point | State::Exponent | State::ExponentSign, _) => {
                return Err(Fault::Invalid);
            }
            (State::Zero | State::Integer | State::Fraction | State::ExponentDigits, _) => {
                self.state = State::After;
                return Ok(false);
            }
            _ => return Ok(false),
        };
        Ok(true)
    }
}

/// What follows a byte of an escape.
fn escape(inside: Inside, byte: u8) -> Result<Inside, Fault> {
    let digit = (byte as char).to_digit(16).map(|digit| digit as u16);
    Ok(match (inside, byte, digit) {
        (Inside::Escape, b'u', _) => Inside::Hex(4, 0),
        (Inside::Escape, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', _) => {
            Inside::Plain
        }
        (Inside::Hex(left, code), _, Some(digit)) => match (left, code << 4 | digit) {
            (1, 0xD800..0xDC00) => Inside::LowBackslash,
            (1, 0xDC00..0xE000) => return Err(Fault::Invalid),
            (1, _) => Inside::Plain,
            (_, code) => Inside::Hex(left - 1, code),
        },
        (Inside::LowBackslash, b'\\', _) => Inside::LowU,
        (Inside::LowU, b'u', _) => Inside::LowHex(4),
        (Inside::LowHex(4), b'd' | b'D', _) => Inside::LowHex(3),
        (Inside::LowHex(3), b'c'..=b'f' | b'C'..=b'F', _) => Inside::LowHex(2),
        (Inside::LowHex(2), _, Some(_)) => Inside::LowHex(1),
        (Inside::LowHex(1), _, Some(_)) => Inside::Plain,
        _ => return Err(Fault::Invalid),
    })
}

#[cfg(test)]
mod tests {
    use super::super::scan::Scanner;
    use super::*;
    use proptest::prelude::*;

    /// What the one-pass scan says: where the document ends, or why it does not.
    fn whole(text: &[u8]) -> Result<usize, Fault> {
        let mut scanner = Scanner::new(text, 8);
        scanner.value().map(|()| scanner.position())
    }

    /// What following byte by byte says.
    fn stepwise(text: &[u8]) -> Result<usize, Fault> {
        let mut stream = DocumentStream::new();
        for (index, byte) in text.iter().enumerate() {
            if stream.follow(std::slice::from_ref(byte), 8)?.is_some() {
                return Ok(index + 1);
            }
        }
        Err(Fault::Incomplete)
    }

    fn in_one(text: &[u8]) -> Result<usize, Fault> {
        DocumentStream::new().follow(text, 8)?.ok_or(Fault::Incomplete)
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
        fn agrees_with_the_scan_of_the_whole(
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
