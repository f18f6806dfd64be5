//! Reads pickles as data.
//!
//! A pickle is a program for a stack machine: it looks up functions by name, calls them and
//! changes objects. This reader runs the operations that CPython's C pickler writes at protocol 5
//! and refuses all others. It does not know Python or any type: a [`Builder`] makes the objects and
//! decides which names exist. The reader guarantees three properties for every builder:
//!
//! - **Changes.** An operation adds items, members or state only to an object that this pickle
//!   made and that is still on the stack where it was made. An object that was consumed, or was
//!   read from the memo, never changes again.
//! - **References.** The only incomplete objects that a pickle can refer to are containers that may
//!   contain themselves, and objects whose state follows.
//! - **Cost.** The reader charges bytes before they are allocated, hashing before a key is hashed,
//!   and nesting before a level is added.
//!
//! It imports nothing of ucall.
#![forbid(unsafe_code)]

mod budget;
mod calls;
mod depth;
mod error;
mod hashing;
mod last_changes;
mod memo;
mod names;
mod operation;
mod reader;
mod stack;

pub use budget::{Budget, Limits};
pub use depth::nests_deeper;
pub use error::Error;
pub use names::visit_names;
pub use reader::Reader;

/// Makes the objects of a pickle. An error of any method ends the reading.
pub trait Builder {
    /// An object that was made. A clone is the same object.
    type Object: Clone;
    /// The result of a name lookup: a callable, a class or a value.
    type Global: Clone;
    /// An object that can be made only when its state is read.
    type Pending;
    /// The error that ends the reading.
    type Error: From<Error>;

    /// `None`.
    fn none(&mut self) -> Self::Object;
    /// `True` or `False`.
    fn boolean(&mut self, value: bool) -> Self::Object;
    /// An `int` of up to 64 bits.
    fn integer(&mut self, value: i64) -> Result<Self::Object, Self::Error>;
    /// An `int` of any size: two's complement, the lowest byte first.
    fn long(&mut self, bytes: &[u8]) -> Result<Self::Object, Self::Error>;
    /// A `float`.
    fn float(&mut self, value: f64) -> Result<Self::Object, Self::Error>;
    /// A `str` of UTF-8 in which surrogates may stand alone.
    fn text(&mut self, utf8: &[u8]) -> Result<Self::Object, Self::Error>;
    /// A `bytes`.
    fn bytes(&mut self, bytes: &[u8]) -> Result<Self::Object, Self::Error>;
    /// A `bytearray`.
    fn byte_array(&mut self, bytes: &[u8]) -> Result<Self::Object, Self::Error>;
    /// The next out-of-band buffer.
    fn next_buffer(&mut self) -> Result<Self::Object, Self::Error>;
    /// A read-only view of a buffer.
    fn read_only(&mut self, buffer: Self::Object) -> Result<Self::Object, Self::Error>;

    /// A `tuple` of these items.
    fn tuple(
        &mut self,
        items: impl ExactSizeIterator<Item = Self::Object>,
    ) -> Result<Self::Object, Self::Error>;
    /// A `frozenset` of these members.
    fn frozen_set(
        &mut self,
        members: impl ExactSizeIterator<Item = Self::Object>,
    ) -> Result<Self::Object, Self::Error>;
    /// An empty `list`.
    fn list(&mut self) -> Result<Self::Object, Self::Error>;
    /// An empty `dict`.
    fn dict(&mut self) -> Result<Self::Object, Self::Error>;
    /// An empty `set`.
    fn set(&mut self) -> Result<Self::Object, Self::Error>;

