//! Finds the calls in a document, in one pass that also proves it to be JSON.
//!
//! A batch may run nothing until all of it is known to be valid, so calls are noted as places in
//! the text, in a list that is used again and again. Members written the usual way are recognised
//! by one comparison, and each place is written once, where it stays.

use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{Fault, Text};

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
    /// What a request has and this has not.
    pub(crate) invalid: Option<&'static str>,
}

impl Item {
    const EMPTY: Item = Item {
        method: Span::NOTHING,
        method_is_escaped: false,
        params: Span::NOTHING,
        id: Span::NOTHING,
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

    #[inline(always)]
    pub(crate) fn id<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        self.id.of_something(text)
    }
}

/// A document that is proven to be JSON; its items are in the list given to the scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Document {
    /// Where it ends.
    pub(crate) len: usize,
    pub(crate) is_batch: bool,
    /// Elements of the batch. The list holds fewer when there are more than the limit.
    pub(crate) count: usize,
}

/// Scans the document at the front of `text` and lists its items.
#[inline]
pub(crate) fn scan_document(
    text: &[u8],
    limits: &Limits,
    items: &mut Vec<Item>,
) -> Result<Document, Fault> {
    items.clear();
    let mut scanner = Scanner::new(text, limits.nesting_max);
    let is_batch = scanner.peek()? == b'[';
    let mut count = 0;
    let mut more = !is_batch || scanner.enter_unless_empty(b']')?;
    while more {
        // Past the limit one place serves for all: the batch will be refused.
        if count < limits.batch_calls_max || count == 0 {
            items.push(Item::EMPTY);
        }
        if let Some(item) = items.last_mut() {
            scan_item(&mut scanner, limits, item)?;
        }
        count += 1;
        more = is_batch && scanner.another(b']')?;
    }
    scanner.finish()?;
    Ok(Document { len: scanner.position(), is_batch, count })
}

fn scan_item(scanner: &mut Scanner<'_>, limits: &Limits, item: &mut Item) -> Result<(), Fault> {
    if scanner.peek()? != b'{' {
        item.invalid = Some("expected a request object, or an array of them");
        return scanner.value();
    }
    let mut seen = Seen::default();
    let mut more = scanner.enter_unless_empty(b'}')?;
    if more && scanner.rest().starts_with(USUAL_OPENING) {
        scanner.skip(USUAL_OPENING.len() - 1);
        seen.version = true;
        seen.member(Key::Method, scanner, item)?;
        more = scanner.another(b'}')?;
    }
    while more {
        match known_key(scanner) {
            Some(key) => seen.member(key, scanner, item)?,
            None => {
                let key = scanner.key()?.unescaped();
                seen.member(Key::named(&key), scanner, item)?;
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

/// How most requests begin, behind their brace.
const USUAL_OPENING: &[u8] = br#""jsonrpc":"2.0","method":""#;

/// What is known of a request object beyond the places in its [`Item`].
#[derive(Default)]
struct Seen {
    version: bool,
    wrong_params: bool,
    wrong_id: bool,
}

impl Seen {
    /// Steps over the value of a member and notes it; the last of two with one name counts.
    #[inline(always)]
    fn member(
        &mut self,
        key: Key,
        scanner: &mut Scanner<'_>,
        item: &mut Item,
    ) -> Result<(), Fault> {
        let first = scanner.peek()?;
        let start = scanner.position();
        match key {
            Key::Version if scanner.rest().starts_with(br#""2.0""#) => {
                self.version = true;
                scanner.skip(5);
                return Ok(());
            }
            Key::Method if first == b'"' => {
                item.method_is_escaped = scanner.string()?.is_escaped();
            }
            _ => scanner.value_inside()?,
        }
        let place = |is_valid| match is_valid {
            true => Span::new(start, scanner.position()),
            false => Span::NOTHING,
        };
        match key {
            Key::Version => self.version = is_escaped_version(scanner.since(start)),
            Key::Method => item.method = place(first == b'"'),
            Key::Params => {
                item.params = place(matches!(first, b'[' | b'{'));
                self.wrong_params = item.params == Span::NOTHING;
            }
            Key::Id => {
                item.id = place(matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n'));
                self.wrong_id = item.id == Span::NOTHING;
            }
            Key::Other => {}
        }
        Ok(())
    }

    /// The first thing that keeps this from being a request (§4).
    #[inline(always)]
    fn fault(&self, item: &Item, limits: &Limits) -> Option<&'static str> {
        if self.wrong_id {
            Some("expected an id that is a string, a number or null")
        } else if item.id.len() > limits.id_bytes_max {
            Some("expected a shorter id")
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
        let mut items = Vec::new();
        let document = scan_document(text.as_bytes(), &Limits::default(), &mut items)?;
        Ok((document, items))
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
