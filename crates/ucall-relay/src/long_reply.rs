//! Finds the call of a reply that is too long to be collected.
//!
//! Only its first and its last bytes are kept. Servers write the id, or the token of an item,
//! before the result or after it, so it is in one of them: members at the beginning are read
//! forwards, those at the end backwards. The document is valid JSON, as its reader has checked
//! meanwhile.

/// What is kept at either end: more than the members around a result have.
const EDGE_BYTES: usize = 256;

/// The beginning and the end of a document.
#[derive(Clone, Debug, Default)]
pub(crate) struct LongReply {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl LongReply {
    /// The edges of what has arrived of a document.
    pub(crate) fn begin(text: &[u8]) -> Self {
        let mut reply = Self::default();
        reply.extend(text);
        reply
    }

    /// The document goes on.
    pub(crate) fn extend(&mut self, text: &[u8]) {
        let missing = EDGE_BYTES - self.head.len();
        self.head.extend_from_slice(&text[..text.len().min(missing)]);
        self.tail.extend_from_slice(&text[text.len().saturating_sub(EDGE_BYTES)..]);
        self.tail.drain(..self.tail.len().saturating_sub(EDGE_BYTES));
    }

    /// The text of the id, if it is no deeper than the document.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        leading(&self.head, b"\"id\"", false).or_else(|| trailing(&self.tail, b"\"id\"", 1))
    }

    /// The text of the method; a document with one is no reply.
    pub(crate) fn method(&self) -> Option<&[u8]> {
        leading(&self.head, b"\"method\"", false).or_else(|| trailing(&self.tail, b"\"method\"", 1))
    }

    /// The text of the token in the params.
    pub(crate) fn token(&self) -> Option<&[u8]> {
        leading(&self.head, b"\"token\"", true).or_else(|| trailing(&self.tail, b"\"token\"", 2))
    }
}

/// The value of a member before the first array or object, besides the params if they are read.
fn leading<'a>(text: &'a [u8], wanted: &[u8], reads_params: bool) -> Option<&'a [u8]> {
    let mut rest = text.trim_ascii_start().strip_prefix(b"{")?;
    loop {
        let (key, after) = scalar(rest.trim_ascii_start())?;
        let after = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        rest = if reads_params && key == b"\"params\"" && after.starts_with(b"{") {
            &after[1..]
        } else {
            let (value, after) = scalar(after)?;
            if key == wanted {
                return Some(value);
            }
            after.trim_ascii_start().strip_prefix(b",")?
        };
    }
}

/// A string, a number or a literal, and what follows it; `None` if it does not end here.
fn scalar(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = match text.first()? {
        b'"' => {
            let mut is_escaped = false;
            let is_end = |byte: &u8| {
                let ends = *byte == b'"' && !is_escaped;
                is_escaped = *byte == b'\\' && !is_escaped;
                ends
            };
            text[1..].iter().position(is_end)? + 2
        }
        _ => text.iter().position(|byte| !is_word(*byte)).filter(|len| *len > 0)?,
    };
    Some(text.split_at(len))
}

/// The value of a member after the last array or object, of a document that ends with `depth`
/// braces.
fn trailing<'a>(text: &'a [u8], wanted: &[u8], depth: usize) -> Option<&'a [u8]> {
    let mut rest = text;
    for _ in 0..depth {
        rest = rest.trim_ascii_end().strip_suffix(b"}")?;
    }
    loop {
        let (before, value) = scalar_before(rest.trim_ascii_end())?;
        let before = before.trim_ascii_end().strip_suffix(b":")?;
        let (before, key) = scalar_before(before.trim_ascii_end())?;
        if key == wanted {
            return Some(value);
        }
        rest = before.trim_ascii_end().strip_suffix(b",")?;
    }
}

/// What precedes a string, a number or a literal, and it.
fn scalar_before(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let start = match text.last()? {
        b'"' => {
            let mut end = text.len() - 1;
            loop {
                // A quote within a string is escaped, and so is not the first one.
                let quote = text[..end].iter().rposition(|byte| *byte == b'"')?;
                let escapes = text[..quote].iter().rev().take_while(|byte| **byte == b'\\').count();
                // Cut off before the escapes, their number is not known.
                if escapes == quote {
                    return None;
                }
                if escapes % 2 == 0 {
                    break quote;
                }
                end = quote;
            }
        }
        _ => text.iter().rposition(|byte| !is_word(*byte))? + 1,
    };
    (start < text.len()).then(|| text.split_at(start))
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> [Option<String>; 3] {
        // At any split the edges are the same.
        let reply = LongReply::begin(text.as_bytes());
        for at in 0..text.len() {
            let mut other = LongReply::begin(&text.as_bytes()[..at]);
            other.extend(&text.as_bytes()[at..]);
            assert_eq!((&other.head, &other.tail), (&reply.head, &reply.tail), "{at}");
        }
        let text = |it: Option<&[u8]>| it.map(|it| String::from_utf8_lossy(it).into_owned());
        [text(reply.id()), text(reply.method()), text(reply.token())]
    }

    #[test]
    fn an_id_is_found_on_either_side_of_the_result() {
        let long = "x".repeat(1000);
        for form in [
            r#"{"jsonrpc":"2.0","id":7,"result":"LONG"}"#,
            r#" { "id" : 7 , "result" : ["LONG", {"id":8}] } "#,
            r#"{"result":"LONG","id":7}"#,
            r#"{"result":{"id":8,"a":"LONG"},"error" : null, "id" : 7 , "jsonrpc":"2.0"}"#,
            r#"{"a\"id\"":"\\\"","id":7,"result":"LONG"}"#,
            r#"{"result":"LONG","id":7,"a\\\"id\\":"x,\"id\":9"}"#,
        ] {
            let [id, method, _] = found(&form.replace("LONG", &long));
            assert_eq!((id.as_deref(), method), (Some("7"), None), "{form}");
        }
    }

    #[test]
    fn an_id_elsewhere_is_not_taken_for_that_of_the_reply() {
        let long = "x".repeat(1000);
        for form in [
            r#"{"result":["LONG"],"id":7,"more":[]}"#,
            r#"{"result":{"a":"LONG","id":7}}"#,
            r#"{"result":{"id":7,"a":"LONG"}}"#,
            r#"{"result":"LONG\",\"id\":7"}"#,
            r#"{"result":"LONG","a,\"id":7}"#,
            r#"[{"id":7,"result":"LONG"}]"#,
            &format!(r#"{{"{long}":"\"id\":7,{long}"}}"#),
        ] {
            assert_eq!(found(&form.replace("LONG", &long))[0], None, "{form}");
        }
    }

    #[test]
    fn an_item_is_found_by_its_token() {
        let long = "x".repeat(1000);
        for form in [
            r#"{"jsonrpc":"2.0","method":"$/progress","params":{"token":5,"value":"LONG"}}"#,
            r#"{"method":"$/progress","params":{"value":["LONG"] ,"token": 5} }"#,
        ] {
            let [_, method, token] = found(&form.replace("LONG", &long));
            let expected = (Some(r#""$/progress""#), Some("5"));
            assert_eq!((method.as_deref(), token.as_deref()), expected, "{form}");
        }
        let [_, method, token] =
            found(&format!(r#"{{"params":{{"token":5,"value":"{long}"}},"method":"$/progress"}}"#));
        assert_eq!((method.as_deref(), token), (Some(r#""$/progress""#), Some("5".to_owned())));
    }
}
