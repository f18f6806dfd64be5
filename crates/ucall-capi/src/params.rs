//! The params of one call, found by name, by position or by pointer.
//!
//! A call brings along where each of its params stands: the last of two equal names counts, so a
//! look that stops at the first would be wrong, and looks that each walk all of the text would cost
//! more with every param.

use ucall_proto::json::{Kind, Member, Reader, note_members};

use crate::arena::Arena;
use crate::pointer::Names;

/// Memory for more members than this is not kept for the next call.
const MEMBERS_KEPT_MAX: usize = 1024;

/// Which of the params is meant.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which<'a> {
    /// A member's name; with a slash in front, a pointer.
    Named(&'a [u8]),
    /// An item's place in the array.
    At(usize),
}

/// The params of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params<'a> {
    /// Empty when there are none.
    pub(crate) text: &'a [u8],
    /// Where their members stand, if that was noted when the call came.
    pub(crate) members: Option<&'a [Member]>,
}

/// Memory that one worker uses for every call in turn, or that one deferred call owns.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Those of params that did not bring theirs along.
    members: Vec<Member>,
    names: Names,
    arena: Arena,
}

impl Memory {
    /// Forgets the params of the call before.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if !self.members.is_empty() {
            self.members.clear();
            self.members.shrink_to(MEMBERS_KEPT_MAX);
        }
        self.arena.reset();
    }

    /// The text of one of the params, without white space around it.
    #[inline(always)]
    pub(crate) fn find<'a>(&mut self, params: Params<'a>, which: Which<'_>) -> Option<&'a [u8]> {
        let Self { members, names, .. } = self;
        let members = match params.members {
            Some(members) => members,
            None => noted(params.text, members),
        };
        match which {
            Which::Named([b'/', ..]) => follow(members, params.text, which, names),
            Which::Named(name) => named(members, params.text, name, &mut names.key),
            Which::At(index) => at(members, params.text, index),
        }
    }

    /// The bytes of a string. Escaped ones stay in the arena until the next call.
    #[inline]
    pub(crate) fn string<'a>(&'a mut self, value: &'a [u8]) -> Option<&'a [u8]> {
        let inside = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if !inside.contains(&b'\\') {
            return Some(inside);
        }
        Some(self.arena.unescape(Reader::new(value).string()))
    }
}

/// The members of params that the call did not bring along, or that were too many to be noted when
/// it came: noted at the first look.
#[cold]
#[inline(never)]
fn noted<'m>(text: &[u8], members: &'m mut Vec<Member>) -> &'m [Member] {
    if members.is_empty() {
        note_members(text, members);
    }
    members
}

/// An item of an array.
#[inline]
fn at<'a>(members: &[Member], text: &'a [u8], index: usize) -> Option<&'a [u8]> {
    match text.first() {
        Some(b'[') => members.get(index).map(|item| item.value(text)),
        _ => None,
    }
}

#[cold]
#[inline(never)]
fn follow<'a>(
    members: &[Member],
    text: &'a [u8],
    which: Which<'_>,
    names: &mut Names,
) -> Option<&'a [u8]> {
    let Which::Named(pointer) = which else { return None };
    let rest = names.first_token(pointer)?;
    let value = match text.first() {
        Some(b'[') => at(members, text, names.token_index()?),
        _ => {
            let Names { token, key } = names;
            named(members, text, token, key)
        }
    };
    names.follow(value?, rest)
}

/// The last member of that name. Items of an array have the name that no key has: none.
#[inline(always)]
fn named<'a>(
    members: &[Member],
    text: &'a [u8],
    name: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<&'a [u8]> {
    for member in members.iter().rev() {
        if member.is_named(name, text, scratch) {
            return Some(member.value(text));
        }
    }
    None
}

/// `true` or `false`, if it is one.
#[inline]
pub(crate) fn boolean(value: &[u8]) -> Option<bool> {
    match value {
        b"true" => Some(true),
        b"false" => Some(false),
        _ => None,
    }
}

