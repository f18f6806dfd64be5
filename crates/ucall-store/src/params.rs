//! Reads the params of the native procedures.

use std::borrow::Cow;

use base64ct::{Base64, Encoding};
use ucall_proto::json::{Reader, ValueKind};

use crate::entry::Value;
use crate::error::StoreError;
use crate::operation::{Expiry, Operation, check_key};
use crate::store::Scan;
use crate::watch::Filter;

/// Operations of one batch.
const BATCH_MAX: usize = 1_000;
/// What a key is expected to be.
const KEY: &str = "a string, or an object with bytes in base64";
/// Entries of a scan that has no limit of its own.
const SCAN_LIMIT: usize = 100;

/// The texts of params, in the order of their names.
struct Params<'a, const N: usize> {
    names: &'static [&'static str; N],
    texts: [Option<&'a [u8]>; N],
}

const GET: [&str; 1] = ["key"];
const PUT: [&str; 4] = ["key", "value", "ttl_ms", "bytes"];
const CAS: [&str; 5] = ["key", "version", "value", "ttl_ms", "bytes"];
const DUMPED: [&str; 4] = ["key", "value", "bytes", "expires_at_ms"];
const INCREMENT: [&str; 2] = ["key", "by"];
const SCAN: [&str; 5] = ["prefix", "start", "end", "limit", "cursor"];
const BATCH: [&str; 1] = ["operations"];
const WATCH: [&str; 2] = ["key", "prefix"];
const OPERATION: [&str; 2] = ["method", "params"];

/// The key of `get`.
pub(crate) fn get(params: Option<&[u8]>) -> Result<Cow<'_, [u8]>, StoreError> {
    Params::read(params, &GET)?.required_key()
}

pub(crate) fn put(params: Option<&[u8]>) -> Result<Operation, StoreError> {
    Params::read(params, &PUT)?.put(None)
}

/// Reads a line of a dump, which is JSON.
pub(crate) fn dumped(line: &[u8]) -> Result<Operation, StoreError> {
    if !line.starts_with(b"{") {
        return Err(StoreError::invalid("it is no object"));
    }
    let entry = Params::read(Some(line), &DUMPED)?;
    let expiry = entry.count("expires_at_ms")?.map_or(Expiry::Never, Expiry::AtMs);
    entry.put_until(expiry, None)
}

pub(crate) fn delete(params: Option<&[u8]>) -> Result<Operation, StoreError> {
    Ok(Operation::Delete { key: get(params)?.into_owned() })
}

pub(crate) fn cas(params: Option<&[u8]>) -> Result<Operation, StoreError> {
    let params = Params::read(params, &CAS)?;
    let version = params.count("version")?.ok_or_else(|| expected("version", "an integer"))?;
    params.put(Some(version))
}

pub(crate) fn increment(params: Option<&[u8]>) -> Result<Operation, StoreError> {
    let params = Params::read(params, &INCREMENT)?;
    let by = params.integer("by")?.unwrap_or(1);
    Ok(Operation::Increment { key: params.required_key()?.into_owned(), by })
}

pub(crate) fn scan(params: Option<&[u8]>) -> Result<Scan, StoreError> {
    let params = Params::read(params, &SCAN)?;
    let key = |name| Ok::<_, StoreError>(params.key(name)?.map(Cow::into_owned));
    Ok(Scan {
        prefix: key("prefix")?.unwrap_or_default(),
        start: key("start")?,
        end: key("end")?,
        cursor: key("cursor")?,
        limit: params.count("limit")?.map_or(SCAN_LIMIT, |limit| limit as usize),
    })
}

pub(crate) fn watch(params: Option<&[u8]>) -> Result<Filter, StoreError> {
    let params = Params::read(params, &WATCH)?;
    match (params.key("key")?, params.key("prefix")?) {
        (Some(key), None) => {
            check_key("key", &key)?;
            Ok(Filter::Key(key.into_owned()))
        }
        (None, prefix) => Ok(Filter::Prefix(prefix.unwrap_or_default().into_owned())),
        (Some(_), Some(_)) => Err(expected("prefix", "none beside a key")),
    }
}

pub(crate) fn batch(params: Option<&[u8]>) -> Result<Operation, StoreError> {
    let params = Params::read(params, &BATCH)?;
    let text = params.text("operations").unwrap_or_default();
    let mut reader = Reader::new(text);
    if reader.kind() != ValueKind::Array {
        return Err(expected("operations", "an array"));
    }
    reader.enter();
    let mut operations = Vec::new();
    while reader.next_item() {
        if operations.len() == BATCH_MAX {
            return Err(expected("operations", &format!("at most {BATCH_MAX}")));
        }
        let index = operations.len();
        operations.push(operation(reader.skip()).map_err(|error| error.within_batch(index))?);
    }
    Ok(Operation::Batch(operations))
}

/// Reads `{"method":"put","params":[key, value]}`, and the like.
fn operation(text: &[u8]) -> Result<Operation, StoreError> {
    let text = Some(text).filter(|text| text.starts_with(b"{"));
    let call = Params::read(text, &OPERATION)?;
    let method = call.string("method")?.unwrap_or_default();
    let read = match &*method {
        b"put" => put,
        b"delete" => delete,
        b"cas" => cas,
        b"increment" => increment,
        _ => return Err(expected("method", "\"put\", \"delete\", \"cas\" or \"increment\"")),
    };
    let params = call.text("params").unwrap_or_default();
    if !matches!(Reader::new(params).kind(), ValueKind::Array | ValueKind::Object) {
        return Err(expected("params", "an array or an object"));
    }
    read(Some(params))
}

