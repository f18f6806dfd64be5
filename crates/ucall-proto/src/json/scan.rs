//! Validates JSON text in one pass, and finds the end of each value.
//!
//! The scanner reads every form of JSON. It reads members and items of the fast form by the fast
//! path, because large params mostly have many of them.

use super::JsonError;
use super::fast_path;
use super::members::{IgnoreMembers, Member, MemberSink};
use super::open_containers::OpenContainers;
use super::text::{Text, is_ascii, plain_prefix};

/// Reads JSON text from its start. Every method leaves `position` after the accepted text.
pub(crate) struct Scanner<'a> {
    text: &'a [u8],
    position: usize,
    nesting_left: usize,
    /// The bitwise or of all bytes of all strings: whether UTF-8 must be validated.
    seen: u64,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a [u8], nesting_max: usize) -> Self {
        Self { text, position: 0, nesting_left: nesting_max, seen: 0 }
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    pub(crate) fn nesting_left(&self) -> usize {
        self.nesting_left
    }

    /// The next byte that is no white space; does not consume it.
    #[inline(always)]
    pub(crate) fn peek(&mut self) -> Result<u8, JsonError> {
        loop {
            match self.text.get(self.position) {
                Some(&byte) if byte > b' ' => return Ok(byte),
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.position += 1,
                Some(_) => return Err(JsonError::Invalid),
                None => return Err(JsonError::Incomplete),
            }
        }
    }

    /// The text from the next byte on.
    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.text.get(self.position..).unwrap_or_default()
    }

    /// The text that was stepped over since `start`.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        self.text.get(start..self.position).unwrap_or_default()
    }

    /// Steps over bytes that the caller has read in [`Scanner::rest`].
    #[inline(always)]
    pub(crate) fn skip(&mut self, count: usize) {
        self.position += count;
    }

    /// Steps over the byte that `peek` returned.
    #[inline(always)]
    pub(crate) fn bump(&mut self) {
        self.position += 1;
    }

    #[inline(always)]
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        if self.peek()? != byte {
            return Err(JsonError::Invalid);
        }
        self.bump();
        Ok(())
    }

    /// Enters an array or object, whose bracket `peek` returned.
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> Result<(), JsonError> {
        self.nesting_left = self.nesting_left.checked_sub(1).ok_or(JsonError::TooDeep)?;
        self.bump();
        Ok(())
    }

    /// Leaves an array or object, whose bracket `peek` returned.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        self.nesting_left += 1;
        self.bump();
    }

    /// After a value inside a container: `true` when another follows, `false` at the end.
    #[inline(always)]
    pub(crate) fn another(&mut self, end: u8) -> Result<bool, JsonError> {
        match self.peek()? {
            b',' => {
                self.bump();
                // Many clients write a space here, and the fast path reads none before a value.
                self.position += usize::from(self.text.get(self.position) == Some(&b' '));
                Ok(true)
            }
            byte if byte == end => {
                self.leave();
                Ok(false)
            }
            _ => Err(JsonError::Invalid),
        }
    }

    /// Enters a container; `false` when it is empty, and then it is already left.
    #[inline(always)]
    pub(crate) fn enter_unless_empty(&mut self, end: u8) -> Result<bool, JsonError> {
        self.enter()?;
        if self.peek()? == end {
            self.leave();
            return Ok(false);
        }
        Ok(true)
    }

    /// A member's key and its colon.
    pub(crate) fn key(&mut self) -> Result<Text<'a>, JsonError> {
        if self.peek()? != b'"' {
            return Err(JsonError::Invalid);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// Steps over a value, and notes the members of an object or the items of an array.
    pub(crate) fn container(&mut self, members: &mut impl MemberSink) -> Result<(), JsonError> {
        match self.peek()? {
            b'{' => self.members::<b'}'>(members),
            b'[' => self.members::<b']'>(members),
            _ => self.value(),
        }
    }

    /// Steps over any value.
    pub(crate) fn value(&mut self) -> Result<(), JsonError> {
        match self.peek()? {
            b'{' | b'[' => self.nested(),
            first => self.scalar(first),
        }
    }

    /// Steps over a value that is no container, whose first byte `peek` returned.
    #[inline(always)]
    fn scalar(&mut self, first: u8) -> Result<(), JsonError> {
        match first {
            b'"' => self.string().map(drop),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => Err(JsonError::Invalid),
        }
    }

    /// Steps over an object or array, whose bracket `peek` returned, with the containers in it. It
    /// does not recurse, because threads of programs may have small stacks.
    #[inline(never)]
    fn nested(&mut self) -> Result<(), JsonError> {
        let mut open = OpenContainers::default();
        loop {
            let mut is_before_item = match self.peek()? {
                bracket @ (b'{' | b'[') => {
                    // In ASCII a closing bracket comes two after the opening one.
                    let end = bracket + 2;
                    let has_items = self.enter_unless_empty(end)?;
                    if has_items {
                        open.push(end);
                    }
                    has_items
                }
                first => self.scalar(first).map(|()| false)?,
            };
            loop {
                let Some(end) = open.innermost() else { return Ok(()) };
                if (is_before_item || self.another(end)?) && self.skip_fast_items(end) {
                    break;
                }
                open.pop();
                is_before_item = false;
            }
            if open.innermost() == Some(b'}') {
                self.key()?;
            }
        }
    }

    /// Steps over the members or items that have the fast form; `false` at the container's end,
    /// and then it is left.
    #[inline(always)]
    fn skip_fast_items(&mut self, end: u8) -> bool {
        let (rest, is_open) = match end {
            b'}' => fast_path::members_of::<b'}'>(self.rest(), 0, None, &mut IgnoreMembers),
            _ => fast_path::members_of::<b']'>(self.rest(), 0, None, &mut IgnoreMembers),
        };
        self.position = self.text.len() - rest.len();
        self.nesting_left += usize::from(!is_open);
        is_open
    }

    /// Steps over an object or array, whose bracket `peek` returned, and notes its members or
    /// items. Their positions count from that bracket.
    #[inline(never)]
    fn members<const END: u8>(&mut self, members: &mut impl MemberSink) -> Result<(), JsonError> {
        let front = self.position;
        let mut more = self.enter_unless_empty(END)?;
        while more {
            let at = self.position - front;
            let (rest, is_open) = fast_path::members_of::<END>(self.rest(), at, None, members);
            self.position = self.text.len() - rest.len();
            if !is_open {
                self.nesting_left += 1;
                break;
            }
            let member = if END == b'}' { self.member(front)? } else { self.item(front)? };
            members.push_member(member);
            more = self.another(END)?;
        }
        Ok(())
    }

    /// Steps over a member in any form.
    #[inline(never)]
    fn member(&mut self, front: usize) -> Result<Member, JsonError> {
        self.peek()?;
        let start = self.position + 1;
        let key = self.key()?;
        self.peek()?;
        let value = self.position;
        self.value_inside()?;
        let key_len = key.raw().len();
        let member = Member::new(start - front, key_len, value - front, self.position - front);
        Ok(if key.is_escaped() { member.with_escapes() } else { member })
    }

    /// Steps over an item in any form.
    #[inline(always)]
    fn item(&mut self, front: usize) -> Result<Member, JsonError> {
        self.peek()?;
        let start = self.position;
        self.value_inside()?;
        Ok(Member::new(0, 0, start - front, self.position - front))
    }

    /// Steps over any value; over a number without another call.
    #[inline(always)]
    fn value_inside(&mut self) -> Result<(), JsonError> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            _ => self.value(),
        }
    }

    /// Steps over a value; returns it if it is a string.
    pub(crate) fn text(&mut self) -> Result<Option<Text<'a>>, JsonError> {
        match self.peek()? {
            b'"' => self.string().map(Some),
            _ => self.value().map(|()| None),
        }
    }

    /// A string, whose opening quote `peek` returned.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<Text<'a>, JsonError> {
        self.bump();
        if let Some((inside, _)) = fast_path::short_string(self.rest()) {
            self.position += inside.len() + 1;
            return Ok(Text::new(inside, false));
        }
        self.any_string()
    }

    /// Any string, after its opening quote.
    #[inline(never)]
    fn any_string(&mut self) -> Result<Text<'a>, JsonError> {
        let start = self.position;
        let mut escaped = false;
        loop {
            let (plain, seen) = plain_prefix(self.text.get(self.position..).unwrap_or_default());
            self.position += plain;
            self.seen |= seen;
            match self.text.get(self.position) {
                Some(b'"') => {
                    let raw = &self.text[start..self.position];
                    self.bump();
                    return Ok(Text::new(raw, escaped));
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return Err(JsonError::Invalid),
                None => return Err(JsonError::Incomplete),
            }
        }
    }

    #[cold]
    fn escape(&mut self) -> Result<(), JsonError> {
        self.bump();
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Ok(()),
            b'u' => match self.hex4()? {
                0xD800..0xDC00 => self.low_surrogate(),
                0xDC00..0xE000 => Err(JsonError::Invalid),
                _ => Ok(()),
            },
            _ => Err(JsonError::Invalid),
        }
    }

    fn low_surrogate(&mut self) -> Result<(), JsonError> {
        if self.next()? != b'\\' || self.next()? != b'u' {
            return Err(JsonError::Invalid);
        }
        // The first two digits decide, so that a prefix is refused as early as the whole.
        if !matches!(self.next()?, b'd' | b'D')
            || !matches!(self.next()?, b'c'..=b'f' | b'C'..=b'F')
        {
            return Err(JsonError::Invalid);
        }
        self.hex_digit()?;
        self.hex_digit().map(drop)
    }

    fn hex4(&mut self) -> Result<u32, JsonError> {
        let mut code = 0;
        for _ in 0..4 {
            code = code << 4 | self.hex_digit()?;
        }
        Ok(code)
    }

    fn hex_digit(&mut self) -> Result<u32, JsonError> {
        (self.next()? as char).to_digit(16).ok_or(JsonError::Invalid)
    }

    #[inline(always)]
    fn next(&mut self) -> Result<u8, JsonError> {
        let byte = *self.text.get(self.position).ok_or(JsonError::Incomplete)?;
        self.position += 1;
        Ok(byte)
    }

    /// A number, whose first byte `peek` returned.
    #[inline(always)]
    fn number(&mut self) -> Result<(), JsonError> {
        if self.text.get(self.position) == Some(&b'-') {
            self.bump();
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            _ => return Err(JsonError::Invalid),
        }
        match self.text.get(self.position) {
            Some(b'.' | b'e' | b'E') => self.fraction(),
            _ => Ok(()),
        }
    }

    /// What follows the digits of a number, from its point or its exponent on.
    #[inline(never)]
    fn fraction(&mut self) -> Result<(), JsonError> {
        if self.text.get(self.position) == Some(&b'.') {
            self.bump();
            self.digits_required()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.position) {
            self.bump();
            if let Some(b'+' | b'-') = self.text.get(self.position) {
                self.bump();
            }
            self.digits_required()?;
        }
        Ok(())
    }

    fn digits_required(&mut self) -> Result<(), JsonError> {
        match self.next()? {
            b'0'..=b'9' => {
                self.position += fast_path::count_all_digits(self.rest());
                Ok(())
            }
            _ => Err(JsonError::Invalid),
        }
    }

    #[inline(always)]
    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.text.get(self.position) {
            self.position += 1;
        }
    }

    fn literal(&mut self, literal: &[u8]) -> Result<(), JsonError> {
        for &byte in literal {
            if self.next()? != byte {
                return Err(JsonError::Invalid);
            }
        }
        Ok(())
    }

    /// Ends the scan of a document: validates UTF-8.
    ///
    /// Only strings can hold anything but ASCII, and `seen` shows whether one does.
    #[inline(always)]
    pub(crate) fn finish(&self) -> Result<(), JsonError> {
        if is_ascii(self.seen) {
            return Ok(());
        }
        match simdutf8::basic::from_utf8(self.since(0)) {
            Ok(_) => Ok(()),
            Err(_) => Err(JsonError::Invalid),
        }
    }
}

