//! A writer of JSON text, which is valid whatever the program calls.
//!
//! A call that does not fit, such as a value without a key in an object, writes nothing and makes
//! the writer unusable until it is cleared. So a program may check the last call alone.

use ucall_proto::Limits;
use ucall_proto::json::{validate, write_f64, write_i64, write_string};

/// Memory for longer texts is not kept when the writer is cleared.
const TEXT_KEPT_MAX: usize = 1 << 20;

/// An array or object that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Container {
    Array,
    /// The next call writes a key.
    Object,
    /// The next call writes a value.
    Member,
}

/// Writes one JSON value.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    text: Vec<u8>,
    open: Vec<Container>,
    /// The next value or key is not the first of its container.
    needs_comma: bool,
    error: Option<&'static str>,
}

impl Writer {
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(TEXT_KEPT_MAX);
        self.open.clear();
        self.needs_comma = false;
        self.error = None;
    }

    /// The text, if it is a whole value.
    pub(crate) fn text(&self) -> Result<&[u8], &'static str> {
        match self.error {
            Some(error) => Err(error),
            None if self.text.is_empty() => Err("the writer has no value"),
            None if !self.open.is_empty() => Err("the writer has an open array or object"),
            None => Ok(&self.text),
        }
    }

    pub(crate) fn begin_array(&mut self) -> Result<(), &'static str> {
        self.begin(b'[', Container::Array)
    }

    pub(crate) fn begin_object(&mut self) -> Result<(), &'static str> {
        self.begin(b'{', Container::Object)
    }

    fn begin(&mut self, bracket: u8, container: Container) -> Result<(), &'static str> {
        if self.open.len() >= Limits::NESTING_MAX {
            return self.reject("the writer nests too deep");
        }
        self.value(|text| text.push(bracket))?;
        self.open.push(container);
        self.needs_comma = false;
        Ok(())
    }

    pub(crate) fn end_array(&mut self) -> Result<(), &'static str> {
        self.end(b']', Container::Array)
    }

    pub(crate) fn end_object(&mut self) -> Result<(), &'static str> {
        self.end(b'}', Container::Object)
    }

    fn end(&mut self, bracket: u8, container: Container) -> Result<(), &'static str> {
        self.check()?;
        if self.open.last() != Some(&container) {
            return self.reject("the writer ends an array or object that is not open");
        }
        self.open.pop();
        self.text.push(bracket);
        self.needs_comma = true;
        Ok(())
    }

    pub(crate) fn key(&mut self, key: &str) -> Result<(), &'static str> {
        self.check()?;
        let Some(container @ Container::Object) = self.open.last_mut() else {
            return self.reject("the writer expects no key here");
        };
        *container = Container::Member;
        if self.needs_comma {
            self.text.push(b',');
        }
        write_string(&mut self.text, key);
        self.text.push(b':');
        Ok(())
    }

    pub(crate) fn string(&mut self, value: &str) -> Result<(), &'static str> {
        self.value(|text| write_string(text, value))
    }

    pub(crate) fn i64(&mut self, value: i64) -> Result<(), &'static str> {
        self.value(|text| write_i64(text, value))
    }

    pub(crate) fn u64(&mut self, value: u64) -> Result<(), &'static str> {
        self.value(|text| write_u64(text, value))
    }

    pub(crate) fn f64(&mut self, value: f64) -> Result<(), &'static str> {
        if !value.is_finite() {
            return self.reject("the writer got a number that is not finite");
        }
        self.value(|text| {
            let _ = write_f64(text, value);
        })
    }

    /// Writes JSON text as a value, after validating it.
    pub(crate) fn json(&mut self, json: &[u8]) -> Result<(), &'static str> {
        if validate(json, Limits::NESTING_MAX - self.open.len()).is_err() {
            return self.reject("the writer got invalid JSON");
        }
        self.value(|text| text.extend_from_slice(json))
    }

    /// Writes text that is a value.
    pub(crate) fn literal(&mut self, literal: &str) -> Result<(), &'static str> {
        self.value(|text| text.extend_from_slice(literal.as_bytes()))
    }

    fn value(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), &'static str> {
        self.check()?;
        match self.open.last_mut() {
            None if !self.text.is_empty() => {
                return self.reject("the writer has its value already");
            }
            Some(Container::Object) => return self.reject("the writer expects a key here"),
            Some(container @ Container::Member) => *container = Container::Object,
            Some(Container::Array) if self.needs_comma => self.text.push(b','),
            None | Some(Container::Array) => {}
        }
        write(&mut self.text);
        self.needs_comma = true;
        Ok(())
    }

    /// Rejects a call, and all calls after it.
    #[cold]
    pub(crate) fn reject(&mut self, why: &'static str) -> Result<(), &'static str> {
        Err(*self.error.get_or_insert(why))
    }

    fn check(&self) -> Result<(), &'static str> {
        self.error.map_or(Ok(()), Err)
    }
}

