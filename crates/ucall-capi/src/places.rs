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
        self.key != 0 && is_same(part(text, self.key, self.key_len), name)
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

/// Whether two names are the same. Most are too short to be worth a call.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    match one.len() {
        len if len != other.len() => false,
        0..=SHORT => one.iter().zip(other).all(|(one, other)| one == other),
        _ => one == other,
    }
}

#[inline]
fn part(text: &[u8], start: u32, len: u32) -> &[u8] {
    text.get(start as usize..start as usize + len as usize).unwrap_or_default()
}

/// Appends the members of the object that `text` is.
#[inline(always)]
pub(crate) fn members(text: &[u8], places: &mut Vec<Place>) {
    let mut position = next_part(text, 1);
    while byte(text, position) == b'"' {
        let key = position + 1;
        let (key_end, key_is_escaped) = string_end(text, key);
        let value = next_part(text, key_end + 1);
        let value_end = value_end(text, value);
        push(places, (key, key_end), key_is_escaped, (value, value_end));
        position = next_part(text, value_end);
    }
}

/// Appends the items of the array that `text` is.
#[inline(always)]
pub(crate) fn items(text: &[u8], places: &mut Vec<Place>) {
    let mut position = next_part(text, 1);
    while !matches!(byte(text, position), 0 | b']') {
        let end = value_end(text, position);
        if end == position {
            // No JSON, and no way on.
            break;
        }
        push(places, (0, 0), false, (position, end));
        position = next_part(text, end);
    }
}

#[inline(always)]
fn push(places: &mut Vec<Place>, key: (usize, usize), key_is_escaped: bool, value: (usize, usize)) {
    // Documents are smaller than 4 GiB, which `Limits` promises.
    places.push(Place {
        key: key.0 as u32,
        key_len: (key.1 - key.0) as u32,
        key_is_escaped,
        value: value.0 as u32,
        value_len: (value.1 - value.0) as u32,
    });
}

/// The byte there; 0, which no JSON has, behind the end.
#[inline(always)]
fn byte(text: &[u8], position: usize) -> u8 {
    text.get(position).copied().unwrap_or(0)
}

/// Where the next byte is that is neither white space nor a separator.
#[inline(always)]
fn next_part(text: &[u8], mut position: usize) -> usize {
    while matches!(byte(text, position), b' ' | b'\t' | b'\n' | b'\r' | b',' | b':') {
        position += 1;
    }
    position
}

/// Where the closing quote is of a string whose inside begins there, and whether it has escapes.
#[inline(always)]
fn string_end(text: &[u8], start: usize) -> (usize, bool) {
    let mut end = start;
    while end < start + SHORT {
        match byte(text, end) {
            b'"' => return (end, false),
            b'\\' => break,
            _ => end += 1,
        }
    }
    long_string_end(text, start)
}

#[inline(never)]
fn long_string_end(text: &[u8], start: usize) -> (usize, bool) {
    let inside = Reader::new(text.get(start - 1..).unwrap_or_default()).string();
    (start + inside.raw().len(), inside.is_escaped())
}

/// Where a value ends that begins there.
#[inline(always)]
fn value_end(text: &[u8], start: usize) -> usize {
    match byte(text, start) {
        b'"' => string_end(text, start + 1).0 + 1,
        b'{' | b'[' => nested_end(text, start),
        _ => plain_end(text, start),
    }
}

#[inline(never)]
fn nested_end(text: &[u8], start: usize) -> usize {
    start + Reader::new(text.get(start..).unwrap_or_default()).skip().len()
}

/// Where a number or a word ends.
#[inline(always)]
fn plain_end(text: &[u8], mut position: usize) -> usize {
    // Both closing brackets are one when this bit is set; the end of the text is less than a space.
    let goes_on = |byte: u8| byte > b' ' && byte != b',' && byte | 0x20 != b'}';
    while goes_on(byte(text, position)) {
        position += 1;
    }
    position
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
