//! The stack machine.
//!
//! Each operation charges the budget before the builder makes an object. The constants are
//! CPython's object sizes on 64-bit machines, including the spare capacity of containers.

use hashbrown::HashMap;

use crate::budget::{Budget, Limits};
use crate::error::Error;
use crate::last_changes::LastChanges;
use crate::operation::{Bytes, Operation};
use crate::stack::{Dropped, Entry, Extent, HashCounts, Kind, MemoEntry, NOWHERE, Open};
use crate::{Accepts, Builder};

/// The reader calls [`Builder::pause`] once per this many operations.
pub(crate) const OPERATIONS_WITHOUT_PAUSE: u32 = 4096;

/// Bytes of a number, and of each object without its contents.
const SMALL: u64 = 32;
pub(crate) const HEADER: u64 = 64;
const TEXT: u64 = 80;
const BYTE_ARRAY: u64 = 96;
const TUPLE: u64 = 56;
const LIST: u64 = 80;
const DICT: u64 = 80;
const SET: u64 = 224;
/// Shorter text is charged at four bytes a character, without a look at it.
const SHORT_TEXT: usize = 64;
/// Bytes of an item in a container.
pub(crate) const ITEM: u64 = 8;
const LIST_ITEM: u64 = 16;
const FIRST_KEY: u64 = 160;
const KEY: u64 = 112;
const MEMBER: u64 = 144;

/// Reads one pickle.
pub struct Reader<'a, B: Builder> {
    pub(crate) builder: &'a mut B,
    pub(crate) bytes: Bytes<'a>,
    pub(crate) limits: Limits,
    /// Bytes of the pickle.
    length: usize,
    pub(crate) budget: Budget,
    /// The stack: its objects, and an entry for each.
    pub(crate) objects: Vec<B::Object>,
    pub(crate) stack: Vec<Entry>,
    pub(crate) marks: Vec<usize>,
    pub(crate) memo: Vec<MemoEntry<B::Object>>,
    pub(crate) globals: Vec<B::Global>,
    pub(crate) pending: Vec<Option<B::Pending>>,
    /// Hash counts of the containers on the stack, the innermost last.
    pub(crate) hash_counts: Vec<HashCounts>,
    /// Set by the look-ahead, when the pickle first reads an object from the memo that may change.
    pub(crate) last_changes: Option<LastChanges>,
    /// After a look-ahead: the incomplete objects on the stack that are in the memo, the innermost
    /// last.
    pub(crate) open: Vec<Open>,
    pub(crate) dropped: HashMap<u32, Dropped>,
    operations: u32,
}

pub(crate) type Step<B, T = ()> = Result<T, <B as Builder>::Error>;

impl<'a, B: Builder> Reader<'a, B> {
    /// Reads a pickle and returns its object.
    pub fn read(pickle: &'a [u8], limits: Limits, builder: &'a mut B) -> Step<B, B::Object> {
        let mut reader = Self::new(pickle, limits, builder)?;
        loop {
            match reader.bytes.operation()? {
                Operation::Stop => return reader.finish(),
                operation => reader.run(operation)?,
            }
            reader.count_operation()?;
        }
    }

    pub(crate) fn new(pickle: &'a [u8], limits: Limits, builder: &'a mut B) -> Result<Self, Error> {
        // CPython's pickler consumes a container's items in batches of 1,000.
        let places = (pickle.len() / 8).min(2048);
        Ok(Self {
            builder,
            bytes: Bytes::of(pickle)?,
            limits,
            length: pickle.len(),
            budget: Budget::new(&limits, pickle.len()),
            objects: Vec::with_capacity(places),
            stack: Vec::with_capacity(places),
            marks: Vec::new(),
            memo: Vec::with_capacity(places / 2),
            globals: Vec::new(),
            pending: Vec::new(),
            hash_counts: Vec::new(),
            last_changes: None,
            open: Vec::new(),
            dropped: HashMap::new(),
            operations: 0,
        })
    }

    /// Reads operations up to the end of these bytes, or up to a long object that is not complete,
    /// and returns how many bytes of it are missing.
    pub(crate) fn run_until_long(&mut self) -> Step<B, usize> {
        while !self.bytes.is_empty() {
            if let Some(missing) = self.bytes.missing_of_long() {
                return Ok(missing);
            }
            let operation = self.bytes.operation()?;
            self.run(operation)?;
        }
        Ok(0)
    }

    fn finish(mut self) -> Step<B, B::Object> {
        if !self.bytes.is_empty() {
            return Err(Error::Trailing.into());
        }
        let (object, extent) = self.pop_value()?;
        if u64::from(extent.values) > self.limits.values_max(self.length) {
            return Err(Error::Values.into());
        }
        if !self.stack.is_empty() || !self.marks.is_empty() {
            return Err(Error::Stack.into());
        }
        Ok(object)
    }

