//! Reads validated JSON text in place, value by value.

use std::str::FromStr;

use super::double::parse_double;
use super::fast_path;
use super::scan::Scanner;
use super::text::{Text, validated_prefix};

/// The kind of a value, determined by its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueKind {
    /// `null`
    Null,
    /// `true` or `false`
    Bool,
    /// A number; see [`Number::is_integer`].
    Number,
    /// A string.
    String,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// The text of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Number<'a> {
    /// Its text, which is ASCII.
    pub text: &'a [u8],
    /// Whether it is written without fraction and exponent.
    pub is_integer: bool,
}

impl<'a> Number<'a> {
    /// The number at the start of validated text.
    #[inline]
    pub(crate) fn at_start(text: &'a [u8]) -> Self {
        let (mut len, mut is_integer) = (0, true);
        while let Some(byte) = text.get(len) {
            match byte {
                b'0'..=b'9' | b'-' => {}
                b'.' | b'e' | b'E' | b'+' => is_integer = false,
                _ => break,
            }
            len += 1;
        }
        Number { text: text.get(..len).unwrap_or_default(), is_integer }
    }

    /// The number, if it is an integer within range.
    #[inline]
    pub fn as_i64(&self) -> Option<i64> {
        if !self.is_integer {
            return None;
        }
        let (digits, negative) = match self.text {
            [b'-', digits @ ..] => (digits, true),
            digits => (digits, false),
        };
        if digits.len() > 18 {
            return self.parsed();
        }
        let value = digits.iter().fold(0, |value, digit| value * 10 + i64::from(digit & 0xf));
        Some(if negative { -value } else { value })
    }

    /// The nearest double; infinite when out of range.
    #[inline]
    pub fn as_f64(&self) -> f64 {
        match parse_double(self.text) {
            Some((value, len)) if len == self.text.len() => value,
            _ => self.parsed().unwrap_or(f64::NAN),
        }
    }

    fn parsed<T: FromStr>(&self) -> Option<T> {
        std::str::from_utf8(self.text).ok()?.parse().ok()
    }
}

