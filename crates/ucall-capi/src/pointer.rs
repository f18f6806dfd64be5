//! JSON pointers (RFC 6901) into valid JSON.

use ucall_proto::json::{Reader, ValueKind};

/// Buffers for names while they are compared.
#[derive(Debug, Default)]
pub(crate) struct NameBuffers {
    /// The last token of a pointer, decoded.
    pub(crate) token: Vec<u8>,
    /// An unescaped key.
    pub(crate) key: Vec<u8>,
}

impl NameBuffers {
    /// Splits off and decodes the first token of a pointer, which must begin with a slash. `None`
    /// if the pointer breaks the grammar (§3).
    pub(crate) fn first_token<'p>(&mut self, pointer: &'p [u8]) -> Option<&'p [u8]> {
        let rest = pointer.strip_prefix(b"/")?;
        let end = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        let (token, rest) = rest.split_at(end);
        self.token.clear();
        let mut bytes = token.iter();
        while let Some(&byte) = bytes.next() {
            self.token.push(match byte {
                b'~' => match bytes.next()? {
                    b'0' => b'~',
                    b'1' => b'/',
                    _ => return None,
                },
                byte => byte,
            });
        }
        Some(rest)
    }

    /// The token as the index of an array (§4): digits without a leading zero.
    pub(crate) fn token_index(&self) -> Option<usize> {
        match self.token.as_slice() {
            [b'0'] => Some(0),
            [b'1'..=b'9', ..] if self.token.iter().all(u8::is_ascii_digit) => {
                std::str::from_utf8(&self.token).ok()?.parse().ok()
            }
            _ => None,
        }
    }

    /// Follows the rest of a pointer into `value`, and returns the text of the value it leads to.
    pub(crate) fn evaluate<'v>(&mut self, value: &'v [u8], pointer: &[u8]) -> Option<&'v [u8]> {
        let (mut value, mut pointer) = (value, pointer);
        while !pointer.is_empty() {
            pointer = self.first_token(pointer)?;
            value = self.step(value)?;
        }
        Some(value)
    }

    fn step<'v>(&mut self, value: &'v [u8]) -> Option<&'v [u8]> {
        let mut reader = Reader::new(value);
        match reader.kind() {
            ValueKind::Object => self.member(reader),
            ValueKind::Array => item(reader, self.token_index()?),
            ValueKind::Null | ValueKind::Bool | ValueKind::Number | ValueKind::String => None,
        }
    }

    /// The last member of the token's name.
    fn member<'v>(&mut self, mut reader: Reader<'v>) -> Option<&'v [u8]> {
        let mut found = None;
        reader.enter();
        while let Some(key) = reader.next_key() {
            let value = reader.skip();
            let is_named = if key.is_escaped() {
                self.key.clear();
                key.unescape_into(&mut self.key);
                self.key == self.token
            } else {
                key.raw() == self.token
            };
            if is_named {
                found = Some(value);
            }
        }
        found
    }
}

fn item(mut reader: Reader<'_>, index: usize) -> Option<&[u8]> {
    reader.enter();
    for _ in 0..index {
        if !reader.next_item() {
            return None;
        }
        reader.skip();
    }
    reader.next_item().then(|| reader.skip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_rfc() {
        let document = br#"{"foo":["bar","baz"],"":0,"a/b":1,"c%d":2,"e^f":3,
            "g|h":4,"i\\j":5,"k\"l":6," ":7,"m~n":8}"#;
        for (pointer, expected) in [
            ("/foo", r#"["bar","baz"]"#),
            ("/foo/0", r#""bar""#),
            ("/", "0"),
            ("/a~1b", "1"),
            ("/c%d", "2"),
            ("/e^f", "3"),
            ("/g|h", "4"),
            ("/i\\j", "5"),
            ("/k\"l", "6"),
            ("/ ", "7"),
            ("/m~0n", "8"),
        ] {
            let found = NameBuffers::default().evaluate(document, pointer.as_bytes());
            assert_eq!(found, Some(expected.as_bytes()), "{pointer}");
        }
    }

    #[test]
    fn unresolvable_pointers_find_nothing() {
        let document = br#"{"a":[1,[2]],"a":[3,{"b":null}],"m~n":1}"#;
        for pointer in
            ["/b", "/a/2", "/a/-", "/a/00", "/a/01", "/a/x", "/a/0/0", "/m~n", "/m~2n", "/a~", "a"]
        {
            assert_eq!(
                NameBuffers::default().evaluate(document, pointer.as_bytes()),
                None,
                "{pointer}"
            );
        }
        let huge = "/a/99999999999999999999999";
        assert_eq!(NameBuffers::default().evaluate(document, huge.as_bytes()), None);
        assert_eq!(NameBuffers::default().evaluate(document, b"/a/1/b"), Some(&b"null"[..]));
    }
}
