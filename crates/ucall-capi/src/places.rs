//! Where the members of an object, or the items of an array, stand in their text.
//!
//! The text was proven to be JSON and begins with its bracket, so that few bytes tell its parts:
//! this walk looks once at each byte of short values, and leaves long strings and what is nested
//! to [`Reader`].

use ucall_proto::json::Reader;

/// Strings up to this length are walked byte by byte.
const SHORT: usize = 16;

/// Where a member or an item stands, in bytes from the front of the text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Behind the opening quote; 0 for an item.
    key: u32,
    key_len: u32,
    key_is_escaped: bool,
    value: u32,
    value_len: u32,
}

impl Place {
    /// The text of the value.
    #[inline]
    pub(crate) fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        part(text, self.value, self.value_len)
    }

    /// Whether it is a member of that name. `scratch` is for keys with escapes.
    #[inline]
    pub(crate) fn is_named(&self, name: &[u8], text: &[u8], scratch: &mut Vec<u8>) -> bool {
        if self.key_is_escaped {
            return self.is_named_escaped(name, text, scratch);
        }
        // A key stands behind a quote, so it is never at 0.
        self.key != 0 && part(text, self.key, self.key_len) == name
    }

    #[cold]
    fn is_named_escaped(&self, name: &[u8], text: &[u8], scratch: &mut Vec<u8>) -> bool {
        // Read again from its opening quote on.
        let quoted = text.get(self.key as usize - 1..).unwrap_or_default();
        scratch.clear();
        Reader::new(quoted).string().unescape_into(scratch);
        scratch == name
    }
}

#[inline]
fn part(text: &[u8], start: u32, len: u32) -> &[u8] {
    text.get(start as usize..start as usize + len as usize).unwrap_or_default()
}

/// Appends the members of the object that `text` is.
#[inline]
pub(crate) fn members(text: &[u8], places: &mut Vec<Place>) {
    let mut walk = Walk { text, position: 1 };
    while let Some(b'"') = walk.next_part() {
        let (key, key_end, key_is_escaped) = walk.string();
        walk.next_part();
        let (value, value_end) = walk.value();
        places.push(place((key, key_end), key_is_escaped, (value, value_end)));
    }
}

/// Appends the items of the array that `text` is.
#[inline]
pub(crate) fn items(text: &[u8], places: &mut Vec<Place>) {
    let mut walk = Walk { text, position: 1 };
    while !matches!(walk.next_part(), None | Some(b']')) {
        places.push(place((0, 0), false, walk.value()));
    }
}

#[inline]
fn place(key: (usize, usize), key_is_escaped: bool, value: (usize, usize)) -> Place {
    // Documents are smaller than 4 GiB, which `Limits` promises.
    Place {
        key: key.0 as u32,
        key_len: (key.1 - key.0) as u32,
        key_is_escaped,
        value: value.0 as u32,
        value_len: (value.1 - value.0) as u32,
    }
}

struct Walk<'a> {
    text: &'a [u8],
    position: usize,
}

impl Walk<'_> {
    /// Steps to the next byte that is neither white space nor a separator, which stays unread.
    #[inline]
    fn next_part(&mut self) -> Option<u8> {
        loop {
            match *self.text.get(self.position)? {
                b' ' | b'\t' | b'\n' | b'\r' | b',' | b':' => self.position += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Steps over a string; returns where its inside begins and ends, and whether it has escapes.
    #[inline]
    fn string(&mut self) -> (usize, usize, bool) {
        let start = self.position + 1;
        let inside = self.text.get(start..).unwrap_or_default();
        for (len, byte) in inside.iter().take(SHORT).enumerate() {
            match byte {
                b'"' => {
                    self.position = start + len + 1;
                    return (start, start + len, false);
                }
                b'\\' => break,
                _ => {}
            }
        }
        self.long_string(start)
    }

    fn long_string(&mut self, start: usize) -> (usize, usize, bool) {
        let inside = Reader::new(self.text.get(start - 1..).unwrap_or_default()).string();
        let end = start + inside.raw().len();
        self.position = end + 1;
        (start, end, inside.is_escaped())
    }

    /// Steps over a value; returns where it begins and ends.
    #[inline]
    fn value(&mut self) -> (usize, usize) {
        let start = self.position;
        match self.text.get(start) {
            Some(b'"') => {
                self.string();
            }
            Some(b'{' | b'[') => {
                let rest = self.text.get(start..).unwrap_or_default();
                self.position += Reader::new(rest).skip().len();
            }
            _ => self.plain(),
        }
        (start, self.position)
    }

    /// Steps over a number or a word.
    #[inline]
    fn plain(&mut self) {
        let rest = self.text.get(self.position..).unwrap_or_default();
        // Both closing brackets are one when this bit is set.
        let is_end = |&byte: &u8| byte <= b' ' || byte == b',' || byte | 0x20 == b'}';
        self.position += rest.iter().position(is_end).unwrap_or(rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(text: &str) -> Vec<&str> {
        let mut places = Vec::new();
        match text.as_bytes()[0] {
            b'{' => members(text.as_bytes(), &mut places),
            _ => items(text.as_bytes(), &mut places),
        }
        let value = |place: &Place| std::str::from_utf8(place.value(text.as_bytes())).unwrap();
        places.iter().map(value).collect()
    }

    #[test]
    fn every_kind_of_value_ends_where_it_ends() {
        let parts =
            ["1", "-2.5e+3", "true", "null", r#""""#, r#""a,b]}""#, "[1,[2]]", "{\"a\":{}}", "[]"];
        let long = format!("\"{}\"", "x\\\"".repeat(50));
        for len in SHORT - 2..SHORT + 3 {
            let around = format!("\"{}\"", "y".repeat(len));
            let mut all = parts.to_vec();
            all.extend([long.as_str(), around.as_str()]);
            assert_eq!(values(&format!("[{}]", all.join(","))), all);
            assert_eq!(values(&format!("[ {}\n]", all.join(" ,\t"))), all);
            let members: Vec<String> = all.iter().map(|part| format!("{long} : {part}")).collect();
            assert_eq!(values(&format!("{{ {} }}", members.join(" , "))), all);
        }
        assert!(values("[]").is_empty() && values("{ }").is_empty() && values("[ ]").is_empty());
    }
}
