//! JSON text to values and back, against `serde_json`.

use serde_json::Value;
use ucall_proto::json::{
    JsonError, Reader, ValueKind, validate, write_f64, write_i64, write_string,
};

use crate::reference;

const NESTING_MAX: usize = 128;

/// Both parsers refuse a text, or both read the same value, and that value, written, reads as the
/// same value again.
///
/// # Panics
/// If they do not.
pub fn run(input: &[u8]) {
    if reference::is_unsupported(input) {
        return;
    }
    let expected = reference::read(input);
    match validate(input, NESTING_MAX) {
        Ok(()) => {
            let mut reader = Reader::new(input);
            let value = read(&mut reader);
            assert_eq!(Some(&value), expected.as_ref(), "{}", input.escape_ascii());
            assert_eq!(Reader::new(input).skip(), trim(input));
            check_written(&value);
        }
        Err(JsonError::TooDeep) => assert!(reference::nesting(input) > NESTING_MAX),
        Err(_) => assert_eq!(expected, None, "{}", input.escape_ascii()),
    }
    // Reading unvalidated text returns wrong values, but ends.
    let _ = Reader::new(input).skip();
}

/// Builds a tree as the languages above do.
fn read(reader: &mut Reader<'_>) -> Value {
    match reader.kind() {
        ValueKind::Null => {
            reader.null();
            Value::Null
        }
        ValueKind::Bool => Value::Bool(reader.boolean()),
        ValueKind::Number => {
            let number = reader.number();
            let text = std::str::from_utf8(number.text).expect("digits and signs");
            check_number(text, number.as_i64(), number.as_f64());
            reference::read(number.text).expect("a number")
        }
        ValueKind::String => Value::String(text(&reader.string())),
        ValueKind::Array => {
            let mut items = Vec::new();
            reader.enter();
            while reader.next_item() {
                items.push(read(reader));
            }
            Value::Array(items)
        }
        ValueKind::Object => {
            let mut members = serde_json::Map::new();
            reader.enter();
            while let Some(key) = reader.next_key() {
                members.insert(text(&key), read(reader));
            }
            Value::Object(members)
        }
    }
}

fn text(text: &ucall_proto::json::Text<'_>) -> String {
    String::from_utf8(text.unescaped().into_owned()).expect("proven to be UTF-8")
}

fn check_number(text: &str, integer: Option<i64>, double: f64) {
    let is_integer = !text.contains(['.', 'e', 'E']);
    assert_eq!(integer, if is_integer { text.parse().ok() } else { None }, "{text}");
    assert_eq!(Ok(double.to_bits()), text.parse().map(f64::to_bits), "{text}");
    let mut out = Vec::new();
    assert_eq!(write_f64(&mut out, double), double.is_finite());
    if double.is_finite() {
        assert_eq!(validate(&out, 0), Ok(()));
        assert_eq!(Reader::new(&out).number().as_f64().to_bits(), double.to_bits());
    }
}

fn check_written(value: &Value) {
    let mut out = Vec::new();
    write(&mut out, value);
    assert_eq!(validate(&out, NESTING_MAX), Ok(()));
    assert_eq!(reference::read(&out).as_ref(), Some(value));
}

fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(value) => out.extend_from_slice(value.to_string().as_bytes()),
        Value::Number(number) => match number.as_i64() {
            // Minus zero is a double.
            Some(value) if number.as_str() == value.to_string() => write_i64(out, value),
            _ => out.extend_from_slice(number.as_str().as_bytes()),
        },
        Value::String(value) => write_string(out, value),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                out.push(if index == 0 { b'[' } else { b',' });
                write(out, item);
            }
            out.extend_from_slice(if items.is_empty() { b"[]" } else { b"]" });
        }
        Value::Object(members) => {
            for (index, (key, value)) in members.iter().enumerate() {
                out.push(if index == 0 { b'{' } else { b',' });
                write_string(out, key);
                out.push(b':');
                write(out, value);
            }
            out.extend_from_slice(if members.is_empty() { b"{}" } else { b"}" });
        }
    }
}

fn trim(text: &[u8]) -> &[u8] {
    // Other white space was refused.
    text.trim_ascii()
}
