//! The iteration over params and the writer of the C API, against `serde_json`.

use ucall_proto::json::{Reader, ValueKind, validate};

use crate::c_items::{count, next};
use crate::c_writer::Writer;
use crate::reference;

/// Calls of a writer in one run.
const CALLS_MAX: usize = 64;

/// A value that is read by iteration and written part by part is the same value. Iteration over any
/// other bytes ends. A writer makes valid JSON or none, whatever is called.
///
/// # Panics
/// If they do not.
pub fn run(input: &[u8]) {
    if validate(input, reference::NESTING_MAX).is_ok() && !reference::is_unsupported(input) {
        let mut writer = Writer::default();
        let copied = copy(Reader::new(input).skip(), &mut writer);
        assert_eq!(copied, Ok(()), "{}", input.escape_ascii());
        let text = writer.text().expect("a whole value");
        assert_eq!(validate(text, reference::NESTING_MAX), Ok(()), "{}", input.escape_ascii());
        assert_eq!(reference::read(text), reference::read(input), "{}", input.escape_ascii());
    }
    assert!(count(input) <= input.len());
    call_at_random(input);
}

fn copy(value: &[u8], writer: &mut Writer) -> Result<(), &'static str> {
    let mut reader = Reader::new(value);
    match reader.kind() {
        ValueKind::Null => writer.literal("null"),
        ValueKind::Bool => writer.literal(if reader.boolean() { "true" } else { "false" }),
        ValueKind::Number => match reader.number().as_i64() {
            Some(integer) if value != b"-0" => writer.i64(integer),
            _ => writer.json(value),
        },
        ValueKind::String => writer.string(&string(&reader.string())),
        ValueKind::Array => {
            writer.begin_array()?;
            copy_items(value, writer)?;
            writer.end_array()
        }
        ValueKind::Object => {
            writer.begin_object()?;
            copy_items(value, writer)?;
            writer.end_object()
        }
    }
}

fn copy_items(container: &[u8], writer: &mut Writer) -> Result<(), &'static str> {
    let (mut position, mut items) = (0, 0);
    while let Some((key, item)) = next(container, position) {
        if let Some(key) = key {
            writer.key(&string(&key))?;
        }
        copy(item, writer)?;
        position = item.as_ptr().addr() - container.as_ptr().addr() + item.len();
        items += 1;
    }
    assert_eq!(items, count(container));
    Ok(())
}

fn string(text: &ucall_proto::json::Text<'_>) -> String {
    String::from_utf8(text.unescaped().into_owned()).expect("proven to be UTF-8")
}

/// Each byte is a call of a writer.
fn call_at_random(input: &[u8]) {
    let mut writer = Writer::default();
    for (at, byte) in input.iter().take(CALLS_MAX).enumerate() {
        let rest = input.get(at..).unwrap_or_default();
        let _ = match byte % 12 {
            0 | 1 => writer.begin_array(),
            2 | 3 => writer.begin_object(),
            4 => writer.end_array(),
            5 => writer.end_object(),
            6 | 7 => writer.key(&String::from_utf8_lossy(rest)),
            8 => writer.string(&String::from_utf8_lossy(rest)),
            9 => writer.f64(f64::from_bits(u64::from(*byte) << 52)),
            10 => writer.u64(u64::from(*byte) << 56),
            _ => writer.json(rest),
        };
        if let Ok(text) = writer.text() {
            assert_eq!(validate(text, ucall_proto::Limits::NESTING_MAX), Ok(()));
        }
        if *byte == b'#' {
            writer.clear();
        }
    }
}
