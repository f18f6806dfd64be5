//! Finds the calls in a document, in one pass that also proves it to be JSON.
//!
//! A batch may run nothing until all of it is known to be valid, so calls are noted as places in
//! the text, in a list that is used again and again. Members written the usual way are recognised
//! by one comparison, and each place is written once, where it stays.

use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{self, Fault, Member, Text};

/// Params with more members, or items, than this have them noted by whoever asks for one.
const MEMBERS_MAX: usize = 32;

/// A place in a document. Nothing that is noted is empty, so an empty place stands for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    const NOTHING: Self = Self { start: 0, end: 0 };

    #[inline(always)]
    fn new(start: usize, end: usize) -> Self {
        // Documents are smaller than 4 GiB, which `Limits` promises.
        Self { start: start as u32, end: end as u32 }
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    #[inline(always)]
    fn of(self, text: &[u8]) -> &[u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }

    #[inline(always)]
    fn of_something(self, text: &[u8]) -> Option<&[u8]> {
        Some(self.of(text)).filter(|text| !text.is_empty())
    }
}

/// One element of a batch, or what stands in place of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    /// With its quotes.
    method: Span,
    method_is_escaped: bool,
    params: Span,
    id: Span,
    /// Where the members of the params begin in the list of them, and how many there are.
    members: Span,
    /// What a request has and this has not.
    pub(crate) invalid: Option<&'static str>,
}

impl Item {
    const EMPTY: Item = Item {
        method: Span::NOTHING,
        method_is_escaped: false,
        params: Span::NOTHING,
        id: Span::NOTHING,
        members: Span::NOTHING,
        invalid: None,
    };

    #[inline(always)]
    pub(crate) fn method<'a>(&self, text: &'a [u8]) -> Text<'a> {
        let quoted = self.method.of(text);
        let raw = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
        Text::new(raw, self.method_is_escaped)
    }

    #[inline(always)]
    pub(crate) fn params<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        self.params.of_something(text)
    }

    /// Where the members of the params stand in those; `None` when they are too many.
    #[inline(always)]
    pub(crate) fn members<'a>(&self, noted: &'a [Member]) -> Option<&'a [Member]> {
        let noted = noted.get(self.members.start as usize..self.members.end as usize)?;
        (noted.len() <= MEMBERS_MAX).then_some(noted)
    }

    #[inline(always)]
    pub(crate) fn id<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        self.id.of_something(text)
    }
}

/// A document that is proven to be JSON; its items are in the [`Notes`] given to the scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Document {
    /// Where it ends.
    pub(crate) len: usize,
    pub(crate) is_batch: bool,
    /// Elements of the batch. The list holds fewer when there are more than the limit.
    pub(crate) count: usize,
}

/// What a scan notes of a document. Used again and again.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) items: Vec<Item>,
    /// Members of the params of all items, each with its place in those params.
    pub(crate) members: Vec<Member>,
}

/// Takes so many members of params, and one more, which shows that some are missing.
struct FirstMembers<'a> {
    members: &'a mut Vec<Member>,
    len_max: usize,
}

impl json::Notes for FirstMembers<'_> {
    #[inline(always)]
    fn note(&mut self, member: Member) {
        if self.members.len() <= self.len_max {
            self.members.push(member);
        }
    }
}

