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

const TOO_LITTLE: &str = "too little on its stack";
const CUT_OFF: &str = "an end in the middle";

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
        match Operation::of(code) {
            Operation::Stop => return Ok(false),
            Operation::Pass(bytes) => self.pass(bytes)?,
            Operation::Frame => {
                let length = self.number(Width::Eight)?;
                self.has(length)?;
            }
            Operation::Mark => self.marks.push(self.stack.len()),
            Operation::Drop => self.drop_one(),
            Operation::DropGroup => drop(self.group()?),
            Operation::Copy => self.push(self.stack.last().copied().ok_or(TOO_LITTLE)?),
            Operation::Fixed(bytes) => {
                self.pass(bytes)?;
                self.push(SIMPLE);
            }
            Operation::Lines(lines) => {
                self.pass_lines(lines)?;
                self.push(SIMPLE);
            }
            Operation::Counted(width) => {
                let length = self.number(width)?;
                self.skip(length)?;
            }
            Operation::Remember(width) => {
                let place = self.number(width)?;
                self.remember(place)?;
            }
            Operation::RememberNext => self.remember(self.memo.len() as u64)?,
            Operation::Recall(width) => {
                let place = self.number(width)?;
                self.recall(place)?;
            }
            Operation::Join(count) => self.join(count)?,
            Operation::JoinGroup(lines) => {
                self.pass_lines(lines)?;
                let made = self.group()?;
                self.push(made);
            }
            Operation::PutIn(count) => self.put_in(count)?,
            Operation::PutGroupIn => {
                let from = self.marks.pop().ok_or(TOO_LITTLE)?;
                self.put_in(self.stack.len().saturating_sub(from))?;
            }
            Operation::Refused => return Err("an operation that is not allowed"),
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
        let from = self.stack.len().checked_sub(count).ok_or(TOO_LITTLE)?;
        let made = self.fold(from)?;
        self.push(made);
        Ok(())
    }

    /// Puts the last few values into the one below them.
    fn put_in(&mut self, count: usize) -> Checked<()> {
        let from = self.stack.len().checked_sub(count).ok_or(TOO_LITTLE)?;
        let items = self.fold(from)?;
        let below = self.stack.last_mut().ok_or(TOO_LITTLE)?;
        below.depth = below.depth.max(items.depth);
        below.values = below.values.saturating_add(items.values);
        Ok(())
    }

    /// Takes what is above the last mark, as one value.
    fn group(&mut self) -> Checked<Value> {
        let from = self.marks.pop().ok_or(TOO_LITTLE)?;
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
        let taken = rest.first_chunk::<COUNT>().ok_or(CUT_OFF)?;
        self.at += COUNT;
        Ok(*taken)
    }

    fn pass(&mut self, bytes: usize) -> Checked<()> {
        let is_there = bytes <= self.bytes.len() - self.at;
        self.at += if is_there { bytes } else { 0 };
        is_there.then_some(()).ok_or(CUT_OFF)
    }

    fn pass_lines(&mut self, lines: usize) -> Checked<()> {
        (0..lines).try_for_each(|_| self.line().map(drop))
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
        let end = memchr::memchr(b'\n', rest).ok_or(CUT_OFF)?;
        self.at += end + 1;
        Ok(rest.get(..end).unwrap_or_default())
    }

    // Where it is called the width is known.
    #[inline(always)]
    fn number(&mut self, width: Width) -> Checked<u64> {
        Ok(match width {
            Width::One => u64::from(u8::from_le_bytes(self.take()?)),
            Width::Four => u64::from(u32::from_le_bytes(self.take()?)),
            Width::Eight => u64::from_le_bytes(self.take()?),
            Width::Line => {
                let text = std::str::from_utf8(self.line()?).ok();
                let number = text.and_then(|text| text.trim().parse().ok());
                number.ok_or("a place in its memo that is none")?
            }
        })
    }
}

/// How a number is written.
#[derive(Clone, Copy)]
enum Width {
    One,
    Four,
    Eight,
    /// In digits, up to the end of the line.
    Line,
}

/// What an operation reads, and does to the stack.
enum Operation {
    /// It is the last.
    Stop,
    /// Nothing, after so many bytes.
    Pass(usize),
    /// Nothing, but that so many bytes follow at least.
    Frame,
    /// Begins a group.
    Mark,
    Drop,
    DropGroup,
    Copy,
    /// Pushes a value of so many bytes.
    Fixed(usize),
    /// Pushes a value of so many lines.
    Lines(usize),
    /// Pushes a value behind its length.
    Counted(Width),
    Remember(Width),
    RememberNext,
    Recall(Width),
    /// Puts one value in the place of so many.
    Join(usize),
    /// Puts one value in the place of a group, after so many lines.
    JoinGroup(usize),
    /// Puts so many values into the one below them.
    PutIn(usize),
    /// Puts a group into the value below it.
    PutGroupIn,
    Refused,
}

impl Operation {
    /// The operation of a code, by the list of `pickletools`.
    #[inline(always)]
    fn of(code: u8) -> Self {
        match code {
            b'.' => Self::Stop,
            // PROTO; READONLY_BUFFER.
            0x80 => Self::Pass(1),
            0x98 => Self::Pass(0),
            0x95 => Self::Frame,
            b'(' => Self::Mark,
            b'0' => Self::Drop,
            b'1' => Self::DropGroup,
            b'2' => Self::Copy,
            b'N' | 0x88 | 0x89 | b']' | b'}' | b')' | 0x8f | 0x97 => Self::Fixed(0),
            b'K' => Self::Fixed(1),
            b'M' => Self::Fixed(2),
            b'J' => Self::Fixed(4),
            b'G' => Self::Fixed(8),
            b'I' | b'L' | b'F' | b'S' | b'V' | b'P' => Self::Lines(1),
            b'c' => Self::Lines(2),
            0x8a | b'U' | b'C' | 0x8c => Self::Counted(Width::One),
            0x8b | b'T' | b'B' | b'X' => Self::Counted(Width::Four),
            0x8d | 0x8e | 0x96 => Self::Counted(Width::Eight),
            b'p' => Self::Remember(Width::Line),
            b'q' => Self::Remember(Width::One),
            b'r' => Self::Remember(Width::Four),
            0x94 => Self::RememberNext,
            b'g' => Self::Recall(Width::Line),
            b'h' => Self::Recall(Width::One),
            b'j' => Self::Recall(Width::Four),
            // TUPLE1, BINPERSID.
            0x85 | b'Q' => Self::Join(1),
            // TUPLE2, REDUCE, NEWOBJ, STACK_GLOBAL.
            0x86 | b'R' | 0x81 | 0x93 => Self::Join(2),
            // TUPLE3, NEWOBJ_EX.
            0x87 | 0x92 => Self::Join(3),
            b't' | b'l' | b'd' | 0x91 | b'o' => Self::JoinGroup(0),
            b'i' => Self::JoinGroup(2),
            // APPEND, BUILD; SETITEM.
            b'a' | b'b' => Self::PutIn(1),
            b's' => Self::PutIn(2),
            // APPENDS, SETITEMS, ADDITEMS.
            b'e' | b'u' | 0x90 => Self::PutGroupIn,
            _ => Self::Refused,
        }
    }
}
