//! Reads pickles as data.
//!
//! A pickle is a program for a stack machine: it names functions, calls them and changes objects.
//! This reader runs the operations that CPython's C pickler writes at protocol 5, and refuses
//! all others. It knows neither Python nor any type: a [`Builder`] makes the objects, and
//! decides which names exist. The reader decides three things that hold for every builder:
//!
//! - **What an operation may change.** Items, members and state go only into an object that this
//!   pickle made and that still lies where it was made on the stack. An object that was consumed,
//!   or was fetched from the memo, never changes again.
//! - **What may be referred to before it is complete.** Containers that can hold themselves, and
//!   objects whose state follows; nothing else.
//! - **What it may cost.** Bytes are charged before they are allocated, hashing before a key is
//!   hashed, and nesting before a level is added.
//!
//! It imports nothing of ucall.
#![forbid(unsafe_code)]

mod budget;
mod calls;
mod error;
mod hashing;
mod memo;
mod operation;
mod reader;
mod schedule;
mod stack;

pub use budget::{Budget, Limits};
pub use error::Error;
pub use reader::Reader;

/// Makes the objects of a pickle.
///
/// Every method may fail, which ends the reading.
pub trait Builder {
    /// An object that was made. A clone is the same object.
    type Object: Clone;
    /// What a name stands for: something to call, a class, or a value.
    type Global: Clone;
    /// An object whose making waits for its state.
    type Pending;
    /// Why reading ends.
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
    /// The next of the buffers that travel beside the pickle.
    fn next_buffer(&mut self) -> Result<Self::Object, Self::Error>;
    /// A view of a buffer that cannot be written through.
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

    /// What a module's name stands for. `module` and `name` may be any objects.
    fn global(
        &mut self,
        module: &Self::Object,
        name: &Self::Object,
    ) -> Result<Self::Global, Self::Error>;
    /// A global as a value in the data; `None` where it is only to be called.
    fn value_of(&mut self, global: &Self::Global) -> Result<Option<Self::Object>, Self::Error>;
    /// A global that stands among the arguments of a call, and nowhere else.
    fn argument_of(&mut self, global: &Self::Global) -> Result<Self::Object, Self::Error>;
    /// Whether globals that are no values may stand among its arguments.
    fn takes_globals(&self, global: &Self::Global) -> bool;
    /// Calls a global with the items of a tuple. The tuple holds so many `values`, each counted as
    /// often as it is reached.
    fn call(
        &mut self,
        global: &Self::Global,
        arguments: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// Makes an instance of a global by its `__new__`, with keyword arguments if there are any.
    fn instance(
        &mut self,
        global: &Self::Global,
        arguments: &Self::Object,
        keywords: Option<&Self::Object>,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// Makes the object that waited for this state, which holds so many `values`.
    fn complete(
        &mut self,
        pending: Self::Pending,
        state: &Self::Object,
        values: u32,
        budget: &mut Budget,
    ) -> Result<Made<Self>, Self::Error>;
    /// The object that a persistent id stands for.
    fn persistent(&mut self, id: &Self::Object) -> Result<Self::Object, Self::Error>;

    /// How a key or member is hashed; fails where it cannot be.
    fn hash(&mut self, key: &Self::Object) -> Result<Hash, Self::Error>;
    /// Called before keys or members of one hash are compared.
    fn before_comparing(&mut self) -> Result<(), Self::Error>;
    /// Called every few thousand operations, to let other threads run.
    fn pause(&mut self) -> Result<(), Self::Error>;
}

/// What a call has come to.
pub struct Made<B: Builder + ?Sized> {
    /// What was made.
    pub product: Product<B>,
    /// What may still be done to it while it lies on the stack.
    pub accepts: Accepts,
    /// What hashing it, and comparing it with an equal one, costs: 1 is a small integer.
    pub weight: Weight,
}

/// The result of a call.
pub enum Product<B: Builder + ?Sized> {
    /// An object.
    Object(B::Object),
    /// An object that is made when its state comes.
    Pending(B::Pending),
    /// Another global, to be called in its turn.
    Global(B::Global),
}

/// What operations may do to an object that lies where it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepts(u8);

impl Accepts {
    /// Nothing: it is complete.
    pub const NOTHING: Self = Self(0);
    /// Items are appended.
    pub const ITEMS: Self = Self(1);
    /// Keys are set.
    pub const KEYS: Self = Self(2);
    /// Members are added.
    pub const MEMBERS: Self = Self(4);
    /// State is set, once.
    pub const STATE: Self = Self(8);
    /// Items, keys and state: an instance of somebody's class.
    pub const INSTANCE: Self = Self(1 | 2 | 8);

    fn includes(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// What hashing an object costs, in hashes of small integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// This much, whatever it holds: it is hashed by its address, or by a number it keeps.
    Fixed(u32),
    /// As much as all that it was made of, and its state.
    Contents,
}

/// How a key or member is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// Unlike that of any other key: with a secret, or one to one.
    Distinct,
    /// As this number, which others may share.
    Shared(i64),
}
