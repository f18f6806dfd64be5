//! Finds the calls in a document, in one pass that also proves it to be JSON.
//!
//! A batch may run nothing until all of it is known to be valid, so calls are noted as places in
//! the text, in a list that is used again and again.

use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{Fault, Text};

/// A place in a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        // Documents are smaller than 4 GiB, which `Limits` promises.
        Self { start: start as u32, end: end as u32 }
    }

    #[inline]
    pub(super) fn of<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// One element of a batch, or what stands in place of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    method: Span,
    method_escaped: bool,
    params: Option<Span>,
    id: Option<Span>,
    /// What a request has and this has not.
    pub(crate) invalid: Option<&'static str>,
}

impl Item {
    const EMPTY: Item = Item {
        method: Span { start: 0, end: 0 },
        method_escaped: false,
        params: None,
        id: None,
        invalid: None,
    };

    fn invalid(expected: &'static str) -> Self {
        Item { invalid: Some(expected), ..Item::EMPTY }
    }

    #[inline]
    pub(crate) fn method<'a>(&self, text: &'a [u8]) -> Text<'a> {
        Text::new(self.method.of(text), self.method_escaped)
    }

    #[inline]
    pub(crate) fn params<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        self.params.map(|span| span.of(text))
    }

    #[inline]
    pub(crate) fn id<'a>(&self, text: &'a [u8]) -> Option<&'a [u8]> {
        self.id.map(|span| span.of(text))
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
pub(crate) fn scan_document(
    text: &[u8],
    limits: &Limits,
    items: &mut Vec<Item>,
) -> Result<Document, Fault> {
    items.clear();
    let mut scanner = Scanner::new(text, limits.nesting_max);
    let is_batch = scanner.peek()? == b'[';
    let mut count = 0;
    if is_batch {
        let mut more = scanner.enter_unless_empty(b']')?;
        while more {
            let item = scan_item(&mut scanner, limits)?;
            if count < limits.batch_calls_max {
                items.push(item);
            }
            count += 1;
            more = scanner.another(b']')?;
        }
    } else {
        items.push(scan_item(&mut scanner, limits)?);
        count = 1;
    }
    scanner.finish()?;
    Ok(Document { len: scanner.position(), is_batch, count })
}

fn scan_item(scanner: &mut Scanner<'_>, limits: &Limits) -> Result<Item, Fault> {
    if scanner.peek()? != b'{' {
        scanner.value()?;
        return Ok(Item::invalid("expected a request object, or an array of them"));
    }
    let mut envelope = Envelope::default();
    let mut more = scanner.enter_unless_empty(b'}')?;
    while more {
        let key = scanner.key()?;
        envelope.member(key, scanner)?;
        more = scanner.another(b'}')?;
    }
    Ok(envelope.item(limits))
}

/// The members of a request object as they come; the last of two with one name counts.
#[derive(Default)]
struct Envelope {
    version: bool,
    method: Option<(Span, bool)>,
    params: Member,
    id: Member,
}

#[derive(Default, Clone, Copy)]
enum Member {
    #[default]
    Absent,
    Valid(Span),
    WrongType,
}

impl Member {
    fn span(self) -> Option<Span> {
        match self {
            Member::Valid(span) => Some(span),
            Member::Absent | Member::WrongType => None,
        }
    }
}

impl Envelope {
    #[inline]
    fn member(&mut self, key: Text<'_>, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        if key.is_escaped() {
            let key = key.unescaped();
            return self.member_named(&key, scanner);
        }
        self.member_named(key.raw(), scanner)
    }

    #[inline]
    fn member_named(&mut self, key: &[u8], scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        match key {
            b"jsonrpc" => self.version = is_version(scanner)?,
            b"method" => self.method = method(scanner)?,
            b"params" => self.params = member(scanner, |first| matches!(first, b'[' | b'{'))?,
            b"id" => {
                self.id =
                    member(scanner, |first| matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n'))?
            }
            _ => scanner.value()?,
        }
        Ok(())
    }

    fn item(self, limits: &Limits) -> Item {
        let mut item = Item { params: self.params.span(), id: self.id.span(), ..Item::EMPTY };
        if let Some((method, escaped)) = self.method {
            (item.method, item.method_escaped) = (method, escaped);
        }
        item.invalid = self.fault(limits);
        if item.id.is_some_and(|id| (id.end - id.start) as usize > limits.id_bytes_max) {
            item.id = None;
        }
        item
    }

    /// The first thing that keeps this from being a request (§4).
    fn fault(&self, limits: &Limits) -> Option<&'static str> {
        let id_len = self.id.span().map_or(0, |id| (id.end - id.start) as usize);
        if matches!(self.id, Member::WrongType) {
            Some("expected an id that is a string, a number or null")
        } else if id_len > limits.id_bytes_max {
            Some("expected a shorter id")
        } else if !self.version {
            Some("expected a member \"jsonrpc\" that is \"2.0\"")
        } else if self.method.is_none() {
            Some("expected a member \"method\" that is a string")
        } else if matches!(self.params, Member::WrongType) {
            Some("expected params that are an array or an object")
        } else {
            None
        }
    }
}

#[inline]
fn is_version(scanner: &mut Scanner<'_>) -> Result<bool, Fault> {
    if scanner.peek()? != b'"' {
        scanner.value()?;
        return Ok(false);
    }
    let text = scanner.string()?;
    Ok(text.raw() == b"2.0" || text.is_escaped() && text.unescaped().as_ref() == b"2.0")
}

#[inline]
fn method(scanner: &mut Scanner<'_>) -> Result<Option<(Span, bool)>, Fault> {
    if scanner.peek()? != b'"' {
        scanner.value()?;
        return Ok(None);
    }
    let start = scanner.position() + 1;
    let text = scanner.string()?;
    Ok(Some((Span::new(start, scanner.position() - 1), text.is_escaped())))
}

/// Any other member, of a type that its first byte tells.
#[inline]
fn member(scanner: &mut Scanner<'_>, is_valid: impl Fn(u8) -> bool) -> Result<Member, Fault> {
    let first = scanner.peek()?;
    let start = scanner.position();
    scanner.value()?;
    Ok(match is_valid(first) {
        true => Member::Valid(Span::new(start, scanner.position())),
        false => Member::WrongType,
    })
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
            assert!(item.id.is_none());
        }
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
