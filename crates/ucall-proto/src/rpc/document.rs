//! Finds the calls in a document, in one pass that also proves it to be JSON.
//!
//! A batch may run nothing until all of it is known to be valid, so calls are noted as places in
//! the text, in a list that is used again and again. Members written the usual way are recognised
//! by one comparison, and each place is written once, where it stays.

use super::request::{Begun, FirstMembers, MEMBERS_MAX, Request, Span};
use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{Fault, Member, Text};

/// A request, as places in its document. Without an id or params those are empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    method: Span,
    method_is_escaped: bool,
    params: Span,
    id: Span,
    members: Option<Span>,
    invalid: Option<&'static str>,
}

impl Item {
    fn new(request: &Request<'_>, text: &[u8]) -> Self {
        let span = |part: Option<&[u8]>| part.map_or(Span::NOTHING, |it| Span::within(it, text));
        Self {
            method: span(Some(request.method.raw())),
            method_is_escaped: request.method.is_escaped(),
            params: span(request.params),
            id: span(request.id),
            members: request.members,
            invalid: request.invalid,
        }
    }

    #[inline(always)]
    pub(crate) fn request<'a>(&self, text: &'a [u8]) -> Request<'a> {
        let part = |span: Span| span.of(text).filter(|part| !part.is_empty());
        Request {
            method: Text::new(self.method.of(text).unwrap_or_default(), self.method_is_escaped),
            params: part(self.params),
            id: part(self.id),
            members: self.members,
            invalid: self.invalid,
        }
    }
}

/// A document that is proven to be JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Document<'a> {
    /// Where it ends.
    pub(crate) len: usize,
    pub(crate) content: Content<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    Single(Request<'a>),
    /// The items are in the [`Notes`] given to the scan: fewer than these elements, when those are
    /// more than the limit.
    Batch(usize),
}

/// What a scan notes of a document. Used again and again.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) items: Vec<Item>,
    /// Members of the params of all items, each with its place in those params; behind them what
    /// was noted of other documents.
    pub(crate) members: Vec<Member>,
}

impl Notes {
    /// Places for the members of one item's params, behind so many that are taken.
    fn places(&mut self, taken: usize) -> &mut [Member] {
        let end = taken + MEMBERS_MAX;
        if self.members.len() < end {
            self.members.resize(end, Member::NOTHING);
        }
        self.members.get_mut(taken..end).unwrap_or_default()
    }
}

/// Scans the document at the front of `text`.
#[inline(always)]
pub(crate) fn scan_document<'a>(
    text: &'a [u8],
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Document<'a>, Fault> {
    let mut begun = Begun::NOTHING;
    if let Some(places) = notes.members.first_chunk_mut::<MEMBERS_MAX>()
        && let Some(usual) = Begun::usual(text, limits.nesting_max, limits, places)?
    {
        if usual.is_whole {
            return Ok(Document { len: usual.len, content: Content::Single(usual.request) });
        }
        begun = usual;
    }
    // Made anew: what comes from a function that is not inlined is in memory, and so would be what
    // is usual.
    let Document { len, content } = scan_any_document(text, &begun, limits, notes)?;
    let content = match content {
        Content::Single(Request { method, params, id, members, invalid }) => {
            let method = Text::new(method.raw(), method.is_escaped());
            Content::Single(Request { method, params, id, members, invalid })
        }
        Content::Batch(count) => Content::Batch(count),
    };
    Ok(Document { len, content })
}

/// Goes on with a document that is not one usual request.
#[inline(never)]
fn scan_any_document<'a>(
    text: &'a [u8],
    begun: &Begun<'a>,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<Document<'a>, Fault> {
    let mut scanner = Scanner::new(text, limits.nesting_max);
    let content = match scanner.peek()? {
        b'[' => Content::Batch(scan_batch(text, &mut scanner, limits, notes)?),
        _ => Content::Single(scan_request(&mut scanner, begun, limits, notes.places(0))?),
    };
    scanner.finish()?;
    Ok(Document { len: scanner.position(), content })
}

