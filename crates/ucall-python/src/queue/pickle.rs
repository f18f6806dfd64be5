//! Looks a pickle over before the interpreter runs it.
//!
//! The interpreter's unpickler believes what a pickle claims: a length, or a place in its memo, is
//! allocated before anything was read; and the hash of a tuple goes down through all its levels
//! without a guard, which ends the process. So every operation is walked over first, with what it
//! leaves on the stack reduced to how deep and how large it is.

use pyo3::prelude::*;

/// How deep values may nest: about as deep as the interpreter's pickler goes.
const DEPTH_MAX: u32 = 1000;
/// How many values may be in one, each counted as often as it is reached, beyond one a byte.
const SHARED_VALUES_MAX: u64 = 1 << 24;

/// Raises ValueError unless a pickle keeps its claims, and nests no deeper than 1,000 levels.
#[pyfunction]
pub(crate) fn check_pickle(data: &Bound<'_, PyAny>) -> PyResult<()> {
    crate::ffi::with_buffer(data, |bytes| Walk::over(bytes))?
        .map_err(|why| pyo3::exceptions::PyValueError::new_err(format!("a pickle with {why}")))
}

/// What a value on the stack amounts to.
#[derive(Clone, Copy)]
struct Value {
    depth: u32,
    values: u64,
}

const SIMPLE: Value = Value { depth: 0, values: 1 };

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Where on the stack the open groups begin.
    marks: Vec<usize>,
    memo: hashbrown::HashMap<u64, Value>,
}

type Checked<T> = Result<T, &'static str>;

impl<'a> Walk<'a> {
    fn over(bytes: &'a [u8]) -> Checked<()> {
        let (stack, marks) = (Vec::new(), Vec::new());
        let mut walk = Self { bytes, at: 0, stack, marks, memo: hashbrown::HashMap::new() };
        while walk.step()? {}
        Ok(())
    }

