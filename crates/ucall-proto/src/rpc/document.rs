//! Finds the requests of a document, in the pass that validates it.
//!
//! No call of a batch may run before the whole batch is valid, so the scan lists its requests.

use super::request::Request;
use crate::Limits;
use crate::json::scan::Scanner;
use crate::json::{FirstMembers, JsonError};

/// The requests of a document, and its length.
#[derive(Clone, Debug)]
pub(crate) struct Document<'a> {
    pub(crate) len: usize,
    pub(crate) content: Content<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum Content<'a> {
    Single(Request<'a>),
    Batch(Batch<'a>),
}

/// The requests of a batch up to the limit, and the number of its elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch<'a> {
    pub(crate) requests: Vec<Request<'a>>,
    pub(crate) count: usize,
}

/// Scans the document that `text` starts with, in any form.
#[inline(never)]
pub(crate) fn scan_document<'a>(
    text: &'a [u8],
    limits: &Limits,
    members: &mut FirstMembers<'_>,
) -> Result<Document<'a>, JsonError> {
    let mut scanner = Scanner::new(text, limits.nesting_max);
    let content = match scanner.peek()? {
        b'[' => Content::Batch(scan_batch(&mut scanner, limits, members)?),
        _ => Content::Single(Request::scan(&mut scanner, limits, members)?),
    };
    scanner.finish()?;
    Ok(Document { len: scanner.position(), content })
}

/// Scans a batch, whose bracket `peek` returned.
fn scan_batch<'a>(
    scanner: &mut Scanner<'a>,
    limits: &Limits,
    members: &mut FirstMembers<'_>,
) -> Result<Batch<'a>, JsonError> {
    let mut batch = Batch::default();
    let mut more = scanner.enter_unless_empty(b']')?;
    while more {
        scanner.peek()?;
        if batch.count < limits.batch_calls_max.max(1) {
            batch.requests.push(scan_element(scanner, limits, members)?);
        } else {
            scanner.value()?;
        }
        batch.count += 1;
        more = scanner.another(b']')?;
    }
    Ok(batch)
}

