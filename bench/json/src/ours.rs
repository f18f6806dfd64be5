//! Reading and writing with `ucall_proto::json`: validate the text, then read it, as handlers do.

use ucall_proto::json::{Reader, ValueKind, validate, write_f64, write_i64, write_string};

use crate::documents::{Call, Params};

const NESTING_MAX: usize = 128;

fn integer(reader: &mut Reader) -> Option<i64> {
    (reader.kind() == ValueKind::Number).then(|| reader.number().as_i64()).flatten()
}

fn owned(reader: &mut Reader) -> Option<String> {
    if reader.kind() != ValueKind::String {
        return None;
    }
    String::from_utf8(reader.string().unescaped().into_owned()).ok()
}

/// Reads a call, its members in any order.
pub fn call(text: &[u8]) -> Option<Call> {
    validate(text, NESTING_MAX).ok()?;
    let mut reader = Reader::new(text);
    let (mut jsonrpc, mut method, mut params, mut id) = (None, None, None, None);
    reader.enter();
    while let Some(key) = reader.next_key() {
        match key.raw() {
            b"jsonrpc" => jsonrpc = owned(&mut reader),
            b"method" => method = owned(&mut reader),
            b"params" => params = self::params(&mut reader),
            b"id" => id = integer(&mut reader),
            _ => drop(reader.skip()),
        }
    }
    Some(Call { jsonrpc: jsonrpc?, method: method?, params: params?, id: id? })
}

fn params(reader: &mut Reader) -> Option<Params> {
    let (mut a, mut b) = (None, None);
    reader.enter();
    while let Some(key) = reader.next_key() {
        match key.raw() {
            b"a" => a = integer(reader),
            b"b" => b = integer(reader),
            _ => drop(reader.skip()),
        }
    }
    Some(Params { a: a?, b: b? })
}

/// Reads a string.
pub fn text(text: &[u8]) -> Option<String> {
    validate(text, NESTING_MAX).ok()?;
    owned(&mut Reader::new(text))
}

/// Reads an array of numbers.
pub fn floats(text: &[u8]) -> Option<Vec<f64>> {
    validate(text, NESTING_MAX).ok()?;
    let mut reader = Reader::new(text);
    let mut found = Vec::new();
    reader.enter();
    while reader.next_item() {
        if reader.kind() != ValueKind::Number {
            return None;
        }
        found.push(reader.number().as_f64());
    }
    Some(found)
}

/// Writes a call.
pub fn write_call(call: &Call, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"jsonrpc\":");
    write_string(out, &call.jsonrpc);
    out.extend_from_slice(b",\"method\":");
    write_string(out, &call.method);
    out.extend_from_slice(b",\"params\":{\"a\":");
    write_i64(out, call.params.a);
    out.extend_from_slice(b",\"b\":");
    write_i64(out, call.params.b);
    out.extend_from_slice(b"},\"id\":");
    write_i64(out, call.id);
    out.push(b'}');
}

/// Writes an array of numbers.
pub fn write_floats(floats: &[f64], out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, &float) in floats.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        let _ = write_f64(out, float);
    }
    out.push(b']');
}