    /// One operation; `false` after the last.
    fn step(&mut self) -> Checked<bool> {
        let [code] = self.take::<1>()?;
        match code {
            b'.' => return Ok(false),
            0x80 => drop(self.take::<1>()?),
            0x95 => {
                let length = u64::from_le_bytes(self.take()?);
                self.has(length)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => self.drop_one(),
            b'1' => drop(self.group()?),
            b'2' => self.push(self.stack.last().copied().ok_or("too little on its stack")?),
            b'N' | 0x88 | 0x89 | b']' | b'}' | b')' | 0x8f | 0x97 => self.push(SIMPLE),
            0x98 => {}
            b'I' | b'L' | b'F' | b'S' | b'V' | b'P' => {
                self.line()?;
                self.push(SIMPLE);
            }
            b'c' => {
                self.line()?;
                self.line()?;
                self.push(SIMPLE);
            }
            b'K' => self.constant::<1>()?,
            b'M' => self.constant::<2>()?,
            b'J' => self.constant::<4>()?,
            b'G' => self.constant::<8>()?,
            0x8a | b'U' | b'C' | 0x8c => {
                let [length] = self.take()?;
                self.skip(u64::from(length))?;
            }
            0x8b | b'T' | b'B' | b'X' => {
                let length = u32::from_le_bytes(self.take()?);
                self.skip(u64::from(length))?;
            }
            0x8d | 0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.take()?);
                self.skip(length)?;
            }
            b'p' => {
                let place = self.number()?;
                self.remember(place)?;
            }
            b'q' => {
                let [place] = self.take()?;
                self.remember(u64::from(place))?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.take()?);
                self.remember(u64::from(place))?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            b'g' => {
                let place = self.number()?;
                self.recall(place)?;
            }
            b'h' => {
                let [place] = self.take()?;
                self.recall(u64::from(place))?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.take()?);
                self.recall(u64::from(place))?;
            }
            0x85 => self.join(1)?,
            0x86 => self.join(2)?,
            0x87 => self.join(3)?,
            // REDUCE, NEWOBJ, NEWOBJ_EX, STACK_GLOBAL, BINPERSID.
            b'R' | 0x81 | 0x93 => self.join(2)?,
            0x92 => self.join(3)?,
            b'Q' => self.join(1)?,
            // APPEND, SETITEM, BUILD: into the value below.
            b'a' | b'b' => self.put_in(1)?,
            b's' => self.put_in(2)?,
            b't' | b'l' | b'd' | 0x91 | b'o' => {
                let made = self.group()?;
                self.push(made);
            }
            b'i' => {
                self.line()?;
                self.line()?;
                let made = self.group()?;
                self.push(made);
            }
            // APPENDS, SETITEMS, ADDITEMS: into the value below the group.
            b'e' | b'u' | 0x90 => {
                let from = self.marks.pop().ok_or("too little on its stack")?;
                self.put_in(self.stack.len().saturating_sub(from))?;
            }
            _ => return Err("an operation that is not allowed"),
        }
        Ok(true)
    }

    fn push(&mut self, value: Value) {
        self.stack.push(value);
    }

    fn drop_one(&mut self) {
        // A mark on top is dropped instead, as the interpreter does.
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
        } else {
            self.stack.pop();
        }
    }

    /// Puts one value in the place of the last few, a level above them.
    fn join(&mut self, count: usize) -> Checked<()> {
        let from = self.stack.len().checked_sub(count).ok_or("too little on its stack")?;
        let made = self.fold(from)?;
        self.push(made);
        Ok(())
    }

    /// Puts the last few values into the one below them.
    fn put_in(&mut self, count: usize) -> Checked<()> {
        let from = self.stack.len().checked_sub(count).ok_or("too little on its stack")?;
        let items = self.fold(from)?;
        let below = self.stack.last_mut().ok_or("too little on its stack")?;
        below.depth = below.depth.max(items.depth);
        below.values = below.values.saturating_add(items.values);
        Ok(())
    }

    /// Takes what is above the last mark, as one value.
    fn group(&mut self) -> Checked<Value> {
        let from = self.marks.pop().ok_or("too little on its stack")?;
        self.fold(from)
    }

    fn fold(&mut self, from: usize) -> Checked<Value> {
        let mut made = Value { depth: 0, values: 1 };
        for value in self.stack.drain(from.min(self.stack.len())..) {
            made.depth = made.depth.max(value.depth + 1);
            made.values = made.values.saturating_add(value.values);
        }
        if made.depth > DEPTH_MAX {
            return Err("values that nest too deep");
        }
        if made.values > SHARED_VALUES_MAX + self.bytes.len() as u64 {
            return Err("too many values");
        }
        Ok(made)
    }

    /// A place in the memo is at most as far as there were bytes, or it asks for more memory.
    fn remember(&mut self, place: u64) -> Checked<()> {
        if place > self.at as u64 {
            return Err("a place in its memo that is too far");
        }
        let value = self.stack.last().copied().unwrap_or(SIMPLE);
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&mut self, place: u64) -> Checked<()> {
        let value = self.memo.get(&place).copied().ok_or("a place in its memo that is empty")?;
        self.push(value);
        Ok(())
    }

    fn take<const COUNT: usize>(&mut self) -> Checked<[u8; COUNT]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let taken = rest.first_chunk::<COUNT>().ok_or("an end in the middle")?;
        self.at += COUNT;
        Ok(*taken)
    }

    fn constant<const COUNT: usize>(&mut self) -> Checked<()> {
        self.take::<COUNT>()?;
        self.push(SIMPLE);
        Ok(())
    }

    fn has(&self, length: u64) -> Checked<()> {
        let left = (self.bytes.len() - self.at) as u64;
        if length <= left { Ok(()) } else { Err("a length beyond its end") }
    }

    fn skip(&mut self, length: u64) -> Checked<()> {
        self.has(length)?;
        self.at += length as usize;
        self.push(SIMPLE);
        Ok(())
    }

    fn line(&mut self) -> Checked<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = memchr::memchr(b'\n', rest).ok_or("an end in the middle")?;
        self.at += end + 1;
        Ok(rest.get(..end).unwrap_or_default())
    }

    fn number(&mut self) -> Checked<u64> {
        let line = self.line()?;
        let text = std::str::from_utf8(line).ok();
        text.and_then(|text| text.trim().parse().ok()).ok_or("a place in its memo that is none")
    }
}