    /// Appends items to an object made with [`Accepts::ITEMS`].
    fn append(
        &mut self,
        to: &Self::Object,
        items: impl ExactSizeIterator<Item = Self::Object>,
    ) -> Result<(), Self::Error>;
    /// Sets one key of an object made with [`Accepts::KEYS`].
    fn set_item(
        &mut self,
        of: &Self::Object,
        key: Self::Object,
        value: Self::Object,
    ) -> Result<(), Self::Error>;
    /// Adds a member to an object made with [`Accepts::MEMBERS`].
    fn add(&mut self, to: &Self::Object, member: Self::Object) -> Result<(), Self::Error>;
    /// Sets the state of an object made with [`Accepts::STATE`].
    fn set_state(
        &mut self,
        of: &Self::Object,
        state: &Self::Object,
        budget: &mut Budget,
    ) -> Result<(), Self::Error>;

    /// Looks up a name in a module. Both may be objects of any type.
    fn global(
        &mut self,
        module: &Self::Object,
        name: &Self::Object,
    ) -> Result<Self::Global, Self::Error>;
    /// A global as a value, or `None` if a pickle may only call it.
    fn value_of(&mut self, global: &Self::Global) -> Result<Option<Self::Object>, Self::Error>;
    /// The stand-in for a global that is not a value, among the arguments of a call.
    fn argument_of(&mut self, global: &Self::Global) -> Result<Self::Object, Self::Error>;
    /// Whether it accepts such stand-ins as arguments.
    fn takes_globals(&self, global: &Self::Global) -> bool;
    /// Calls a global with the items of a tuple. `values` is the number of values in the tuple;
    /// shared ones count once per reference.
    fn call(
        &mut self,
        global: &Self::Global,
        arguments: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// Makes an instance by the global's `__new__`.
    fn instance(
        &mut self,
        global: &Self::Global,
        arguments: &Self::Object,
        keywords: Option<&Self::Object>,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// Makes a pending object from its state, which contains `values` values.
    fn complete(
        &mut self,
        pending: Self::Pending,
        state: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// The object of a persistent id.
    fn persistent(&mut self, id: &Self::Object) -> Result<Self::Object, Self::Error>;

    /// The hash of a key or member.
    fn hash(&mut self, key: &Self::Object) -> Result<Hash, Self::Error>;
    /// Called before keys or members that share a hash are compared.
    fn before_comparing(&mut self) -> Result<(), Self::Error>;
    /// Called once per few thousand operations, to let other threads run.
    fn pause(&mut self) -> Result<(), Self::Error>;
}

/// The result of a call, with its cost.
pub struct Made<B: Builder + ?Sized> {
    /// The result itself.
    pub product: Product<B>,
    /// The operations that may change it while it is on the stack.
    pub accepts: Accepts,
    /// The cost of hashing it and of comparing it with an equal value; 1 for a small integer.
    pub weight: Weight,
}

/// The result of a call.
pub enum Product<B: Builder + ?Sized> {
    /// An object.
    Object(B::Object),
    /// An object that is made when its state is read.
    Pending(B::Pending),
    /// Another global.
    Global(B::Global),
}

/// The operations that may change an object while it is on the stack where it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts(u8);

impl Accepts {
    /// None: the object is complete.
    pub const NOTHING: Self = Self(0);
    /// Items are appended.
    pub const ITEMS: Self = Self(1);
    /// Keys are set.
    pub const KEYS: Self = Self(2);
    /// Members are added.
    pub const MEMBERS: Self = Self(4);
    /// State is set, once.
    pub const STATE: Self = Self(8);
    /// Items, keys and state: an instance of a class that the program allows.
    pub const INSTANCE: Self = Self(1 | 2 | 8);

    /// All of them.
    pub(crate) const ANY: Self = Self(1 | 2 | 4 | 8);

    fn includes(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// The cost of hashing an object, in hashes of small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Independent of its contents, for objects that are hashed by address or cache their hash.
    Fixed(u32),
    /// The sum over its arguments and its state.
    Contents,
}

/// The hash of a key or member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// A sender cannot choose other keys with this hash: it is keyed by a secret, or one to one.
    Distinct,
    /// This number, which other keys may share.
    Shared(i64),
}
