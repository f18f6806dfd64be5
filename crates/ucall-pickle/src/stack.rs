//! Entries of the stack and the memo.

use hashbrown::HashMap;

use crate::{Accepts, Weight};

/// No index in the memo.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The kind of a stack value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    /// A tuple with a global that is not a value; only a call accepts it as arguments.
    Arguments,
    /// An index into the reader's globals.
    Global(u32),
    /// An index into the reader's pending objects.
    Pending(u32),
}

/// How much a value costs to hash, how many values it contains and how deep it nests.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    /// The cost of hashing it and of comparing it with an equal value.
    pub(crate) weight: u32,
    /// Itself and all values in it; shared values count once per reference.
    pub(crate) values: u32,
    /// The memo index of the outermost incomplete object that this value refers to, or `NOWHERE`.
    /// The height of such a value is not final.
    pub(crate) open: u32,
    /// Levels of nesting below it.
    pub(crate) height: u16,
    /// Whether its contents add nothing to its weight.
    pub(crate) is_weight_fixed: bool,
    /// Whether its weight is final, so that it may be hashed.
    pub(crate) is_hashable: bool,
}

impl Extent {
    pub(crate) const LEAF: Self = Self::leaf(1);

    /// The sum over no parts.
    pub(crate) const NOTHING: Self = Self { values: 0, ..Self::leaf(0) };

    pub(crate) const fn leaf(weight: u32) -> Self {
        Self {
            weight,
            values: 1,
            open: NOWHERE,
            height: 0,
            is_weight_fixed: false,
            is_hashable: true,
        }
    }

    /// Text or bytes of this length. CPython caches their hash, so comparisons dominate.
    pub(crate) fn of_bytes(length: usize) -> Self {
        Self::leaf(u32::try_from(1 + length / 64).unwrap_or(u32::MAX))
    }

    pub(crate) const fn without_hash(self) -> Self {
        Self { is_hashable: false, ..self }
    }

    /// Adds a direct part.
    #[inline(always)]
    pub(crate) fn include(&mut self, part: &Self) {
        self.join(&Self { height: part.height.saturating_add(1), ..*part });
    }

    /// Adds the sum over several parts.
    #[inline(always)]
    pub(crate) fn join(&mut self, parts: &Self) {
        if !self.is_weight_fixed {
            self.weight = self.weight.saturating_add(parts.weight);
            self.is_hashable &= parts.is_hashable;
        }
        self.values = self.values.saturating_add(parts.values);
        self.height = self.height.max(parts.height);
        self.open = self.open.min(parts.open);
    }

    /// The extent of the result of a call.
    pub(crate) fn of_call(weight: Weight, arguments: &Self) -> Self {
        let mut extent = *arguments;
        match weight {
            Weight::Fixed(weight) => {
                extent.weight = weight;
                extent.is_weight_fixed = true;
                extent.is_hashable = true;
            }
            Weight::Contents => extent.is_weight_fixed = false,
        }
        extent
    }
}

/// The reader's data about one stack value; the object itself is in `Reader::objects`.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) extent: Extent,
    /// The operations that may change the object while it stays here.
    pub(crate) accepts: Accepts,
    /// Its memo index while it may change, or `NOWHERE`.
    pub(crate) memo: u32,
    /// The number of its last change, after a look-ahead.
    pub(crate) last_change: u32,
}

impl Entry {
    pub(crate) const fn new(extent: Extent) -> Self {
        let accepts = Accepts::NOTHING;
        Self { kind: Kind::Object, extent, accepts, memo: NOWHERE, last_change: 0 }
    }
}

/// A value in the memo.
pub(crate) struct MemoEntry<O> {
    pub(crate) object: O,
    pub(crate) kind: Kind,
    pub(crate) extent: Extent,
    /// Whether the object is still on the stack and may change.
    pub(crate) is_open: bool,
}

/// An incomplete object that is on the stack and in the memo.
pub(crate) struct Open {
    pub(crate) at: usize,
    pub(crate) dropped: Dropped,
}

/// The extent of values that were popped above an incomplete object and refer to incomplete ones.
#[derive(Clone, Copy, Default)]
pub(crate) struct Dropped {
    pub(crate) height: u16,
    pub(crate) values: u32,
}

impl Dropped {
    pub(crate) fn join(&mut self, other: Self) {
        self.height = self.height.max(other.height);
        self.values = self.values.saturating_add(other.values);
    }
}

/// Counts the keys of one container by hash.
pub(crate) struct HashCounts {
    /// The container's index on the stack.
    pub(crate) container: usize,
    pub(crate) collisions: HashMap<i64, Collisions>,
}

/// The keys of one container that share a hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct Collisions {
    pub(crate) count: u32,
    /// The sum of their weights.
    pub(crate) weight: u64,
}