/// Validates that `text` is one JSON document, with optional white space around it, so that a
/// [`Reader`](super::Reader) can read it.
///
/// # Errors
/// The reason; text after the document is [`JsonError::Invalid`].
pub fn validate(text: &[u8], nesting_max: usize) -> Result<(), JsonError> {
    let mut scanner = Scanner::new(text, nesting_max);
    scanner.value()?;
    scanner.finish()?;
    match scanner.peek() {
        Err(JsonError::Incomplete) => Ok(()),
        _ => Err(JsonError::Invalid),
    }
}

/// Appends the positions of the members of an object, or of the items of an array. `text` is valid,
/// and starts with its bracket.
pub fn collect_members(text: &[u8], members: &mut Vec<Member>) {
    let scanned = Scanner::new(text, usize::MAX).container(members);
    debug_assert!(scanned.is_ok(), "the text is validated");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &[u8]) -> Result<usize, JsonError> {
        let mut scanner = Scanner::new(text, 128);
        scanner.value()?;
        scanner.finish()?;
        Ok(scanner.position())
    }

    #[test]
    fn valid_values_are_scanned_to_their_end() {
        let values: [&[u8]; 16] = [
            b"null",
            b"true",
            b"false",
            b"0",
            b"-0",
            b"10.25e+3",
            b"1E9",
            b"-1e-1",
            b"\"\"",
            b"\"\\ud83d\\ude00\"",
            b"[]",
            b"{}",
            b"[ 1 , [ 2 ] ]",
            b" {\"a\" : {\"b\":[]} , \"c\":\"\"}",
            "\"é€😀\"".as_bytes(),
            br#""\"\\\/\b\f\n\r\t\u0041""#,
        ];
        for value in values {
            assert_eq!(scan(value), Ok(value.len()), "{}", String::from_utf8_lossy(value));
        }
    }

    #[test]
    fn broken_values_are_refused() {
        let values: [&[u8]; 33] = [
            b"nul!",
            b"True",
            b"01",
            b"+1",
            b".5",
            b"1.x",
            b"1e+x",
            b"-x",
            b"NaN ",
            b"Infinity",
            b"'a'",
            b"\"\x01\"",
            b"\"\n\"",
            b"\"\\x\"",
            b"\"\\u12g4\"",
            b"\"\\ud800\"",
            b"\"\\ud800\\n\"",
            b"\"\\udc00\"",
            b"\"\\ud800\\ud800\"",
            b"\"\xff\"",
            b"\"\xc0\x80\"",
            b"\"\xed\xa0\x80\"",
            b"[,]",
            b"[1,]",
            b"[1 2]",
            b"[1}",
            b"{,}",
            b"{\"a\"}",
            b"{\"a\":}",
            b"{\"a\":1,}",
            b"{a:1}",
            b"{1:1}",
            b"]",
        ];
        for value in values {
            let result = scan(value).map(|end| end == value.len());
            assert!(
                matches!(result, Err(JsonError::Invalid) | Ok(false)),
                "{}",
                value.escape_ascii()
            );
        }
    }

    #[test]
    fn a_prefix_is_refused_as_early_as_the_whole() {
        for prefix in [&b"\"\\ud83dx"[..], b"\"\\ud83d\\x", b"\"\\ud83d\\u]", b"\"\\ud83d\\ud0"] {
            assert_eq!(scan(prefix), Err(JsonError::Invalid), "{}", prefix.escape_ascii());
        }
    }

    #[test]
    fn one_whole_document_is_valid() {
        for valid in ["1", " {\"a\":[]}\n", "\"é\"", "null"] {
            assert_eq!(validate(valid.as_bytes(), 2), Ok(()), "{valid}");
        }
    }

    #[test]
    fn trailing_text_is_invalid() {
        assert_eq!(validate(b" [1, \"\xc3\xa9\"]\r\n", 1), Ok(()));
        assert_eq!(validate(b"[1] 2", 1), Err(JsonError::Invalid));
        assert_eq!(validate(b"[\"\xff\"]", 1), Err(JsonError::Invalid));
        assert_eq!(validate(b"[[1]]", 1), Err(JsonError::TooDeep));
        assert_eq!(validate(b"[1", 1), Err(JsonError::Incomplete));
        assert_eq!(validate(b"", 1), Err(JsonError::Incomplete));
    }

    fn values(text: &str) -> Vec<&str> {
        let mut members = Vec::new();
        collect_members(text.as_bytes(), &mut members);
        let value = |member: &Member| std::str::from_utf8(member.value(text.as_bytes())).unwrap();
        members.iter().map(value).collect()
    }

    #[test]
    fn member_ends_are_exact_for_every_kind_of_value() {
        let parts = [
            "1",
            "0",
            "-0",
            "10",
            "-2.5e+3",
            "0.5",
            "true",
            "null",
            r#""""#,
            r#""a,b]}""#,
            "[1,[2]]",
            "{\"a\":{}}",
            "[]",
        ];
        let long = format!("\"{}\"", "x\\\"".repeat(50));
        for len in 14..19 {
            let around = format!("\"{}\"", "y".repeat(len));
            let mut all = parts.to_vec();
            all.extend([long.as_str(), around.as_str()]);
            assert_eq!(values(&format!("[{}]", all.join(","))), all);
            assert_eq!(values(&format!("[ {}\n]", all.join(" ,\t"))), all);
            for key in [long.as_str(), around.as_str(), "\"a\"", "\"\""] {
                let members: Vec<String> = all.iter().map(|it| format!("{key} : {it}")).collect();
                assert_eq!(values(&format!("{{ {} }}", members.join(" , "))), all);
                let members: Vec<String> = all.iter().map(|it| format!("{key}:{it}")).collect();
                assert_eq!(values(&format!("{{{}}}", members.join(","))), all);
            }
        }
        assert!(values("[]").is_empty() && values("{ }").is_empty() && values("[ ]").is_empty());
    }
}
