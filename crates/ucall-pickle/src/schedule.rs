//! When objects change for the last time.
//!
//! An object lies on the stack for a while after it is complete, and until it is consumed more
//! operations might change it. Of most pickles nobody needs to know: an object is hardly ever
//! recalled before it is consumed. Where one is, the rest of the pickle is run once without making
//! anything, which tells for each object, by its number, which change is its last.

use crate::error::Error;
use crate::operation::{Bytes, Operation};

/// Something that nothing changes: a value of another kind, or none that the schedule knows.
const FIXED: u32 = u32::MAX;

/// Numbers of last changes. Changes are counted from 1 on; 0 stands for no change at all.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    /// Of objects that are made from now on, in the order in which they are.
    last_changes: Vec<u32>,
    made: usize,
    changes: u32,
}

impl Schedule {
    /// The last change of the object that is being made.
    pub(crate) fn next_object(&mut self) -> u32 {
        let last = self.last_changes.get(self.made).copied().unwrap_or(0);
        self.made += 1;
        last
    }

    /// The number of the change that is being made.
    pub(crate) fn next_change(&mut self) -> u32 {
        self.changes += 1;
        self.changes
    }
}

/// Runs operations for what they do to the stack alone.
pub(crate) struct Forecast<'a> {
    bytes: Bytes<'a>,
    schedule: Schedule,
    changes: u32,
    /// Last changes of the values that lay on the stack to begin with.
    present: Vec<u32>,
    /// How many of those are left, and what lies above them: numbers of objects, or `FIXED`.
    below: usize,
    above: Vec<u32>,
    marks: Vec<usize>,
}

impl<'a> Forecast<'a> {
    /// Of the operations behind one that puts a value onto the stack.
    pub(crate) fn new(bytes: Bytes<'a>, present: usize, marks: &[usize]) -> Self {
        Self {
            bytes,
            schedule: Schedule::default(),
            changes: 0,
            present: vec![0; present],
            below: present,
            above: vec![FIXED],
            marks: marks.to_vec(),
        }
    }

    /// Runs up to `count` operations; returns whether more are left. What cannot be run ends it:
    /// the reader will find the same.
    pub(crate) fn run(&mut self, count: u32) -> bool {
        (0..count).all(|_| self.step().is_ok())
    }

    /// The schedule, and the last changes of the values on the stack.
    pub(crate) fn finish(self) -> (Schedule, Vec<u32>) {
        (self.schedule, self.present)
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

    /// Makes an object of so many values.
    fn make(&mut self, of: usize) -> Result<(), Error> {
        self.replace(of, false)?;
        let number = u32::try_from(self.schedule.last_changes.len()).map_err(|_| Error::Stack)?;
        self.schedule.last_changes.push(0);
        self.above.push(number);
        Ok(())
    }

    /// Puts the values from `from` on into the object below them.
    fn change(&mut self, from: usize) -> Result<(), Error> {
        self.truncate(from);
        self.changes += 1;
        let last_change = match self.above.last() {
            Some(&number) => self.schedule.last_changes.get_mut(number as usize),
            None => self.below.checked_sub(1).and_then(|at| self.present.get_mut(at)),
        };
        if let Some(last_change) = last_change {
            *last_change = self.changes;
        }
        Ok(())
    }
}