/// Scans a batch, whose bracket `peek` showed, and lists its items: how many elements it has.
fn scan_batch(
    text: &[u8],
    scanner: &mut Scanner<'_>,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<usize, Fault> {
    notes.items.clear();
    let (mut count, mut taken) = (0, 0);
    let mut more = scanner.enter_unless_empty(b']')?;
    while more {
        scanner.peek()?;
        let is_listed = count < limits.batch_calls_max || count == 0;
        // Past the limit the same places serve for all: the batch will be refused.
        taken = if is_listed { taken } else { 0 };
        let places = notes.places(taken);
        let begun = Begun::usual(scanner.rest(), scanner.nesting_left(), limits, places)?;
        let mut request = match begun {
            Some(begun) if begun.is_whole => {
                scanner.skip(begun.len);
                begun.request
            }
            Some(begun) => scan_request(scanner, &begun, limits, places)?,
            None => scan_request(scanner, &Begun::NOTHING, limits, places)?,
        };
        request.members = request.members.map(|members| members.behind(taken));
        if is_listed {
            notes.items.push(Item::new(&request, text));
            taken += request.members.map_or(0, Span::len);
        }
        count += 1;
        more = scanner.another(b']')?;
    }
    Ok(count)
}

/// Scans the rest of a request that has begun where the scanner is, or of any other value there.
#[inline(never)]
fn scan_request<'a>(
    scanner: &mut Scanner<'a>,
    begun: &Begun<'a>,
    limits: &Limits,
    places: &mut [Member],
) -> Result<Request<'a>, Fault> {
    let first = scanner.peek()?;
    if first != b'{' {
        scanner.value()?;
        let invalid = Some("expected a request object, or an array of them");
        return Ok(Request { invalid, ..Request::EMPTY });
    }
    let is_begun = begun.len > 0;
    let new = Draft::new(begun.request, places);
    let mut draft = Draft { version: is_begun, method: is_begun, ..new };
    let mut more = if is_begun {
        scanner.enter()?;
        scanner.skip_seen(begun.len - 1, begun.seen);
        scanner.another(b'}')?
    } else {
        scanner.enter_unless_empty(b'}')?
    };
    while more {
        let key = match known_key(scanner) {
            Some(key) => key,
            None => Key::named(&scanner.key()?.unescaped()),
        };
        draft.member(key, scanner)?;
        more = scanner.another(b'}')?;
    }
    Ok(draft.judged(limits))
}

/// A request, and what is known of it beyond that.
struct Draft<'a, 'p> {
    request: Request<'a>,
    version: bool,
    method: bool,
    wrong_params: bool,
    wrong_id: bool,
    places: &'p mut [Member],
}

impl<'a, 'p> Draft<'a, 'p> {
    fn new(request: Request<'a>, places: &'p mut [Member]) -> Self {
        let (version, method, wrong_params, wrong_id) = (false, false, false, false);
        Self { request, version, method, wrong_params, wrong_id, places }
    }

    /// Steps over the value of a member and notes it; the last of two with one name counts.
    #[inline(always)]
    fn member(&mut self, key: Key, scanner: &mut Scanner<'a>) -> Result<(), Fault> {
        match key {
            Key::Version => self.version(scanner),
            Key::Method => self.method(scanner),
            Key::Params => self.params(scanner),
            Key::Id => self.id(scanner),
            Key::Other => scanner.value(),
        }
    }

