//! `ucall_value_t`: a value of the params, which is read in place.
//!
//! A value is a slice of the JSON text. An iteration keeps no state but the item that it has
//! returned last: the next one begins after it.

use std::ffi::c_char;

use ucall_proto::json::{Reader, Text, ValueKind};

use crate::boundary::bytes;
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::items;

/// `ucall_type_t`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueType {
    None = 0,
    Null = 1,
    Bool = 2,
    Integer = 3,
    Number = 4,
    String = 5,
    Array = 6,
    Object = 7,
}

impl ValueType {
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut reader = Reader::new(text);
        match reader.kind() {
            ValueKind::Null if text.is_empty() => Self::None,
            ValueKind::Null => Self::Null,
            ValueKind::Bool => Self::Bool,
            ValueKind::Number if reader.number().is_integer => Self::Integer,
            ValueKind::Number => Self::Number,
            ValueKind::String => Self::String,
            ValueKind::Array => Self::Array,
            ValueKind::Object => Self::Object,
        }
    }
}

/// `ucall_value_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Value {
    call: CallHandle,
    json: *const c_char,
    length: usize,
}

impl Value {
    pub(crate) fn new(call: CallHandle, text: &[u8]) -> Self {
        Self { call, json: text.as_ptr().cast(), length: text.len() }
    }

    /// The text; empty for a value of zeros.
    ///
    /// # Safety
    /// The value is one of zeros, or came from the library and its call is alive.
    pub(crate) unsafe fn text<'a>(&self) -> &'a [u8] {
        // SAFETY: our caller says that it is readable.
        unsafe { bytes(self.json, self.length) }.unwrap_or_default()
    }

    /// The call, whose buffers hold unescaped strings.
    ///
    /// # Safety
    /// As for [`Value::text`], and this thread alone uses the call.
    pub(crate) unsafe fn call<'a>(&self) -> Option<&'a mut Call<'static, 'static>> {
        // SAFETY: our caller says that it is NULL or alive, and ours alone.
        unsafe { self.call.as_mut() }
    }

    /// The item or member of this container after `previous`, which is one of zeros at first.
    ///
    /// # Safety
    /// As for [`Value::text`].
    pub(crate) unsafe fn next<'a>(&self, previous: &Self) -> Option<(Option<Text<'a>>, Self)> {
        // SAFETY: passed on to our caller.
        let container = unsafe { self.text() };
        let position = match previous.json.is_null() {
            true => 0,
            false => previous.json.addr().checked_sub(self.json.addr())? + previous.length,
        };
        let (key, text) = items::next(container, position)?;
        Some((key, Self::new(self.call, text)))
    }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    const ZEROS: Value = Value { call: CallHandle::NULL, json: ptr::null(), length: 0 };

    fn items(container: &str) -> Vec<(Option<String>, String)> {
        let container = Value::new(CallHandle::NULL, container.as_bytes());
        let mut found = Vec::new();
        let mut item = ZEROS;
        // SAFETY: the text lives throughout the test.
        while let Some((key, next)) = unsafe { container.next(&item) } {
            let key = key.map(|key| String::from_utf8_lossy(&key.unescaped()).into_owned());
            // SAFETY: as above.
            found.push((key, String::from_utf8_lossy(unsafe { next.text() }).into_owned()));
            item = next;
        }
        // SAFETY: as above.
        assert_eq!(items::count(unsafe { container.text() }), found.len());
        found
    }

    #[test]
    fn items_come_in_order() {
        let expect = |texts: &[&str]| -> Vec<_> {
            texts.iter().map(|text| (None, (*text).to_string())).collect()
        };
        assert_eq!(
            items(r#"[1 , "a,]\"" ,[ 2,3 ], {"b":[]} ]"#),
            expect(&["1", r#""a,]\"""#, "[ 2,3 ]", r#"{"b":[]}"#])
        );
        assert_eq!((items("[]"), items("[ ]"), items("{ }")), (vec![], vec![], vec![]));
        assert_eq!((items("7"), items("null"), items("\"[1]\""), items("")), Default::default());
    }

    #[test]
    fn members_come_with_their_keys() {
        let member = |key: &str, value: &str| (Some(key.to_string()), value.to_string());
        assert_eq!(
            items(r#"{ "a" : 1,"":null , "b\u0021":{"c":2},"a":[] }"#),
            [member("a", "1"), member("", "null"), member("b!", r#"{"c":2}"#), member("a", "[]")]
        );
    }

    #[test]
    fn an_item_of_another_container_has_no_next() {
        let text = "[1,2][3,4]";
        let part = |range: std::ops::Range<usize>| {
            Value::new(CallHandle::NULL, text.as_bytes().get(range).unwrap())
        };
        let (first, second) = (part(0..5), part(5..10));
        // SAFETY: the text lives throughout the test.
        unsafe {
            let (_, of_first) = first.next(&ZEROS).unwrap();
            let (_, of_second) = second.next(&ZEROS).unwrap();
            assert!(first.next(&of_second).is_none() && second.next(&of_first).is_none());
        }
    }

    #[test]
    fn each_kind_has_its_type() {
        let types = ["", "null", "true", "-12", "1.5", "1e3", "\"\"", "[1]", "{}"]
            .map(|text| ValueType::of(text.as_bytes()) as u32);
        assert_eq!(types, [0, 1, 2, 3, 4, 4, 5, 6, 7]);
    }
}