/// Scans the document at the front of `text` and lists its items.
#[inline(always)]
pub(crate) fn scan_document(
    text: &[u8],
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Document, Fault> {
    let Notes { items, members } = notes;
    items.clear();
    members.clear();
    let mut scanner = Scanner::new(text, limits.nesting_max);
    let is_batch = scanner.peek()? == b'[';
    let mut count = 0;
    let mut more = !is_batch || scanner.enter_unless_empty(b']')?;
    while more {
        // Past the limit one place serves for all: the batch will be refused.
        if count < limits.batch_calls_max || count == 0 {
            items.push(Item::EMPTY);
        } else {
            members.clear();
        }
        if let Some(item) = items.last_mut() {
            scan_item(&mut scanner, limits, item, members)?;
        }
        count += 1;
        more = is_batch && scanner.another(b']')?;
    }
    scanner.finish()?;
    Ok(Document { len: scanner.position(), is_batch, count })
}

fn scan_item(
    scanner: &mut Scanner<'_>,
    limits: &Limits,
    item: &mut Item,
    members: &mut Vec<Member>,
) -> Result<(), Fault> {
    if scanner.peek()? != b'{' {
        item.invalid = Some("expected a request object, or an array of them");
        return scanner.value();
    }
    let mut seen = Seen { members_at: members.len(), ..Seen::default() };
    let mut more = scanner.enter_unless_empty(b'}')?;
    if more && scanner.skip_if(USUAL_OPENING) {
        seen.version = true;
        seen.method(scanner, item)?;
        if scanner.skip_if(br#","params":"#) {
            seen.params(scanner, item, members)?;
        }
        if scanner.skip_if(br#","id":"#) {
            seen.id(scanner, item)?;
        }
        more = scanner.another(b'}')?;
    }
    while more {
        match known_key(scanner) {
            Some(key) => seen.member(key, scanner, item, members)?,
            None => {
                let key = scanner.key()?.unescaped();
                seen.member(Key::named(&key), scanner, item, members)?;
            }
        }
        more = scanner.another(b'}')?;
    }
    item.invalid = seen.fault(item, limits);
    if item.id.len() > limits.id_bytes_max {
        item.id = Span::NOTHING;
    }
    Ok(())
}

/// How most requests begin, behind their brace. Most go on with their params and id.
const USUAL_OPENING: &[u8] = br#""jsonrpc":"2.0","method":"#;

/// What is known of a request object beyond the places in its [`Item`].
#[derive(Default)]
struct Seen {
    version: bool,
    wrong_params: bool,
    wrong_id: bool,
    /// Where the members of its params begin in their list.
    members_at: usize,
}

impl Seen {
    /// Steps over the value of a member and notes it; the last of two with one name counts.
    #[inline(always)]
    fn member(
        &mut self,
        key: Key,
        scanner: &mut Scanner<'_>,
        item: &mut Item,
        members: &mut Vec<Member>,
    ) -> Result<(), Fault> {
        match key {
            Key::Version => self.version(scanner),
            Key::Method => self.method(scanner, item),
            Key::Params => self.params(scanner, item, members),
            Key::Id => self.id(scanner, item),
            Key::Other => scanner.value(),
        }
    }

    #[inline(always)]
    fn version(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        scanner.peek()?;
        let start = scanner.position();
        if scanner.rest().starts_with(br#""2.0""#) {
            self.version = true;
            scanner.skip(5);
            return Ok(());
        }
        scanner.value()?;
        self.version = is_escaped_version(scanner.since(start));
        Ok(())
    }

    #[inline(always)]
    fn method(&mut self, scanner: &mut Scanner<'_>, item: &mut Item) -> Result<(), Fault> {
        item.method = Span::NOTHING;
        if scanner.peek()? != b'"' {
            return scanner.value();
        }
        let start = scanner.position();
        item.method_is_escaped = scanner.string()?.is_escaped();
        item.method = Span::new(start, scanner.position());
        Ok(())
    }

    #[inline(always)]
    fn params(
        &mut self,
        scanner: &mut Scanner<'_>,
        item: &mut Item,
        members: &mut Vec<Member>,
    ) -> Result<(), Fault> {
        members.truncate(self.members_at);
        let first = scanner.peek()?;
        let start = scanner.position();
        let mut notes = FirstMembers { members, len_max: self.members_at + MEMBERS_MAX };
        self.wrong_params = false;
        match first {
            b'{' => scanner.object(&mut notes)?,
            b'[' => scanner.array(&mut notes)?,
            _ => {
                scanner.value()?;
                (item.params, self.wrong_params) = (Span::NOTHING, true);
                return Ok(());
            }
        }
        item.params = Span::new(start, scanner.position());
        item.members = Span::new(self.members_at, members.len());
        Ok(())
    }

    #[inline(always)]
    fn id(&mut self, scanner: &mut Scanner<'_>, item: &mut Item) -> Result<(), Fault> {
        let first = scanner.peek()?;
        let start = scanner.position();
        scanner.value_inside()?;
        self.wrong_id = !matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n');
        item.id = match self.wrong_id {
            true => Span::NOTHING,
            false => Span::new(start, scanner.position()),
        };
        Ok(())
    }

    /// The first thing that keeps this from being a request (§4).
    #[inline(always)]
    fn fault(&self, item: &Item, limits: &Limits) -> Option<&'static str> {
        if self.wrong_id {
            Some("expected an id that is a string, a number or null")
        } else if item.id.len() > limits.id_bytes_max {
            Some("expected a shorter id (max_id_bytes)")
        } else if !self.version {
            Some("expected a member \"jsonrpc\" that is \"2.0\"")
        } else if item.method == Span::NOTHING {
            Some("expected a member \"method\" that is a string")
        } else if self.wrong_params {
            Some("expected params that are an array or an object")
        } else {
            None
        }
    }
}

/// The members of a request.
#[derive(Clone, Copy)]
enum Key {
    Version,
    Method,
    Params,
    Id,
    Other,
}

impl Key {
    fn named(name: &[u8]) -> Self {
        match name {
            b"jsonrpc" => Key::Version,
            b"method" => Key::Method,
            b"params" => Key::Params,
            b"id" => Key::Id,
            _ => Key::Other,
        }
    }
}

