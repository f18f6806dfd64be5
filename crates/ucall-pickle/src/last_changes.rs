//! Which operation is the last one that changes an object.
//!
//! A complete object stays on the stack until an operation consumes it, and until then further
//! operations might change it. This matters only if the pickle reads the object from the memo while
//! it is still on the stack, which few pickles do. In that case [`LookAhead`] runs the rest of the
//! pickle once without a builder and finds the last change of each object.

use crate::error::Error;
use crate::operation::{Bytes, Operation};

/// A value that no operation changes.
const FIXED: u32 = u32::MAX;

/// The number of each object's last change. Changes count from 1; 0 means no change.
#[derive(Debug, Default)]
pub(crate) struct LastChanges {
    /// By object, in the order of their creation after the look-ahead.
    by_object: Vec<u32>,
    made: usize,
    changes: u32,
}

impl LastChanges {
    /// The last change of the object that is being made.
    pub(crate) fn next_object(&mut self) -> u32 {
        let last = self.by_object.get(self.made).copied().unwrap_or(0);
        self.made += 1;
        last
    }

    /// The number of the change that is being made.
    pub(crate) fn next_change(&mut self) -> u32 {
        self.changes += 1;
        self.changes
    }
}

/// Runs operations for their effect on the stack only.
pub(crate) struct LookAhead<'a> {
    bytes: Bytes<'a>,
    found: LastChanges,
    changes: u32,
    /// Last changes of the values that were on the stack at the start.
    present: Vec<u32>,
    /// The number of those that are left, and the values above them: an object's number or `FIXED`.
    below: usize,
    above: Vec<u32>,
    marks: Vec<usize>,
}

impl<'a> LookAhead<'a> {
    /// Starts after an operation that pushes a value. `present` is the number of values below it.
    pub(crate) fn new(bytes: Bytes<'a>, present: usize, marks: &[usize]) -> Self {
        Self {
            bytes,
            found: LastChanges::default(),
            changes: 0,
            present: vec![0; present],
            below: present,
            above: vec![FIXED],
            marks: marks.to_vec(),
        }
    }

    /// Runs up to `count` operations and returns whether more are left. An invalid operation ends
    /// the run; the reader will report it.
    pub(crate) fn run(&mut self, count: u32) -> bool {
        (0..count).all(|_| self.step().is_ok())
    }

    /// The last changes of later objects, and those of the values on the stack.
    pub(crate) fn finish(self) -> (LastChanges, Vec<u32>) {
        (self.found, self.present)
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.bytes.operation()? {
            Operation::Stop => return Err(Error::Trailing),
            Operation::Frame
            | Operation::Memoize
            | Operation::ReadOnlyBuffer
            | Operation::PersistentId => {}
            Operation::Mark => self.marks.push(self.len()),
            Operation::Pop => self.replace(1, false)?,
            Operation::PopMark => {
                let from = self.take_mark()?;
                self.truncate(from);
            }
            Operation::TupleOf(count) => self.replace(count, true)?,
            Operation::Tuple | Operation::FrozenSet => {
                let from = self.take_mark()?;
                self.truncate(from);
                self.above.push(FIXED);
            }
            Operation::Global => self.replace(2, true)?,
            Operation::EmptyList | Operation::EmptyDict | Operation::EmptySet => self.make(0)?,
            Operation::Reduce | Operation::NewObject => self.make(2)?,
            Operation::NewObjectEx => self.make(3)?,
            Operation::Append | Operation::Build => self.change(self.place(1)?)?,
            Operation::SetItem => self.change(self.place(2)?)?,
            Operation::Appends | Operation::SetItems | Operation::AddItems => {
                let from = self.take_mark()?;
                self.change(from)?;
            }
            _ => self.above.push(FIXED),
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.below + self.above.len()
    }

    fn place(&self, from_top: usize) -> Result<usize, Error> {
        self.len().checked_sub(from_top).ok_or(Error::Stack)
    }

    fn take_mark(&mut self) -> Result<usize, Error> {
        self.marks.pop().filter(|&mark| mark <= self.len()).ok_or(Error::Stack)
    }

    fn truncate(&mut self, length: usize) {
        self.above.truncate(length.saturating_sub(self.below));
        self.below = self.below.min(length);
    }

    fn replace(&mut self, count: usize, has_result: bool) -> Result<(), Error> {
        self.truncate(self.place(count)?);
        if has_result {
            self.above.push(FIXED);
        }
        Ok(())
    }

    /// Pops `of` values and pushes a new object.
    fn make(&mut self, of: usize) -> Result<(), Error> {
        self.replace(of, false)?;
        let number = u32::try_from(self.found.by_object.len()).map_err(|_| Error::Stack)?;
        self.found.by_object.push(0);
        self.above.push(number);
        Ok(())
    }

    /// Pops the values from `from` on and changes the object below them.
    fn change(&mut self, from: usize) -> Result<(), Error> {
        self.truncate(from);
        self.changes += 1;
        let last_change = match self.above.last() {
            Some(&number) => self.found.by_object.get_mut(number as usize),
            None => self.below.checked_sub(1).and_then(|at| self.present.get_mut(at)),
        };
        if let Some(last_change) = last_change {
            *last_change = self.changes;
        }
        Ok(())
    }
}