/// Reads the values of validated text in order.
///
/// Each method consumes the value that it names; call the one for [`Reader::kind`]. On text that
/// was not validated it returns wrong values, but it neither panics nor loops.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    text: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Reads from the start of `text`: a request's params, or any other validated value.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text, position: 0 }
    }

    /// Reads from the start of the text again.
    pub fn rewind(&mut self) {
        self.position = 0;
    }

    #[inline]
    fn peek(&mut self) -> u8 {
        loop {
            match self.text.get(self.position) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.position += 1,
                Some(&byte) => return byte,
                None => return 0,
            }
        }
    }

    /// The kind of the next value.
    #[inline]
    pub fn kind(&mut self) -> ValueKind {
        match self.peek() {
            b'"' => ValueKind::String,
            b'{' => ValueKind::Object,
            b'[' => ValueKind::Array,
            b't' | b'f' => ValueKind::Bool,
            b'-' | b'0'..=b'9' => ValueKind::Number,
            _ => ValueKind::Null,
        }
    }

    /// Consumes `null`.
    #[inline]
    pub fn null(&mut self) {
        self.peek();
        self.position += 4;
    }

    /// Consumes `true` or `false`.
    #[inline]
    pub fn boolean(&mut self) -> bool {
        let value = self.peek() == b't';
        self.position += if value { 4 } else { 5 };
        value
    }

    /// Consumes a number.
    #[inline]
    pub fn number(&mut self) -> Number<'a> {
        self.peek();
        let number = Number::at_start(self.text.get(self.position..).unwrap_or_default());
        self.position += number.text.len();
        number
    }

    /// Consumes an integer of at most 18 digits. Any other value stays to be read.
    #[inline]
    pub fn short_integer(&mut self) -> Option<i64> {
        self.peek();
        let is_negative = self.text.get(self.position) == Some(&b'-');
        let start = self.position + usize::from(is_negative);
        let (mut end, mut value) = (start, 0_i64);
        while let Some(digit @ b'0'..=b'9') = self.text.get(end) {
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit & 0xf));
            end += 1;
        }
        let is_longer = matches!(self.text.get(end), Some(b'.' | b'e' | b'E'));
        if is_longer || !(1..=18).contains(&(end - start)) {
            return None;
        }
        self.position = end;
        Some(if is_negative { -value } else { value })
    }

    /// Consumes a number of at most 19 digits, as the nearest double. Any other value stays to be
    /// read, and so do some such numbers with an exponent.
    #[inline]
    pub fn short_double(&mut self) -> Option<f64> {
        self.peek();
        let (value, len) = parse_double(self.text.get(self.position..).unwrap_or_default())?;
        self.position += len;
        Some(value)
    }

    /// Consumes a string.
    #[inline(always)]
    pub fn string(&mut self) -> Text<'a> {
        self.peek();
        self.position += 1;
        let start = self.position;
        let mut escaped = false;
        loop {
            self.position += validated_prefix(self.text.get(self.position..).unwrap_or_default());
            match self.text.get(self.position) {
                Some(b'\\') => {
                    escaped = true;
                    self.position += 2;
                }
                _ => break,
            }
        }
        let raw = self.text.get(start..self.position).unwrap_or_default();
        self.position += 1;
        Text::new(raw, escaped)
    }

    /// Enters an array or object.
    #[inline]
    pub fn enter(&mut self) {
        self.peek();
        self.position += 1;
    }

    /// Inside an array: whether there is another item to read. At the end, consumes the bracket.
    #[inline]
    pub fn next_item(&mut self) -> bool {
        match self.peek() {
            b',' => {
                self.position += 1;
                true
            }
            b']' | 0 => {
                self.position += 1;
                false
            }
            _ => true,
        }
    }

    /// Inside an object: the next member's key, its value to be read next. At the end, consumes
    /// the brace.
    #[inline(always)]
    pub fn next_key(&mut self) -> Option<Text<'a>> {
        if self.peek() == b',' {
            self.position += 1;
            self.peek();
        }
        if self.peek() != b'"' {
            self.position += 1;
            return None;
        }
        let key = self.string();
        self.peek();
        self.position += 1;
        Some(key)
    }

    /// Enters an object, if the next value is one.
    #[inline]
    pub fn enter_object(&mut self) -> bool {
        let is_object = self.peek() == b'{';
        self.position += usize::from(is_object);
        is_object
    }

    /// Consumes `text`, if it comes next: a key with its quotes and colon, a comma, a brace.
    /// `false` also for another text of the same meaning, which [`Reader::next_key`] reads.
    #[inline]
    pub fn skip_text(&mut self, text: &[u8]) -> bool {
        let rest = self.text.get(self.position..).unwrap_or_default();
        let comes_next = rest.starts_with(text);
        if comes_next {
            self.position += text.len();
        }
        comes_next
    }

    /// The text that has not been read, from the next value on.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.peek();
        self.text.get(self.position..).unwrap_or_default()
    }

    /// Consumes a part of [`Reader::rest`], a value or several.
    pub(crate) fn advance(&mut self, len: usize) {
        self.position += len;
    }

    /// Consumes any value; returns its text.
    pub fn skip(&mut self) -> &'a [u8] {
        self.peek();
        let rest = self.text.get(self.position..).unwrap_or_default();
        if let Some((value, _)) = fast_path::value(rest) {
            self.position += value.len();
            return value;
        }
        let mut scanner = Scanner::new(rest, usize::MAX);
        let len = match scanner.value() {
            Ok(()) => scanner.position(),
            Err(_) => rest.len(),
        };
        self.position += len;
        &rest[..len]
    }

    /// The values of these members of an object; `None` of another value. Of equal names the last
    /// counts.
    pub fn members<const N: usize>(mut self, names: [&[u8]; N]) -> Option<[Option<&'a [u8]>; N]> {
        let mut found = [None; N];
        if !self.enter_object() {
            return None;
        }
        while let Some(key) = self.next_key() {
            let value = self.skip();
            let place = names.iter().position(|name| *name == key.unescaped().as_ref());
            if let Some(slot) = place.and_then(|place| found.get_mut(place)) {
                *slot = Some(value);
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_kind_in_place() {
        let text = br#" { "a" : [ 1 , -2.5e3 , "x\n" ] , "b\u0021":null,
            "c":[],"d":{} , "e":[true,false]} "#;
        let mut reader = Reader::new(text);
        assert_eq!(reader.kind(), ValueKind::Object);
        reader.enter();
        assert_eq!(reader.next_key().unwrap().raw(), b"a");
        assert_eq!(reader.kind(), ValueKind::Array);
        reader.enter();
        assert!(reader.next_item());
        assert_eq!(reader.number().as_i64(), Some(1));
        assert!(reader.next_item());
        let number = reader.number();
        assert_eq!((number.as_i64(), number.as_f64()), (None, -2500.0));
        assert!(reader.next_item());
        assert_eq!(reader.string().unescaped().as_ref(), b"x\n");
        assert!(!reader.next_item());
        assert_eq!(reader.next_key().unwrap().unescaped().as_ref(), b"b!");
        assert_eq!(reader.kind(), ValueKind::Null);
        reader.null();
        assert_eq!(reader.next_key().unwrap().raw(), b"c");
        reader.enter();
        assert!(!reader.next_item());
        assert_eq!(reader.next_key().unwrap().raw(), b"d");
        reader.enter();
        assert!(reader.next_key().is_none());
        assert_eq!(reader.next_key().unwrap().raw(), b"e");
        assert_eq!(reader.skip(), b"[true,false]");
        assert!(reader.next_key().is_none());
    }

    #[test]
    fn short_integers_leave_all_other_values() {
        for (text, expected) in [
            ("7", Some(7)),
            (" -55,", Some(-55)),
            ("999999999999999999]", Some(999_999_999_999_999_999)),
            ("-0}", Some(0)),
            ("1000000000000000000", None),
            ("18446744073709551623", None),
            ("1.0", None),
            ("1e2", None),
            ("1E2", None),
            ("-", None),
            ("\"7\"", None),
            ("null", None),
            ("", None),
        ] {
            let mut reader = Reader::new(text.as_bytes());
            assert_eq!(reader.short_integer(), expected, "{text}");
            let rest = text.trim_start_matches([' ', '-', '0', '1', '5', '7', '9']);
            let left = reader.text.get(reader.position..).unwrap_or_default();
            let is_whole = expected.is_none();
            assert_eq!(left, if is_whole { text } else { rest }.as_bytes(), "{text}");
        }
    }

    #[test]
    fn text_is_skipped_only_if_it_comes_next() {
        let mut reader = Reader::new(br#" {"a":1, "b":2,"\u0063":3 , "d" :4}"#);
        assert!(reader.enter_object());
        assert!(!reader.skip_text(br#""b":"#));
        assert!(reader.skip_text(br#""a":"#));
        assert_eq!(reader.short_integer(), Some(1));
        assert!(!reader.skip_text(br#""b":"#));
        assert!(reader.skip_text(b",") && reader.skip_text(b" "));
        assert!(reader.skip_text(br#""b":"#));
        assert_eq!(reader.short_integer(), Some(2));
        assert!(!reader.skip_text(b"}"));
        assert!(reader.skip_text(b",") && !reader.skip_text(b" "));
        assert!(!reader.skip_text(br#""c":"#));
        assert_eq!(reader.next_key().unwrap().unescaped().as_ref(), b"c");
        assert_eq!(reader.short_integer(), Some(3));
        assert!(!reader.skip_text(b","));
        assert_eq!(reader.next_key().unwrap().raw(), b"d");
        assert_eq!(reader.short_integer(), Some(4));
        assert!(reader.skip_text(b"}"));
        assert!(!reader.skip_text(b"}"));
        assert!(!Reader::new(b"[]").enter_object());
        assert!(!Reader::new(b"").skip_text(b","));
    }

    #[test]
    fn integers_are_exact_to_both_ends() {
        for value in [0, -1, 999_999_999_999_999_999, i64::MAX, i64::MIN] {
            let text = value.to_string();
            assert_eq!(Reader::new(text.as_bytes()).number().as_i64(), Some(value));
        }
        assert_eq!(Reader::new(b"9223372036854775808").number().as_i64(), None);
        assert_eq!(Reader::new(b"1.0").number().as_i64(), None);
    }
}