/// An integer that fits, written without fraction and exponent.
#[inline]
pub(crate) fn integer(value: &[u8]) -> Option<i64> {
    /// So many digits always fit.
    const SHORT: usize = 18;
    let (digits, sign) = match value {
        [b'-', digits @ ..] => (digits, -1),
        digits => (digits, 1),
    };
    if digits.is_empty() || digits.len() > SHORT {
        return long_integer(value);
    }
    let mut sum = 0;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        sum = sum * 10 + i64::from(digit);
    }
    Some(sign * sum)
}

#[cold]
#[inline(never)]
fn long_integer(value: &[u8]) -> Option<i64> {
    let mut reader = Reader::new(value);
    if reader.kind() != Kind::Number {
        return None;
    }
    reader.number().as_i64()
}

/// The double nearest to a number, if there is one.
#[inline]
pub(crate) fn double(value: &[u8]) -> Option<f64> {
    let mut reader = Reader::new(value);
    if reader.kind() != Kind::Number {
        return None;
    }
    Some(reader.number().as_f64()).filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, which: Which<'_>) -> Option<String> {
        let params = Params { text: text.as_bytes(), members: None };
        let mut memory = Memory::default();
        let found = memory.find(params, which);
        found.map(|value| String::from_utf8(value.to_vec()).unwrap())
    }

    #[test]
    fn by_name_the_last_of_two_counts_however_it_is_written() {
        let text = r#"{ "a" : 1 , "b\u0021":[ 2 ] , "a":"x" , "":null, "\u0061":true }"#;
        let named = |name: &'static str| found(text, Which::Named(name.as_bytes()));
        assert_eq!(named("a").as_deref(), Some("true"));
        assert_eq!(named("b!").as_deref(), Some("[ 2 ]"));
        assert_eq!(named("").as_deref(), Some("null"));
        assert_eq!((named("b"), named("b\\u0021"), named("b!!")), (None, None, None));
        assert_eq!(found(text, Which::At(0)), None);
    }

    #[test]
    fn by_position_and_by_pointer() {
        let text = r#"[1,{"a/b":[true,{"c":"d"}]}]"#;
        assert_eq!(found(text, Which::At(0)).as_deref(), Some("1"));
        assert_eq!(found(text, Which::At(2)), None);
        let pointer = |pointer: &'static str| found(text, Which::Named(pointer.as_bytes()));
        assert_eq!(pointer("/1/a~1b/1/c").as_deref(), Some("\"d\""));
        assert_eq!(pointer("/0").as_deref(), Some("1"));
        assert_eq!(
            (pointer("/2"), pointer("/0/0"), pointer("/1/c"), pointer("/")),
            (None, None, None, None)
        );
        assert_eq!(found(text, Which::Named(b"0")), None);
    }

    #[test]
    fn absent_params_hold_nothing() {
        for which in [Which::At(0), Which::Named(b"a"), Which::Named(b"/a"), Which::Named(b"")] {
            assert_eq!(found("", which), None);
            assert_eq!(found("[]", which), None);
            assert_eq!(found("{}", which), None);
        }
    }

    #[test]
    fn values_are_only_what_they_are() {
        assert_eq!(
            (boolean(b"true"), boolean(b"1"), boolean(b"\"true\"")),
            (Some(true), None, None)
        );
        assert_eq!(integer(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!((integer(b"-0"), integer(b"-12")), (Some(0), Some(-12)));
        assert_eq!(integer(b"999999999999999999"), Some(999_999_999_999_999_999));
        assert_eq!(integer(b"1000000000000000000"), Some(1_000_000_000_000_000_000));
        for none in ["9223372036854775808", "1.0", "1e3", "true", "\"1\"", "null", "[1]", ""] {
            assert_eq!(integer(none.as_bytes()), None, "{none}");
        }
        assert_eq!((double(b"3"), double(b"-2.5e-1")), (Some(3.0), Some(-0.25)));
        assert_eq!((double(b"1e999"), double(b"\"1\""), double(b"null")), (None, None, None));
    }

    #[test]
    fn a_huge_list_is_not_kept() {
        let mut memory = Memory::default();
        let text = format!("[{}0]", "0,".repeat(100_000));
        let params = Params { text: text.as_bytes(), members: None };
        assert_eq!(memory.find(params, Which::At(100_000)), Some(&b"0"[..]));
        memory.reset();
        assert!(memory.members.capacity() <= MEMBERS_KEPT_MAX);
    }
}
