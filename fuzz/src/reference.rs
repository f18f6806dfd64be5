//! The expected replies to a document, computed by `serde_json` and the specification alone.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// Calls that one batch may have here.
pub const BATCH_CALLS_MAX: usize = 8;
/// Text of one id.
pub const ID_BYTES_MAX: usize = 24;
/// Text of one `_meta`.
pub const META_BYTES_MAX: usize = 64;
/// Arrays and objects inside one another.
pub const NESTING_MAX: usize = 128;

/// What a reply to one call, or to none, must be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The result is the text of the params, or `null`.
    Result { id: String, params: String },
    /// An error of that code, with that id.
    Error { id: String, code: i64 },
}

/// What a document must be answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Nothing: it had only notifications.
    Nothing,
    /// One reply.
    Single(Reply),
    /// An array of replies.
    Batch(Vec<Reply>),
}

/// The value of a text, numbers as they are written; `None` when it is no JSON.
pub fn read(text: &[u8]) -> Option<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let value = Value::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

/// Whether `serde_json` cannot judge a text: it nests so deep that the stack would overflow, or has
/// the key by which `serde_json` passes numbers on unchanged.
pub fn is_unsupported(text: &[u8]) -> bool {
    let private = b"serde_json::private";
    nesting(text) > 1000 || text.windows(private.len()).any(|window| window == private)
}

/// How many arrays and objects a text may open, and so may nest, at most.
pub fn nesting(text: &[u8]) -> usize {
    text.iter().filter(|byte| matches!(byte, b'[' | b'{')).count()
}

/// What a document of this text must be answered with.
pub fn expected(text: &[u8]) -> Expected {
    let Some(value) = read(text).filter(|value| depth(value) <= NESTING_MAX) else {
        return Expected::Single(error("null", -32700));
    };
    match value {
        Value::Array(items) if items.is_empty() || items.len() > BATCH_CALLS_MAX => {
            Expected::Single(error("null", -32600))
        }
        Value::Array(_) => {
            let items: Vec<Raw<'_>> = serde_json::from_slice(text).expect("an array");
            let replies: Vec<Reply> = items.iter().filter_map(|item| call(item.0)).collect();
            if replies.is_empty() { Expected::Nothing } else { Expected::Batch(replies) }
        }
        _ => {
            let text: Raw<'_> = serde_json::from_slice(text).expect("a value");
            call(text.0).map_or(Expected::Nothing, Expected::Single)
        }
    }
}

fn depth(value: &Value) -> usize {
    let of_all = |depths: &mut dyn Iterator<Item = usize>| 1 + depths.max().unwrap_or(0);
    match value {
        Value::Array(items) => of_all(&mut items.iter().map(depth)),
        Value::Object(members) => of_all(&mut members.values().map(depth)),
        _ => 0,
    }
}

/// The reply to one item of a batch, or to a single document.
fn call(text: &str) -> Option<Reply> {
    let Some(members) = members(text) else { return Some(error("null", -32600)) };
    // The last of two members with one name counts.
    let find =
        |name: &str| members.iter().rev().find(|(key, _)| key == name).map(|(_, text)| *text);
    let begins = |text: &str, with: &str| text.starts_with(|first| with.contains(first));
    let id = find("id");
    let id_is_valid = id.is_none_or(|id| begins(id, "\"-0123456789n") && id.len() <= ID_BYTES_MAX);
    let shown = id.filter(|_| id_is_valid).unwrap_or("null");
    let version = find("jsonrpc").and_then(|text| serde_json::from_str::<String>(text).ok());
    let is_valid = id_is_valid
        && version.as_deref() == Some("2.0")
        && find("method").is_some_and(|method| begins(method, "\""))
        && find("params").is_none_or(|params| begins(params, "[{"))
        && find("_meta").is_none_or(is_valid_meta);
    if !is_valid {
        return Some(error(shown, -32600));
    }
    let params = find("params").unwrap_or("null").to_owned();
    id.map(|id| Reply::Result { id: id.to_owned(), params })
}

fn is_integer(number: &str) -> bool {
    number.starts_with(|first| "-0123456789".contains(first)) && !number.contains(['.', 'e', 'E'])
}

fn is_valid_meta(text: &str) -> bool {
    let Some(members) = members(text).filter(|_| text.len() <= META_BYTES_MAX) else {
        return false;
    };
    members.iter().all(|(name, value)| {
        let is_string = value.starts_with('"');
        match name.as_str() {
            "progressToken" => is_string || is_integer(value),
            "timeout_ms" => value.starts_with(|first: char| first.is_ascii_digit()),
            "traceparent" | "tracestate" => is_string,
            _ => true,
        }
    })
}

/// The members of an object as they are written, in their order; `None` if it is no object.
pub fn members(text: &str) -> Option<Vec<(String, &str)>> {
    serde_json::from_str(text).ok().map(|Members(members)| members)
}

fn error(id: &str, code: i64) -> Reply {
    Reply::Error { id: id.to_owned(), code }
}

/// A value as JSON text.
#[derive(serde::Deserialize)]
struct Raw<'a>(#[serde(borrow, deserialize_with = "raw")] &'a str);

fn raw<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'de str, D::Error> {
    <&RawValue>::deserialize(deserializer).map(RawValue::get)
}

struct Members<'a>(Vec<(String, &'a str)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
            members.push((key, value.get()));
        }
        Ok(Members(members))
    }
}