fn scan_element<'a>(
    scanner: &mut Scanner<'a>,
    limits: &Limits,
    members: &mut FirstMembers<'_>,
) -> Result<Request<'a>, JsonError> {
    let text = scanner.rest();
    let nesting_max = scanner.nesting_left();
    match Request::fast_path(text, nesting_max, limits, members)
        .or_else(|| Request::in_any_order(text, nesting_max, limits, members))
    {
        Some((request, rest)) => {
            scanner.skip(text.len() - rest.len());
            Ok(request)
        }
        None => Request::scan(scanner, limits, members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::{MEMBERS_MAX, Member};
    use crate::rpc::DocumentOutline;
    use proptest::prelude::*;

    /// Reads a document by the fast path if possible, and by the scanner otherwise.
    fn document<'a>(
        text: &'a [u8],
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Result<Document<'a>, JsonError> {
        match Request::fast_path(text, limits.nesting_max, limits, members) {
            Some((request, rest)) => {
                let len = text.len() - rest.len();
                Ok(Document { len, content: Content::Single(request) })
            }
            None => scan_document(text, limits, members),
        }
    }

    /// How many elements a batch has, or none, and the requests that are listed.
    fn scan(text: &str) -> Result<(usize, Option<usize>, Vec<Request<'_>>), JsonError> {
        let mut list = Vec::new();
        let mut members = FirstMembers::new(&mut list, MEMBERS_MAX);
        let document = document(text.as_bytes(), &Limits::default(), &mut members)?;
        let (count, requests) = match document.content {
            Content::Single(request) => (None, vec![request]),
            Content::Batch(batch) => (Some(batch.count), batch.requests),
        };
        Ok((document.len, count, requests))
    }

    fn scan_single(text: &str) -> Request<'_> {
        scan(text).unwrap().2[0]
    }

    #[test]
    fn requests_in_any_order_take_the_fast_path() {
        for text in [
            r#"{"jsonrpc":"2.0","id":1,"method":"sum","params":{"a":1}}"#,
            r#"{"id": 1, "jsonrpc": "2.0", "params": [1, 2], "method": "sum"}"#,
            r#"{"jsonrpc":"2.0","method":"sum","id":1,"params":{"a":1}}"#,
            r#"{"method":"sum","jsonrpc":"2.0"}"#,
        ] {
            let mut list = Vec::new();
            let mut members = FirstMembers::new(&mut list, MEMBERS_MAX);
            let limits = Limits::default();
            let found = Request::in_any_order(text.as_bytes(), 8, &limits, &mut members);
            assert!(found.is_some_and(|(_, rest)| rest.is_empty()), "{text}");
        }
    }

    #[test]
    fn members_are_found_in_any_order() {
        let text =
            r#" {"id": "x" , "params":{"a":[1]},"extra":{"id":9}, "method":"m","jsonrpc":"2.0"} "#;
        let item = scan_single(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method.raw(), b"m");
        assert_eq!(item.params, Some(&br#"{"a":[1]}"#[..]));
        assert_eq!(item.id, Some(&br#""x""#[..]));
    }

    #[test]
    fn the_last_duplicate_member_counts() {
        let text = r#"{"jsonrpc":"1.0","jsonrpc":"2.0","method":3,"method":"m","id":{},"id":7}"#;
        let item = scan_single(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.id, Some(&b"7"[..]));
        assert!(scan_single(r#"{"jsonrpc":"2.0","method":"m","method":3}"#).invalid.is_some());
        assert!(scan_single(r#"{"jsonrpc":"2.0","jsonrpc":2.0,"method":"m"}"#).invalid.is_some());
    }

    #[test]
    fn escaped_names_are_the_same_names() {
        let text = r#"{"\u006asonrpc":"\u0032.0","m\u0065thod":"\u006d","id":1}"#;
        let item = scan_single(text);
        assert_eq!(item.invalid, None);
        assert_eq!(item.method.unescaped().as_ref(), b"m");
    }

    #[test]
    fn an_invalid_request_states_the_expectation_and_keeps_a_valid_id() {
        for (text, expected) in [
            (r#"{"method":"m","id":1}"#, "jsonrpc"),
            (r#"{"jsonrpc":2.0,"method":"m","id":1}"#, "jsonrpc"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "method"),
            (r#"{"jsonrpc":"2.0","method":1,"id":1}"#, "method"),
            (r#"{"jsonrpc":"2.0","method":"m","params":"bar","id":1}"#, "params"),
            (r#"{"jsonrpc":"2.0","method":"m","params":null,"id":1}"#, "params"),
        ] {
            let item = scan_single(text);
            assert!(item.invalid.unwrap().contains(expected), "{text}");
            assert_eq!(item.id, Some(&b"1"[..]));
        }
        let long = "9".repeat(1025);
        for id in ["true", "[]", "{}", long.as_str()] {
            let text = format!(r#"{{"jsonrpc":"2.0","method":"m","id":{id}}}"#);
            let item = scan_single(&text);
            assert!(item.invalid.unwrap().contains("id"), "{id}");
            assert_eq!(item.id, None);
        }
    }

    #[test]
    fn an_outline_reads_no_params_again() {
        let long = "x".repeat(1000);
        for open in ["", "["] {
            let request = format!(r#"{{"id":1,"params":["{long}"],"method":"m","jsonrpc":"2.0"}}"#);
            let end = if open.is_empty() { "" } else { ",1]" };
            let text = format!("{open}{request}{end}");
            let (mut outline, limits) = (DocumentOutline::default(), Limits::default());
            for len in 0..=text.len() {
                let scanned = outline.scan(&text.as_bytes()[..len], &limits);
                assert_eq!(scanned, Ok((len == text.len()).then_some(len)));
            }
            // Nothing finds that they have changed since.
            let changed = text.replace(&format!("\"{long}\""), &"}".repeat(1002));
            let mut list = Vec::new();
            let mut members = FirstMembers::new(&mut list, 0);
            let content = outline.content(changed.as_bytes(), &limits, &mut members);
            let request = match content.expect("it was valid") {
                Content::Single(request) => request,
                Content::Batch(batch) => batch.requests[0],
            };
            assert_eq!(request.params.map(<[u8]>::len), Some(1004));
            assert_eq!((request.invalid, request.id), (None, Some(&b"1"[..])));
        }
    }

    #[test]
    fn text_after_an_object_is_not_scanned() {
        let (len, count, list) = scan(r#"{}"jsonrpc":"2.0","method":"m","id":1}"#).unwrap();
        assert_eq!((len, count, list.len()), (2, None, 1));
        assert!(list[0].invalid.is_some());
        assert_eq!(
            scan(r#"[{}"jsonrpc":"2.0","method":"m","id":1}]"#).unwrap_err(),
            JsonError::Invalid
        );
    }

    #[test]
    fn batches_are_counted_past_the_limit() {
        let text = format!("[{}1]", "1,".repeat(1_500));
        let (_, count, list) = scan(&text).unwrap();
        assert_eq!((count, list.len()), (Some(1_501), 1_000));
        assert_eq!(scan("[]").unwrap().1, Some(0));
        assert_eq!(scan("[1,]").unwrap_err(), JsonError::Invalid);
    }

    /// The end of a document, its requests, and the members of their params.
    type Scanned<'a> = Result<(usize, Vec<(Request<'a>, Option<Vec<Member>>)>), JsonError>;

    /// Reads the requests of a document, with the fast path or by the scanner alone.
    fn scan_all<'a>(text: &'a [u8], limits: &Limits, has_fast_path: bool) -> Scanned<'a> {
        let mut list = Vec::new();
        let mut members = FirstMembers::new(&mut list, MEMBERS_MAX);
        let Document { len, content } = match has_fast_path {
            true => document(text, limits, &mut members)?,
            false => scan_document(text, limits, &mut members)?,
        };
        let requests = match content {
            Content::Single(request) => vec![request],
            Content::Batch(batch) => batch.requests,
        };
        let with_members = |request: Request<'a>| {
            let members = request.members(&list).map(<[Member]>::to_vec);
            (Request { members: None, ..request }, members)
        };
        Ok((len, requests.into_iter().map(with_members).collect()))
    }

    /// The end of a document, the number of its elements, and its requests without the members of
    /// their params.
    fn without_members(document: Document<'_>) -> (usize, Option<usize>, Vec<Request<'_>>) {
        let (requests, count) = match document.content {
            Content::Single(request) => (vec![request], None),
            Content::Batch(batch) => (batch.requests, Some(batch.count)),
        };
        let requests = requests.into_iter().map(|it| Request { members: None, ..it });
        (document.len, count, requests.collect())
    }

    /// Texts that have the form of the fast path in all of their parts, in some, or nearly.
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
            r#"{"jsonrpc": "2.0", "method": "sum""#,
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
            r#", "params": {"a": 55, "b": [1.5, true, null], "c": {}}"#,
            r#","params":[[[1]],{"a":-0.5},1e5,"é\n"]"#,
            r#","params":{"a":[{"b":1 }],"c":"é","d":[], "e":false}"#,
            r#","params":[1, ]"#,
            r#","params":[01.5,1.,.5]"#,
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
            r#", "id": 7"#,
            r#", "id": -0"#,
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

    /// Requests whose members are in any order; some are missing, some come twice.
    fn shuffled() -> impl Strategy<Value = Vec<u8>> {
        let members = vec![
            r#""jsonrpc":"2.0""#,
            r#""jsonrpc": "2.0""#,
            r#""jsonrpc":"1.0""#,
            r#""method":"sum""#,
            r#""method": "a_name_of_its_own""#,
            r#""params":{"a":55,"b":21}"#,
            r#""params": {"a": 1.5, "b": [true]}"#,
            r#""params":[1,"\n"]"#,
            r#""params":7"#,
            r#""id":1"#,
            r#""id": "x""#,
            r#""id":{}"#,
            r#""_meta":{"timeout_ms":5}"#,
            r#""i":1"#,
            "",
        ];
        let fast_path = prop::sample::subsequence(vec![0, 3, 5, 9], 3..=4).prop_shuffle();
        let any = prop::collection::vec(0..members.len(), 0..6);
        let separator = prop::sample::select(vec![",", ", ", " ,"]);
        (prop_oneof![fast_path, any], separator).prop_map(move |(order, separator)| {
            let chosen: Vec<_> = order.into_iter().map(|at| members[at]).collect();
            format!("{{{}}}", chosen.join(separator)).into_bytes()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn the_fast_path_finds_what_the_scan_finds(
            text in texts(),
            nesting_max in 1usize..5,
            id_bytes_max in prop::sample::select(vec![1usize, 3, 19, 20, 1024]),
        ) {
            let limits = Limits { nesting_max, id_bytes_max, ..Limits::default() };
            prop_assert_eq!(scan_all(&text, &limits, true), scan_all(&text, &limits, false));
        }

        #[test]
        fn any_order_gives_what_the_scan_finds(
            text in prop_oneof![texts(), shuffled()],
            nesting_max in 1usize..5,
        ) {
            let limits = Limits { id_bytes_max: 3, ..Limits::default() };
            let (mut list, mut scanned) = (Vec::new(), Vec::new());
            let mut members = FirstMembers::new(&mut list, MEMBERS_MAX);
            let found = Request::in_any_order(&text, nesting_max, &limits, &mut members);
            if found.is_some() {
                let mut members = FirstMembers::new(&mut scanned, MEMBERS_MAX);
                let mut scanner = Scanner::new(&text, nesting_max);
                let request = Request::scan(&mut scanner, &limits, &mut members);
                prop_assert_eq!(found, request.ok().map(|request| (request, scanner.rest())));
                prop_assert_eq!(list, scanned);
            }
        }

        #[test]
        fn an_outline_finds_what_the_scan_finds(
            items in prop::collection::vec(prop_oneof![texts(), shuffled()], 1..4),
            is_batch in any::<bool>(),
            mut cuts in prop::collection::vec(0usize..400, 0..4),
            batch_calls_max in 1usize..4,
            nesting_max in 2usize..5,
        ) {
            let batch = [b"[ ", items.join(&b" ,"[..]).as_slice(), b" ] "].concat();
            let text = if is_batch { batch } else { items.concat() };
            prop_assume!(matches!(text.first(), Some(b'{' | b'[')));
            let limits = Limits { id_bytes_max: 20, ..Limits::default() };
            let limits = Limits { batch_calls_max, nesting_max, ..limits };
            cuts.sort_unstable();
            let (mut list, mut outline) = (Vec::new(), DocumentOutline::default());
            let mut members = FirstMembers::new(&mut list, 0);
            let pieces = cuts.iter().map(|cut| text.get(..*cut).unwrap_or(&text));
            let mut scanned = Ok(None);
            for piece in pieces.chain([&text[..]]) {
                scanned = scanned.and_then(|_| outline.scan(piece, &limits));
            }
            let found = scanned.and_then(|len| {
                let content = outline.content(&text, &limits, &mut members)?;
                Ok(Document { len: len.unwrap_or_default(), content })
            });
            let expected = scan_document(&text, &limits, &mut members);
            prop_assert_eq!(
                found.map(without_members).map_err(|it| format!("{it:?}")),
                expected.map(without_members).map_err(|it| format!("{it:?}"))
            );
        }

        #[test]
        fn a_batch_item_scans_like_a_single_request(text in texts()) {
            let limits = Limits { id_bytes_max: 20, ..Limits::default() };
            let batch = [b"[", text.as_slice(), b",", &text, b"]"].concat();
            match (scan_all(&text, &limits, false), scan_all(&batch, &limits, true)) {
                (Ok((len, alone)), Ok((_, items))) if text[len..].trim_ascii().is_empty() => {
                    prop_assert_eq!(items, [alone.clone(), alone].concat());
                }
                (Ok((len, _)), batch) => {
                    prop_assert!(!text[len..].trim_ascii().is_empty() || batch.is_ok());
                }
                (Err(JsonError::Invalid), batch) => prop_assert_eq!(batch, Err(JsonError::Invalid)),
                (Err(_), batch) => prop_assert!(batch.is_err()),
            }
        }
    }
}