impl<'a, const N: usize> Params<'a, N> {
    fn read(
        params: Option<&'a [u8]>,
        names: &'static [&'static str; N],
    ) -> Result<Self, StoreError> {
        let mut texts = [None; N];
        let mut reader = Reader::new(params.unwrap_or(b"[]"));
        let is_array = reader.kind() == ValueKind::Array;
        reader.enter();
        if is_array {
            let mut slots = texts.iter_mut();
            while reader.next_item() {
                let too_many = || StoreError::invalid(format!("expected at most {N} params"));
                *slots.next().ok_or_else(too_many)? = Some(reader.skip());
            }
            return Ok(Self { names, texts });
        }
        while let Some(name) = reader.next_key() {
            let name = name.unescaped();
            let Some(index) = names.iter().position(|known| known.as_bytes() == &*name) else {
                let name = String::from_utf8_lossy(&name).into_owned();
                let names = names.join(", ");
                return Err(StoreError::invalid(format!("{name}: unexpected; expected {names}")));
            };
            texts[index] = Some(reader.skip());
        }
        Ok(Self { names, texts })
    }

    /// The text of a param, unless it is missing.
    fn text(&self, name: &str) -> Option<&'a [u8]> {
        self.names.iter().zip(self.texts).find(|(known, _)| **known == name)?.1
    }

    /// The same, but `null` is missing, too.
    fn optional(&self, name: &str) -> Option<Reader<'a>> {
        self.text(name).filter(|text| *text != b"null").map(Reader::new)
    }

    fn required_key(&self) -> Result<Cow<'a, [u8]>, StoreError> {
        self.key("key")?.ok_or_else(|| expected("key", KEY))
    }

    /// A key or a part of one: a string, or `{"bytes":"…"}` with base64.
    fn key(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, StoreError> {
        let Some(mut reader) = self.optional(name) else { return Ok(None) };
        match reader.kind() {
            ValueKind::String => return Ok(Some(reader.string().unescaped())),
            ValueKind::Object => reader.enter(),
            _ => return Err(expected(name, KEY)),
        }
        let mut key = None;
        while let Some(member) = reader.next_key() {
            if &*member.unescaped() != b"bytes" || reader.kind() != ValueKind::String {
                return Err(expected(name, KEY));
            }
            key = Some(Cow::Owned(decode(name, &reader.string().unescaped())?));
        }
        key.ok_or_else(|| expected(name, KEY)).map(Some)
    }

    fn string(&self, name: &str) -> Result<Option<Cow<'a, [u8]>>, StoreError> {
        let Some(mut reader) = self.optional(name) else { return Ok(None) };
        match reader.kind() {
            ValueKind::String => Ok(Some(reader.string().unescaped())),
            _ => Err(expected(name, "a string")),
        }
    }

    fn integer(&self, name: &str) -> Result<Option<i64>, StoreError> {
        let Some(mut reader) = self.optional(name) else { return Ok(None) };
        let is_number = reader.kind() == ValueKind::Number;
        let integer = is_number.then(|| reader.number().as_i64()).flatten();
        integer.map(Some).ok_or_else(|| expected(name, "an integer of 64 bits"))
    }

    fn count(&self, name: &str) -> Result<Option<u64>, StoreError> {
        let Some(integer) = self.integer(name)? else { return Ok(None) };
        let count = u64::try_from(integer).map_err(|_| expected(name, "an integer from 0"))?;
        Ok(Some(count))
    }

    fn put(&self, version: Option<u64>) -> Result<Operation, StoreError> {
        let ttl_ms = self.count("ttl_ms")?;
        if ttl_ms == Some(0) {
            return Err(expected("ttl_ms", "an integer from 1"));
        }
        self.put_until(Expiry::after(ttl_ms), version)
    }

    fn put_until(&self, expiry: Expiry, version: Option<u64>) -> Result<Operation, StoreError> {
        let key = self.required_key()?.into_owned();
        let value = match (self.text("value"), self.optional("bytes")) {
            (Some(text), None) => Value::Json(one_line(text)),
            (None, Some(_)) => Value::Bytes(self.bytes()?),
            _ => return Err(expected("value", "a value, or bytes in its place")),
        };
        Ok(Operation::Put { key, value, expiry, version })
    }

    fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        decode("bytes", &self.string("bytes")?.unwrap_or_default())
    }
}

fn decode(param: &str, text: &[u8]) -> Result<Vec<u8>, StoreError> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    Base64::decode_vec(text).map_err(|_| expected(param, "base64 with padding"))
}

/// JSON text without line breaks, which end a reply over raw TCP. Strings have none.
pub(crate) fn one_line(text: &[u8]) -> Vec<u8> {
    let mut line = text.to_vec();
    if memchr::memchr2(b'\n', b'\r', text).is_some() {
        line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    }
    line
}

fn expected(param: &str, what: &str) -> StoreError {
    StoreError::invalid(format!("{param}: expected {what}"))
}