    #[inline(always)]
    fn version(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Fault> {
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
    fn method(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Fault> {
        self.method = scanner.peek()? == b'"';
        if !self.method {
            return scanner.value();
        }
        self.request.method = scanner.string()?;
        Ok(())
    }

    #[inline(always)]
    fn params(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Fault> {
        let first = scanner.peek()?;
        self.wrong_params = !matches!(first, b'{' | b'[');
        if self.wrong_params {
            return scanner.value();
        }
        let start = scanner.position();
        let all = self.places.len();
        let mut notes = FirstMembers::new(self.places);
        match first {
            b'{' => scanner.object(&mut notes)?,
            _ => scanner.array(&mut notes)?,
        }
        self.request.members = notes.noted(all);
        self.request.params = Some(scanner.since(start));
        Ok(())
    }

    #[inline(always)]
    fn id(&mut self, scanner: &mut Scanner<'a>) -> Result<(), Fault> {
        let first = scanner.peek()?;
        let start = scanner.position();
        scanner.value_inside()?;
        self.wrong_id = !matches!(first, b'"' | b'-' | b'0'..=b'9' | b'n');
        self.request.id = Some(scanner.since(start)).filter(|_| !self.wrong_id);
        Ok(())
    }

    /// The request, with the first thing that keeps it from being one (§4).
    fn judged(mut self, limits: &Limits) -> Request<'a> {
        let has_long_id = self.request.id.is_some_and(|id| id.len() > limits.id_bytes_max);
        self.request.invalid = if self.wrong_id {
            Some("expected an id that is a string, a number or null")
        } else if has_long_id {
            Some("expected a shorter id (max_id_bytes)")
        } else if !self.version {
            Some("expected a member \"jsonrpc\" that is \"2.0\"")
        } else if !self.method {
            Some("expected a member \"method\" that is a string")
        } else if self.wrong_params {
            Some("expected params that are an array or an object")
        } else {
            None
        };
        if has_long_id {
            self.request.id = None;
        }
        self.request
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
    use proptest::prelude::*;

    /// How many elements a batch has, or none, and the requests that are listed.
    fn scan(text: &str) -> Result<(usize, Option<usize>, Vec<Request<'_>>), Fault> {
        let mut notes = Notes::default();
        let document = scan_document(text.as_bytes(), &Limits::default(), &mut notes)?;
        let (count, requests) = match document.content {
            Content::Single(request) => (None, vec![request]),
            Content::Batch(count) => {
                let requests = notes.items.iter().map(|item| item.request(text.as_bytes()));
                (Some(count), requests.collect())
            }
        };
        Ok((document.len, count, requests))
    }

    fn only(text: &str) -> Request<'_> {
        scan(text).unwrap().2[0]
    }

    #[test]
    fn members_are_found_in_any_order() {
        let text =
            r#" {"id": "x" , "params":{"a":[1]},"extra":{"id":9}, "method":"m","jsonrpc":"2.0"} "#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method.raw(), b"m");
        assert_eq!(item.params, Some(&br#"{"a":[1]}"#[..]));
        assert_eq!(item.id, Some(&br#""x""#[..]));
    }

    #[test]
    fn the_last_of_two_members_counts() {
        let text = r#"{"jsonrpc":"1.0","jsonrpc":"2.0","method":3,"method":"m","id":{},"id":7}"#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.id, Some(&b"7"[..]));
        assert!(only(r#"{"jsonrpc":"2.0","method":"m","method":3}"#).invalid.is_some());
        assert!(only(r#"{"jsonrpc":"2.0","jsonrpc":2.0,"method":"m"}"#).invalid.is_some());
    }

    #[test]
    fn escaped_names_are_the_same_names() {
        let text = r#"{"\u006asonrpc":"\u0032.0","m\u0065thod":"\u006d","id":1}"#;
        let item = only(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method.unescaped().as_ref(), b"m");
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
            assert_eq!(item.id, Some(&b"1"[..]));
        }
        let long = "9".repeat(1025);
        for id in ["true", "[]", "{}", long.as_str()] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"m","id":{id}}}"#);
            let item = only(&text);
            assert!(item.invalid.unwrap().contains("id"), "{id}");
            assert_eq!(item.id, None);
        }
    }

    #[test]
    fn what_follows_an_object_is_no_part_of_it() {
        let (len, count, list) = scan(r#"{}"jsonrpc":"2.0","method":"m","id":1}"#).unwrap();
        assert_eq!((len, count, list.len()), (2, None, 1));
        assert!(list[0].invalid.is_some());
        assert_eq!(
            scan(r#"[{}"jsonrpc":"2.0","method":"m","id":1}]"#).unwrap_err(),
            Fault::Invalid
        );
    }

    #[test]
    fn batches_are_counted_past_the_limit() {
        let text = format!("[{}1]", "1,".repeat(1_500));
        let (_, count, list) = scan(&text).unwrap();
        assert_eq!((count, list.len()), (Some(1_501), 1_000));
        assert_eq!(scan("[]").unwrap().1, Some(0));
        assert_eq!(scan("[1,]").unwrap_err(), Fault::Invalid);
    }

    /// What was found: where the document ends, its requests, and the members of their params.
    type Found<'a> = Result<(usize, Vec<(Request<'a>, Option<Vec<Member>>)>), Fault>;

    /// The requests of a document, the usual way straight on or not.
    fn found<'a>(text: &'a [u8], limits: &Limits, is_straight: bool) -> Found<'a> {
        let mut notes = Notes::default();
        if is_straight {
            notes.places(0);
        }
        let Document { len, content } = scan_document(text, limits, &mut notes)?;
        let requests = match content {
            Content::Single(request) => vec![request],
            Content::Batch(_) => notes.items.iter().map(|item| item.request(text)).collect(),
        };
        let with_members = |request: Request<'a>| {
            let members = request.members(&notes.members).map(<[Member]>::to_vec);
            (Request { members: None, ..request }, members)
        };
        Ok((len, requests.into_iter().map(with_members).collect()))
    }

    /// Texts that are usual requests but for some of their parts, or nearly so.
    fn texts() -> impl Strategy<Value = Vec<u8>> {
        let part = |parts: &[&'static str]| prop::sample::select(parts.to_vec());
        let front = part(&[
            r#"{"jsonrpc":"2.0","method":"sum""#,
            r#"{"jsonrpc":"2.0","method":"a_name_of_its_own""#,
            r#"{"jsonrpc":"2.0","method":"a_name_of_so_many_letters_that_it_is_more_than_40""#,
            r#"{"jsonrpc":"2.0","method":"""#,
            r#"{"jsonrpc":"2.0","method":"\u0061""#,
            r#"{"jsonrpc":"2.0","method":"é""#,
            r#"{"jsonrpc":"2.0","method":1"#,
            r#" {"jsonrpc": "2.0","method":"sum""#,
            r#"{"method":"sum","jsonrpc":"2.0""#,
        ]);
        let params = part(&[
            "",
            r#","params":{"a":55,"b":21}"#,
            r#","params":{"a":0}"#,
            r#","params":{"a":01}"#,
            r#","params":{"a_longer_name":1234567890123456789,"b":"x"}"#,
            r#","params":{}"#,
            r#","params":{"a":1.5,"b":-1}"#,
            r#","params":{"a":{"b":[1]}}"#,
            r#","params":[1,2]"#,
            r#","params":"x""#,
            r#","params":{"a":1},"params":{"c":3,"d":4}"#,
        ]);
        let id = part(&[
            "",
            r#","id":1"#,
            r#","id":0"#,
            r#","id":00"#,
            r#","id":12345678901234567890"#,
            r#","id":"x""#,
            r#","id":"""#,
            r#","id":"a_text_of_40_letters_or_of_some_more_____""#,
            r#","id":1.5"#,
            r#","id":-1"#,
            r#","id":1e3"#,
            r#","id":null"#,
            r#","id":true"#,
            r#", "id": 7 "#,
            r#","id":1,"id":2"#,
            r#","id":1,"method":"later""#,
        ]);
        let end = part(&["}", "} ", "}}", "", ",", r#","extra":[{}]}"#, ","]);
        let change =
            (0usize..120, part(&["", "\"", " ", "0", "}", "\\", "é", ",", "{"]), 0usize..3);
        let changes = prop::collection::vec(change, 0..2);
        (front, params, id, end, changes).prop_map(|(front, params, id, end, changes)| {
            let mut text = [front, params, id, end].concat().into_bytes();
            for (at, put, removed) in changes {
                let at = at.min(text.len());
                let end = (at + removed).min(text.len());
                text.splice(at..end, put.bytes());
            }
            text
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn what_is_usual_is_found_as_anything_is(
            text in texts(),
            nesting_max in 1usize..5,
            id_bytes_max in prop::sample::select(vec![1usize, 3, 19, 20, 1024]),
        ) {
            let limits = Limits { nesting_max, id_bytes_max, ..Limits::default() };
            prop_assert_eq!(found(&text, &limits, true), found(&text, &limits, false));
        }

        #[test]
        fn an_item_of_a_batch_is_found_as_if_it_were_alone(text in texts()) {
            let limits = Limits { id_bytes_max: 20, ..Limits::default() };
            let batch = [b"[", text.as_slice(), b",", &text, b"]"].concat();
            match (found(&text, &limits, false), found(&batch, &limits, true)) {
                (Ok((len, alone)), Ok((_, items))) if text[len..].trim_ascii().is_empty() => {
                    prop_assert_eq!(items, [alone.clone(), alone].concat());
                }
                (Ok((len, _)), batch) => {
                    prop_assert!(!text[len..].trim_ascii().is_empty() || batch.is_ok());
                }
                (Err(Fault::Invalid), batch) => prop_assert_eq!(batch, Err(Fault::Invalid)),
                (Err(_), batch) => prop_assert!(batch.is_err()),
            }
        }
    }
}