/// Appends an integer of 64 bits without a sign.
pub(crate) fn write_u64(out: &mut Vec<u8>, value: u64) {
    match i64::try_from(value) {
        Ok(value) => write_i64(out, value),
        Err(_) => out.extend_from_slice(value.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_value() {
        let mut writer = Writer::default();
        let mut write = || {
            writer.begin_object()?;
            writer.key("a\"\n")?;
            writer.begin_array()?;
            writer.i64(-1)?;
            writer.u64(u64::MAX)?;
            writer.f64(2.5)?;
            writer.literal("null")?;
            writer.end_array()?;
            writer.key("b")?;
            writer.begin_object()?;
            writer.end_object()?;
            writer.key("")?;
            writer.string("é\u{1}")?;
            writer.key("c")?;
            writer.json(b" [1, {}]")?;
            writer.end_object()
        };
        assert_eq!(write(), Ok(()));
        let expected =
            r#"{"a\"\n":[-1,18446744073709551615,2.5,null],"b":{},"":"é\u0001","c": [1, {}]}"#;
        assert_eq!(std::str::from_utf8(writer.text().unwrap()).unwrap(), expected);
        assert_eq!(validate(expected.as_bytes(), 3), Ok(()));
        writer.clear();
        assert!(writer.text().is_err() && writer.string("").is_ok());
        assert_eq!(writer.text(), Ok(&b"\"\""[..]));
    }

    #[test]
    fn a_call_that_does_not_fit_is_rejected_for_good() {
        type Step = fn(&mut Writer) -> Result<(), &'static str>;
        let cases: [&[Step]; 10] = [
            &[|writer| writer.i64(1), |writer| writer.i64(2)],
            &[Writer::begin_object, |writer| writer.i64(1)],
            &[Writer::begin_object, |writer| writer.key("a"), Writer::end_object],
            &[Writer::begin_object, |writer| writer.key("a"), |writer| writer.key("b")],
            &[Writer::begin_array, |writer| writer.key("a")],
            &[Writer::begin_array, Writer::end_object],
            &[Writer::end_array],
            &[|writer| writer.f64(f64::NAN)],
            &[|writer| writer.json(b"[1,]")],
            &[|writer| writer.key("a")],
        ];
        for (number, steps) in cases.iter().enumerate() {
            let mut writer = Writer::default();
            let (last, others) = steps.split_last().unwrap();
            assert!(others.iter().all(|step| step(&mut writer).is_ok()), "{number}");
            assert!(last(&mut writer).is_err() && writer.text().is_err(), "{number}");
            assert!(writer.literal("null").is_err() && writer.begin_array().is_err(), "{number}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let mut writer = Writer::default();
        for _ in 0..Limits::NESTING_MAX {
            assert_eq!(writer.begin_array(), Ok(()));
        }
        assert!(writer.clone().begin_array().is_err());
        for _ in 0..Limits::NESTING_MAX {
            assert_eq!(writer.end_array(), Ok(()));
        }
        assert_eq!(validate(writer.text().unwrap(), Limits::NESTING_MAX), Ok(()));
    }
}