    #[inline]
    fn count_operation(&mut self) -> Step<B> {
        self.operations += 1;
        if self.operations == OPERATIONS_WITHOUT_PAUSE {
            self.operations = 0;
            self.builder.pause()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn run(&mut self, operation: Operation<'a>) -> Step<B> {
        match operation {
            Operation::Integer(value) => {
                self.budget.allocate(SMALL)?;
                let object = self.builder.integer(value)?;
                self.push(object, Entry::new(Extent::LEAF));
                Ok(())
            }
            Operation::Text(utf8) => self.text(utf8),
            Operation::Memoize => self.memoize(),
            Operation::Get(place) => self.get_memoized(place),
            Operation::SetItem => {
                let at = self.below_top(2)?;
                self.set_items(at)
            }
            Operation::SetItems => {
                let at = self.take_mark()?;
                self.set_items(at)
            }
            Operation::Append => {
                let at = self.below_top(1)?;
                self.append(at)
            }
            Operation::Appends => {
                let at = self.take_mark()?;
                self.append(at)
            }
            Operation::Mark => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            Operation::EmptyTuple => self.tuple(self.stack.len()),
            Operation::TupleOf(count) => {
                let at = self.below_top(count)?;
                self.tuple(at)
            }
            Operation::Tuple => {
                let at = self.take_mark()?;
                self.tuple(at)
            }
            Operation::Global => self.global(),
            Operation::Reduce => self.reduce(),
            Operation::Build => self.build(),
            Operation::NewObject => self.new_object(false),
            Operation::NewObjectEx => self.new_object(true),
            Operation::EmptyList => {
                self.budget.allocate(LIST)?;
                let object = self.builder.list()?;
                self.push_open(object, Accepts::ITEMS);
                Ok(())
            }
            Operation::EmptyDict => {
                self.budget.allocate(DICT)?;
                let object = self.builder.dict()?;
                self.push_open(object, Accepts::KEYS);
                Ok(())
            }
            Operation::EmptySet => {
                self.budget.allocate(SET)?;
                let object = self.builder.set()?;
                self.push_open(object, Accepts::MEMBERS);
                Ok(())
            }
            Operation::AddItems => self.add_items(),
            Operation::FrozenSet => self.frozen_set(),
            Operation::Pop => {
                let at = self.below_top(1)?;
                self.drop_from(at)
            }
            Operation::PopMark => {
                let at = self.take_mark()?;
                self.drop_from(at)
            }
            Operation::PersistentId => self.persistent(),
            // `read` handles STOP; a frame has no effect.
            Operation::Stop | Operation::Frame => Ok(()),
            leaf => self.leaf(leaf),
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, object: B::Object, entry: Entry) {
        self.objects.push(object);
        self.stack.push(entry);
    }

    pub(crate) fn pop(&mut self) -> Result<(B::Object, Entry), Error> {
        self.objects.pop().zip(self.stack.pop()).ok_or(Error::Stack)
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.objects.truncate(length);
        self.stack.truncate(length);
    }

    pub(crate) fn object(&self, at: usize) -> Result<B::Object, Error> {
        self.objects.get(at).cloned().ok_or(Error::Stack)
    }

    fn push_open(&mut self, object: B::Object, accepts: Accepts) {
        let (accepts, last_change) = self.until_last_change(accepts);
        self.push(object, Entry { accepts, last_change, ..Entry::new(Extent::LEAF) });
    }

    #[inline]
    fn text(&mut self, utf8: &[u8]) -> Step<B> {
        // A `str` stores all characters at the width of its widest one.
        let width = if utf8.len() > SHORT_TEXT && utf8.is_ascii() { 1 } else { 4 };
        self.budget.allocate(TEXT + width * utf8.len() as u64)?;
        let object = self.builder.text(utf8)?;
        self.push(object, Entry::new(Extent::of_bytes(utf8.len())));
        Ok(())
    }

    fn leaf(&mut self, operation: Operation<'a>) -> Step<B> {
        let (object, extent) = match operation {
            Operation::None => (self.builder.none(), Extent::LEAF),
            Operation::Boolean(value) => (self.builder.boolean(value), Extent::LEAF),
            Operation::Float(value) => {
                self.budget.allocate(SMALL)?;
                (self.builder.float(value)?, Extent::LEAF)
            }
            Operation::Long(bytes) => {
                self.budget.allocate(SMALL + 2 * bytes.len() as u64)?;
                let weight = u32::try_from(1 + bytes.len() / 8).unwrap_or(u32::MAX);
                (self.builder.long(bytes)?, Extent::leaf(weight))
            }
            Operation::Bytes(bytes) => {
                self.budget.allocate(HEADER + bytes.len() as u64)?;
                (self.builder.bytes(bytes)?, Extent::of_bytes(bytes.len()))
            }
            Operation::ByteArray(bytes) => {
                self.budget.allocate(BYTE_ARRAY + bytes.len() as u64)?;
                (self.builder.byte_array(bytes)?, Extent::of_bytes(bytes.len()).without_hash())
            }
            Operation::NextBuffer => (self.builder.next_buffer()?, Extent::LEAF.without_hash()),
            Operation::ReadOnlyBuffer => {
                self.budget.allocate(4 * HEADER)?;
                let (buffer, extent) = self.pop_value()?;
                (self.builder.read_only(buffer)?, extent)
            }
            _ => return Ok(()),
        };
        self.push(object, Entry::new(extent));
        Ok(())
    }

    // --- consuming values

    /// The stack index of the top `count` values, which must be above the last mark.
    #[inline]
    pub(crate) fn below_top(&self, count: usize) -> Result<usize, Error> {
        let at = self.stack.len().checked_sub(count).ok_or(Error::Stack)?;
        if at < self.marks.last().copied().unwrap_or(0) {
            return Err(Error::Stack);
        }
        Ok(at)
    }

    #[inline]
    fn take_mark(&mut self) -> Result<usize, Error> {
        self.marks.pop().ok_or(Error::Stack)
    }

    /// Pops a value, which must be complete.
    pub(crate) fn pop_value(&mut self) -> Step<B, (B::Object, Extent)> {
        let at = self.below_top(1)?;
        let extent = self.close(at)?;
        Ok((self.pop()?.0, extent))
    }

    /// Closes a value, so that it can become a part of another one and never changes again.
    #[inline(always)]
    pub(crate) fn close(&mut self, at: usize) -> Step<B, Extent> {
        match self.stack.get(at) {
            Some(entry) if entry.kind == Kind::Object && entry.accepts == Accepts::NOTHING => {
                Ok(entry.extent)
            }
            _ => self.close_other(at),
        }
    }

    #[inline(never)]
    fn close_other(&mut self, at: usize) -> Step<B, Extent> {
        let entry = self.stack.get_mut(at).ok_or(Error::Stack)?;
        match entry.kind {
            Kind::Object => {}
            Kind::Arguments => return Err(Error::NotValue.into()),
            Kind::Pending(_) => return Err(Error::Incomplete.into()),
            Kind::Global(number) => {
                let global = self.globals.get(number as usize).ok_or(Error::Stack)?;
                let object = self.builder.value_of(global)?.ok_or(Error::NotValue)?;
                entry.kind = Kind::Object;
                *self.objects.get_mut(at).ok_or(Error::Stack)? = object;
            }
        }
        self.close_open(at)
    }

    pub(crate) fn close_open(&mut self, at: usize) -> Step<B, Extent> {
        let entry = self.stack.get_mut(at).ok_or(Error::Stack)?;
        entry.accepts = Accepts::NOTHING;
        // A reference to itself does not leave its height open.
        if entry.extent.open == entry.memo {
            entry.extent.open = NOWHERE;
        }
        let (extent, place) = (entry.extent, entry.memo);
        if let Some(memoized) = self.memo.get_mut(place as usize) {
            memoized.extent = extent;
            memoized.is_open = false;
            if self.last_changes.is_some() {
                self.close_memoized(at, place);
            }
        }
        while self.hash_counts.last().is_some_and(|counts| counts.container >= at) {
            self.hash_counts.pop();
        }
        Ok(extent)
    }

    /// Closes all values from `from` on, the last first, and returns the extent of an object that
    /// contains them.
    fn close_all(&mut self, from: usize) -> Step<B, Extent> {
        let mut extent = Extent::LEAF;
        for at in (from..self.stack.len()).rev() {
            extent.include(&self.close(at)?);
        }
        self.check_depth(&extent)?;
        Ok(extent)
    }

    #[inline]
    pub(crate) fn check_depth(&self, extent: &Extent) -> Result<(), Error> {
        if extent.height > self.limits.depth_max { Err(Error::Depth) } else { Ok(()) }
    }

    fn drop_from(&mut self, from: usize) -> Step<B> {
        for at in (from..self.stack.len()).rev() {
            let &Entry { kind, mut extent, memo, .. } = self.stack.get(at).ok_or(Error::Stack)?;
            match kind {
                Kind::Object => extent = self.close(at)?,
                Kind::Pending(_) => return Err(Error::Incomplete.into()),
                Kind::Arguments | Kind::Global(_) => {}
            }
            self.note_dropped(&extent, memo);
        }
        self.truncate(from);
        Ok(())
    }

    // --- tuples and sets

    fn tuple(&mut self, from: usize) -> Step<B> {
        self.budget.allocate(TUPLE + ITEM * self.stack.len().saturating_sub(from) as u64)?;
        let kind = self.arguments_in(from)?;
        let extent = self.close_all(from)?;
        self.stack.truncate(from);
        let items = self.objects.drain(from..);
        let object = self.builder.tuple(items)?;
        self.push(object, Entry { kind, ..Entry::new(extent) });
        Ok(())
    }

    /// Replaces globals among the values from `from` on, and returns the kind of a tuple of them.
    fn arguments_in(&mut self, from: usize) -> Step<B, Kind> {
        let mut kind = Kind::Object;
        let entries = self.stack.get_mut(from..).unwrap_or_default();
        let objects = self.objects.get_mut(from..).unwrap_or_default();
        for (entry, object) in entries.iter_mut().zip(objects) {
            let Kind::Global(number) = entry.kind else { continue };
            let global = self.globals.get(number as usize).ok_or(Error::Stack)?;
            *object = match self.builder.value_of(global)? {
                Some(value) => value,
                None => {
                    kind = Kind::Arguments;
                    self.builder.argument_of(global)?
                }
            };
            entry.kind = Kind::Object;
        }
        Ok(kind)
    }

    fn frozen_set(&mut self) -> Step<B> {
        let from = self.take_mark()?;
        let count = self.stack.len().saturating_sub(from) as u64;
        self.budget.allocate(SET + MEMBER * count)?;
        let mut extent = self.close_all(from)?;
        let mut comparing = 0_u64;
        for at in from..self.stack.len() {
            comparing = comparing.saturating_add(self.check_key(at, from)?);
        }
        // Comparing two sets compares each member with those of the same hash in the other set.
        let comparing = u32::try_from(comparing.saturating_mul(2)).unwrap_or(u32::MAX);
        extent.weight = extent.weight.saturating_add(comparing);
        self.hash_counts.pop_if(|counts| counts.container == from);
        self.stack.truncate(from);
        let members = self.objects.drain(from..);
        let object = self.builder.frozen_set(members)?;
        self.push(object, Entry::new(extent));
        Ok(())
    }

    // --- filling containers

    /// The index of the container below the values from `from` on.
    fn container(&self, from: usize, wanted: Accepts) -> Result<usize, Error> {
        let at = from.checked_sub(1).ok_or(Error::Stack)?;
        if at < self.marks.last().copied().unwrap_or(0) {
            return Err(Error::Stack);
        }
        match self.stack.get(at) {
            Some(entry) if matches!(entry.kind, Kind::Pending(_)) => Err(Error::Incomplete),
            Some(entry) if entry.accepts.includes(wanted) => Ok(at),
            _ => Err(Error::Unchangeable),
        }
    }

    /// Closes the values from `from` on, as parts of the container below them.
    #[inline(always)]
    fn close_into(&mut self, container: usize, from: usize) -> Step<B> {
        let mut parts = Extent::NOTHING;
        for at in (from..self.stack.len()).rev() {
            parts.include(&self.close(at)?);
        }
        let entry = self.stack.get_mut(container).ok_or(Error::Stack)?;
        entry.extent.join(&parts);
        let extent = entry.extent;
        Ok(self.check_depth(&extent)?)
    }

    fn append(&mut self, from: usize) -> Step<B> {
        let container = self.container(from, Accepts::ITEMS)?;
        let count = self.stack.len().saturating_sub(from) as u64;
        self.budget.allocate(LIST_ITEM * count)?;
        self.close_into(container, from)?;
        let to = self.object(container)?;
        self.stack.truncate(from);
        let items = self.objects.drain(from..);
        self.builder.append(&to, items)?;
        self.changed(container)
    }

    fn set_items(&mut self, from: usize) -> Step<B> {
        let container = self.container(from, Accepts::KEYS)?;
        let count = self.stack.len().saturating_sub(from);
        if !count.is_multiple_of(2) {
            return Err(Error::Stack.into());
        }
        self.budget.allocate(FIRST_KEY + KEY * (count as u64 / 2))?;
        self.close_into(container, from)?;
        for at in (from..from + count).step_by(2) {
            self.check_key(at, container)?;
        }
        let of = self.object(container)?;
        self.stack.truncate(from);
        let mut values = self.objects.drain(from..);
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            self.builder.set_item(&of, key, value)?;
        }
        drop(values);
        self.changed(container)
    }

    fn add_items(&mut self) -> Step<B> {
        let from = self.take_mark()?;
        let container = self.container(from, Accepts::MEMBERS)?;
        self.budget.allocate(MEMBER * self.stack.len().saturating_sub(from) as u64)?;
        self.close_into(container, from)?;
        for at in from..self.stack.len() {
            self.check_key(at, container)?;
        }
        let to = self.object(container)?;
        self.stack.truncate(from);
        for member in self.objects.drain(from..) {
            self.builder.add(&to, member)?;
        }
        self.changed(container)
    }
}
