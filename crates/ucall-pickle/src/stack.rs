//! Values on the stack and in the memo, and what is known of each.

use hashbrown::HashMap;

use crate::{Accepts, Weight};

/// No place in the memo.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// What a value is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    /// A tuple that holds a global which is no value: the arguments of a call.
    Arguments,
    /// The global of this number.
    Global(u32),
    /// The pending object of this number.
    Pending(u32),
}

/// What is known of a value beside the value itself.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    /// What hashing it costs, and comparing it with an equal one.
    pub(crate) weight: u32,
    /// Itself and all that it holds, each counted as often as it is reached.
    pub(crate) values: u32,
    /// The memo's place of the outermost object that was incomplete when this one came to refer
    /// to it, so that its height was not known; or `NOWHERE`.
    pub(crate) open: u32,
    /// Levels below it.
    pub(crate) height: u16,
    /// Whether contents do not add to its weight.
    pub(crate) is_weight_fixed: bool,
    /// Whether its weight is known, so that it may be hashed.
    pub(crate) is_hashable: bool,
}

impl Facts {
    pub(crate) const LEAF: Self = Self::leaf(1);

    /// Of what has no parts yet.
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

    /// Of text or bytes of this length, which are hashed once and compared often.
    pub(crate) fn of_bytes(length: usize) -> Self {
        Self::leaf(u32::try_from(1 + length / 64).unwrap_or(u32::MAX))
    }

    pub(crate) const fn without_hash(self) -> Self {
        Self { is_hashable: false, ..self }
    }

    /// Takes in a value that becomes a part of this one.
    #[inline(always)]
    pub(crate) fn include(&mut self, part: &Self) {
        self.join(&Self { height: part.height.saturating_add(1), ..*part });
    }

    /// Takes in all parts of something, which are as high as they make it.
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

    /// Of what a call made from `arguments`.
    pub(crate) fn of_call(weight: Weight, arguments: &Self) -> Self {
        let mut facts = *arguments;
        match weight {
            Weight::Fixed(weight) => {
                facts.weight = weight;
                facts.is_weight_fixed = true;
                facts.is_hashable = true;
            }
            Weight::Contents => facts.is_weight_fixed = false,
        }
        facts
    }
}

/// A value on the stack, beside its object.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) facts: Facts,
    /// What may be done to the object here, where it was made.
    pub(crate) accepts: Accepts,
    /// Its place in the memo, while it may change; or `NOWHERE`.
    pub(crate) memo: u32,
    /// Which change is its last, while there is a schedule.
    pub(crate) last_change: u32,
}

impl Entry {
    pub(crate) const fn new(facts: Facts) -> Self {
        let accepts = Accepts::NOTHING;
        Self { kind: Kind::Object, facts, accepts, memo: NOWHERE, last_change: 0 }
    }
}

/// A value in the memo.
pub(crate) struct Remembered<O> {
    pub(crate) object: O,
    pub(crate) kind: Kind,
    pub(crate) facts: Facts,
    /// Whether it still lies where it was made, and may change.
    pub(crate) is_open: bool,
}

/// An incomplete object on the stack that has a place in the memo.
pub(crate) struct Open {
    pub(crate) at: usize,
    pub(crate) dropped: Dropped,
}

/// What was dropped above an incomplete object, and was or referred to an incomplete one.
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

/// How many keys of one container have each hash.
pub(crate) struct HashCounts {
    /// Where the container lies on the stack.
    pub(crate) container: usize,
    pub(crate) alike: HashMap<i64, Alike>,
}

/// Keys of one container that have the same hash.
#[derive(Clone, Copy, Default)]
pub(crate) struct Alike {
    pub(crate) count: u32,
    /// Of all of them together.
    pub(crate) weight: u64,
}