/// Steps over a key and its colon if they are written the usual way; else over nothing.
#[inline(always)]
fn known_key(scanner: &mut Scanner<'_>) -> Option<Key> {
    scanner.peek().ok()?;
    let rest = scanner.rest();
    let (key, len) = match rest.get(1)? {
        b'j' if rest.starts_with(br#""jsonrpc":"#) => (Key::Version, 10),
        b'm' if rest.starts_with(br#""method":"#) => (Key::Method, 9),
        b'p' if rest.starts_with(br#""params":"#) => (Key::Params, 9),
        b'i' if rest.starts_with(br#""id":"#) => (Key::Id, 5),
        _ => return None,
    };
    scanner.skip(len);
    Some(key)
}

/// Whether a value that is not plainly `"2.0"` means that.
#[cold]
fn is_escaped_version(value: &[u8]) -> bool {
    let text = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
    text.is_some_and(|raw| Text::new(raw, true).unescaped().as_ref() == b"2.0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(text: &str) -> Result<(Document, Vec<Item>), Fault> {
        let mut notes = Notes::default();
        let document = scan_document(text.as_bytes(), &Limits::default(), &mut notes)?;
        Ok((document, notes.items))
    }

    fn only(text: &str) -> Item {
        items(text).unwrap().1[0]
    }

    #[test]
    fn members_are_found_in_any_order() {
        let text =
            r#" {"id": "x" , "params":{"a":[1]},"extra":{"id":9}, "method":"m","jsonrpc":"2.0"} "#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method(text.as_bytes()).raw(), b"m");
        assert_eq!(item.params(text.as_bytes()), Some(&br#"{"a":[1]}"#[..]));
        assert_eq!(item.id(text.as_bytes()), Some(&br#""x""#[..]));
    }

    #[test]
    fn the_last_of_two_members_counts() {
        let text = r#"{"jsonrpc":"1.0","jsonrpc":"2.0","method":3,"method":"m","id":{},"id":7}"#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.id(text.as_bytes()), Some(&b"7"[..]));
        assert!(only(r#"{"jsonrpc":"2.0","method":"m","method":3}"#).invalid.is_some());
        assert!(only(r#"{"jsonrpc":"2.0","jsonrpc":2.0,"method":"m"}"#).invalid.is_some());
    }

    #[test]
    fn escaped_names_are_the_same_names() {
        let text = r#"{"\u006asonrpc":"\u0032.0","m\u0065thod":"\u006d","id":1}"#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method(text.as_bytes()).unescaped().as_ref(), b"m");
    }

    #[test]
    fn what_is_no_request_says_what_was_expected_and_keeps_a_good_id() {
        for (text, expected) in [
            (r#"{"method":"m","id":1}"#, "jsonrpc"),
            (r#"{"jsonrpc":2.0,"method":"m","id":1}"#, "jsonrpc"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "method"),
            (r#"{"jsonrpc":"2.0","method":1,"id":1}"#, "method"),
            (r#"{"jsonrpc":"2.0","method":"m","params":"bar","id":1}"#, "params"),
            (r#"{"jsonrpc":"2.0","method":"m","params":null,"id":1}"#, "params"),
        ] {
            let item = only(text);
            assert!(item.invalid.unwrap().contains(expected), "{text}");
            assert_eq!(item.id(text.as_bytes()), Some(&b"1"[..]));
        }
        let long = "9".repeat(1025);
        for id in ["true", "[]", "{}", long.as_str()] {
            let item = only(&format!(r#"{{"jsonrpc":"2.0","method":"m","id":{id}}}"#));
            assert!(item.invalid.unwrap().contains("id"), "{id}");
            assert!(item.id == Span::NOTHING);
        }
    }

    #[test]
    fn what_follows_an_object_is_no_part_of_it() {
        let (document, list) = items(r#"{}"jsonrpc":"2.0","method":"m","id":1}"#).unwrap();
        assert_eq!((document.len, list.len()), (2, 1));
        assert!(list[0].invalid.is_some());
        assert_eq!(
            items(r#"[{}"jsonrpc":"2.0","method":"m","id":1}]"#).unwrap_err(),
            Fault::Invalid
        );
    }

    #[test]
    fn batches_are_counted_past_the_limit() {
        let (document, list) = items(&format!("[{}1]", "1,".repeat(1_500))).unwrap();
        assert!(document.is_batch);
        assert_eq!((document.count, list.len()), (1_501, 1_000));
        assert_eq!(items("[]").unwrap().0.count, 0);
        assert_eq!(items("[1,]").unwrap_err(), Fault::Invalid);
    }
}
