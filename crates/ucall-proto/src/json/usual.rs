//! Steps over what most requests are made of, written the way that most write it.
//!
//! That is short plain strings, natural numbers, and objects of both without white space. All work
//! on what is left of a text, so that no place in it has to be compared with its length again, and
//! all but the last step fail early: whatever is written otherwise is for the [`Scanner`] to tell.
//!
//! [`Scanner`]: super::scan::Scanner

use super::members::Member;

/// Strings and numbers longer than this are not usual.
const LEN_MAX: usize = 20;
/// So many bytes are looked at without a look at the text's end.
const CHUNK: usize = 8;

/// Which bytes are ASCII, and stand for themselves inside a string.
const IS_PLAIN: [bool; 256] = {
    let mut is_plain = [false; 256];
    let mut byte = b' ' as usize;
    while byte < 0x80 {
        is_plain[byte] = byte as u8 != b'"' && byte as u8 != b'\\';
        byte += 1;
    }
    is_plain
};

/// The inside of a short plain string, from behind its opening quote on, and what follows it.
#[inline(always)]
pub(crate) fn string(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let (inside, rest) = plain(text)?;
    Some((inside, rest.strip_prefix(b"\"")?))
}

#[inline(always)]
fn plain(text: &[u8]) -> Option<(&[u8], &[u8])> {
    text.split_at_checked(count_while(text, |byte| IS_PLAIN[usize::from(byte)]))
}

/// A natural number, and what follows it.
///
/// Whether it ends there is for the caller to tell: a comma ends it, a point or a digit does not.
#[inline(always)]
pub(crate) fn number(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = count_while(text, |byte| byte.is_ascii_digit());
    match text.split_at_checked(len)? {
        ([] | [b'0', _, ..], _) => None,
        split => Some(split),
    }
}

/// How a member or an item is followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// By another one.
    More,
    /// By the end of what it is in.
    End,
}

/// A member that is a short plain key and a natural number, and where it ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct UsualMember<'a> {
    pub(super) key_len: usize,
    pub(super) value_len: usize,
    pub(super) next: Next,
    /// Behind the comma or brace that follows the member.
    pub(super) rest: &'a [u8],
}

impl UsualMember<'_> {
    /// Where its parts stand, when it stands `at` bytes from the front.
    #[inline(always)]
    pub(super) fn noted(&self, at: usize) -> Member {
        let value = at + self.key_len + 3;
        Member::new(at + 1, self.key_len, value, value + self.value_len)
    }
}

/// A member at the front of `text`.
#[inline(always)]
pub(super) fn member(text: &[u8]) -> Option<UsualMember<'_>> {
    let (key, rest) = plain(text.strip_prefix(b"\"")?)?;
    let (value, rest) = number(rest.strip_prefix(b"\":")?)?;
    let (&byte, rest) = rest.split_first()?;
    let next = match byte {
        b',' => Next::More,
        b'}' => Next::End,
        _ => return None,
    };
    Some(UsualMember { key_len: key.len(), value_len: value.len(), next, rest })
}

/// An object of such members.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualObject {
    /// Of its text.
    pub(crate) len: u32,
    /// How many members it has.
    pub(crate) members: u32,
}

/// The object at the front of `text`, if there are places to note all of its members.
///
/// By itself, so that all of its loop is in registers, in which what is returned is, too.
#[inline(never)]
pub(crate) fn object(text: &[u8], places: &mut [Member]) -> Option<UsualObject> {
    let mut rest = text.strip_prefix(b"{")?;
    for (index, place) in places.iter_mut().enumerate() {
        let member = member(rest)?;
        *place = member.noted(text.len() - rest.len());
        rest = member.rest;
        if member.next == Next::End {
            let len = text.len() - rest.len();
            return Some(UsualObject { len: len as u32, members: index as u32 + 1 });
        }
    }
    None
}

/// How many bytes at the front are such, as far as anything usual goes.
#[inline(always)]
fn count_while(text: &[u8], is_such: impl Fn(u8) -> bool) -> usize {
    let Some(chunk) = text.first_chunk::<CHUNK>() else {
        return text.iter().position(|&byte| !is_such(byte)).unwrap_or(text.len());
    };
    for (index, &byte) in chunk.iter().enumerate() {
        if !is_such(byte) {
            return index;
        }
    }
    let more = text.iter().skip(CHUNK).take(LEN_MAX - CHUNK);
    CHUNK + more.take_while(|&&byte| is_such(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_where_they_end_up_to_the_longest() {
        for len in 0..=LEN_MAX + 1 {
            for behind in ["", "x", " and something longer"] {
                let (name, digits) = ("n".repeat(len), "7".repeat(len));
                let text = format!("{name}\"{behind}");
                let split = (name.as_bytes(), behind.as_bytes());
                assert_eq!(string(text.as_bytes()), (len <= LEN_MAX).then_some(split));
                let text = format!("{digits},{behind}");
                let count = number(text.as_bytes()).map_or(0, |(number, _)| number.len());
                assert_eq!(count, len.min(LEN_MAX));
            }
        }
    }

    #[test]
    fn what_is_not_plain_or_no_natural_number_is_not_usual() {
        for text in ["a", "a\\\"", "a\u{1}\"", "\u{e9}\"", "1234567\n\"", "\u{7f}"] {
            assert_eq!(string(text.as_bytes()), None, "{text:?}");
        }
        for text in ["", "-1", "01,", "00000000,", ".5", "a", "\"1\""] {
            assert_eq!(number(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(number(b"0,"), Some((&b"0"[..], &b","[..])));
    }

    #[test]
    fn objects_are_stepped_over_while_there_are_places() {
        let text = br#"{"a":1,"b":22},"#;
        let mut places = [Member::NOTHING; 2];
        let object = object(text, &mut places).unwrap();
        assert_eq!((object.len, object.members), (14, 2));
        let values: Vec<&[u8]> = places.iter().map(|place| place.value(text)).collect();
        assert_eq!(values, [&b"1"[..], b"22"]);
        assert!(super::object(text, &mut places[..1]).is_none());
        for other in ["", "{", "{}", r#"{"a":1"#, r#"{"a":1 }"#, r#"{"a":1,}"#, r#"{"a":"b"}"#] {
            assert!(super::object(other.as_bytes(), &mut places).is_none(), "{other}");
        }
    }
}
