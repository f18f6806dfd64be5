//! A builder that makes models. Objects are indices into an arena, so that cycles leak nothing.

use std::cell::RefCell;
use std::rc::Rc;

use ucall_pickle::{Accepts, Budget, Builder, Error, Hash, Limits, Made, Product, Weight};

use super::graph::{Graph, Kind};

/// Bytes and hashes that a pickle of any length may use.
const BASE: u64 = 1 << 20;
const VALUES: u64 = 1 << 24;
/// Operations between two pauses. Each makes at most one leaf.
const LEAVES_WITHOUT_PAUSE: u32 = 4096;
const SMALL_OBJECT: u64 = 256;
const DEQUE: u64 = 768;

/// A reference to a node.
///
/// The reader clones the builder's reference for the memo, clones the memo's to push it again, and
/// clones the one on the stack to change the object there. So the number of copies tells through
/// which reference an object is changed, and the drop of the first one that it was consumed.
pub(super) struct Object {
    pub(super) node: usize,
    /// The number of clones between the builder's reference and this one.
    copies: u8,
    consumed: Rc<RefCell<Vec<bool>>>,
}

impl Clone for Object {
    fn clone(&self) -> Self {
        let (node, copies) = (self.node, self.copies.saturating_add(1));
        Self { node, copies, consumed: self.consumed.clone() }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if self.copies == 0 {
            self.consumed.borrow_mut()[self.node] = true;
        }
    }
}

/// The object that a name resolves to, by its first letter.
#[derive(Clone, Copy)]
pub(super) enum Global {
    Callable(u8),
    /// Also a value.
    Value,
}

/// Makes objects, and checks the reader's calls.
pub(super) struct Model {
    graph: Graph,
    consumed: Rc<RefCell<Vec<bool>>>,
    /// The operations that each object accepts.
    accepts: Vec<Accepts>,
    limits: Limits,
    bytes_max: u64,
    values_max: u64,
    /// Hashes and comparisons so far, in hashes of small integers.
    hashing: u64,
    leaves: u32,
}

type Built<T = Object> = Result<T, Error>;

impl Model {
    pub(super) fn new(limits: Limits, pickle_bytes: usize) -> Self {
        let expanded = u64::from(limits.expansion_max) * pickle_bytes as u64;
        Self {
            graph: Graph::default(),
            consumed: Rc::default(),
            accepts: Vec::new(),
            limits,
            bytes_max: BASE + expanded,
            values_max: VALUES + expanded,
            hashing: 0,
            leaves: 0,
        }
    }

    fn make(&mut self, kind: Kind, parts: Vec<usize>, accepts: Accepts) -> Object {
        let node = self.graph.add(kind, parts);
        self.accepts.push(accepts);
        self.consumed.borrow_mut().push(false);
        self.check_bytes();
        Object { node, copies: 0, consumed: self.consumed.clone() }
    }

    fn leaf(&mut self, kind: Kind) -> Built {
        self.leaves += 1;
        assert!(self.leaves <= LEAVES_WITHOUT_PAUSE, "no other thread ran");
        Ok(self.make(kind, Vec::new(), Accepts::NOTHING))
    }

    fn check_bytes(&self) {
        let bytes = self.graph.bytes_peak;
        assert!(bytes <= self.bytes_max, "{bytes} bytes, where {} may be", self.bytes_max);
    }

    /// Checks that an operation may change this object.
    fn check_changed(&self, object: &Object, by: Accepts) {
        let accepts = self.accepts[object.node];
        let is_accepted = match accepts {
            Accepts::INSTANCE => by != Accepts::MEMBERS,
            alone => by == alone,
        };
        assert!(is_accepted, "{by:?} of what accepts {accepts:?}");
        assert!(object.copies <= 1, "changed by way of the memo");
        assert!(!self.consumed.borrow()[object.node], "changed after it was consumed");
    }

    /// Counts a key, which is hashed by the reader and again by the container.
    fn put_key(&mut self, of: usize, key: usize) -> Built<()> {
        let collisions = self.graph.put_key(of, key);
        assert!(collisions <= self.limits.collisions_max, "{collisions} keys of one hash");
        self.hashing = self.hashing.saturating_add(self.graph.comparing(of, key));
        self.check_hashing();
        Ok(())
    }

    fn check_hashing(&self) {
        let (spent, most) = (self.hashing, self.bytes_max);
        assert!(spent <= most, "{spent} hashes and comparisons, where {most} may be");
    }

    /// Checks the depth and the number of values of the result.
    pub(super) fn check_returned(&self, object: &Object) {
        let Some((height, values)) = self.graph.extent(object.node) else { return };
        assert!(height <= u64::from(self.limits.depth_max), "{height} levels");
        assert!(values <= self.values_max, "{values} values");
    }

    /// Makes an object from its arguments.
    fn made(&mut self, kind: Kind, from: &Object, accepts: Accepts, weight: Weight) -> Made<Self> {
        let parts = self.graph.parts(from.node).to_vec();
        Made { product: Product::Object(self.make(kind, parts, accepts)), accepts, weight }
    }
}

fn nodes(items: impl Iterator<Item = Object>) -> Vec<usize> {
    items.map(|item| item.node).collect()
}

impl Builder for Model {
    type Object = Object;
    type Global = Global;
    type Pending = ();
    type Error = Error;

    fn none(&mut self) -> Object {
        self.make(Kind::Constant(0), Vec::new(), Accepts::NOTHING)
    }

    fn boolean(&mut self, value: bool) -> Object {
        self.make(Kind::Constant(1 + u8::from(value)), Vec::new(), Accepts::NOTHING)
    }

    fn integer(&mut self, value: i64) -> Built {
        self.leaf(Kind::Integer(value))
    }

    fn long(&mut self, bytes: &[u8]) -> Built {
        self.leaf(Kind::Long(bytes.to_vec()))
    }

    fn float(&mut self, value: f64) -> Built {
        self.leaf(Kind::Float(value.to_bits()))
    }

    fn text(&mut self, utf8: &[u8]) -> Built {
        self.leaf(Kind::Text(utf8.to_vec()))
    }

    fn bytes(&mut self, bytes: &[u8]) -> Built {
        self.leaf(Kind::Bytes(bytes.to_vec()))
    }

    fn byte_array(&mut self, bytes: &[u8]) -> Built {
        self.leaf(Kind::ByteArray(bytes.len()))
    }

    fn next_buffer(&mut self) -> Built {
        self.leaf(Kind::Buffer)
    }

    fn read_only(&mut self, _buffer: Object) -> Built {
        Ok(self.make(Kind::View, Vec::new(), Accepts::NOTHING))
    }

    fn tuple(&mut self, items: impl ExactSizeIterator<Item = Object>) -> Built {
        let items = nodes(items);
        Ok(self.make(Kind::Tuple, items, Accepts::NOTHING))
    }

    fn frozen_set(&mut self, members: impl ExactSizeIterator<Item = Object>) -> Built {
        let set = self.make(Kind::FrozenSet, Vec::new(), Accepts::NOTHING);
        for member in members {
            self.put_key(set.node, member.node)?;
            self.graph.put(set.node, member.node);
            self.check_bytes();
        }
        Ok(set)
    }

    fn list(&mut self) -> Built {
        Ok(self.make(Kind::List, Vec::new(), Accepts::ITEMS))
    }

    fn dict(&mut self) -> Built {
        Ok(self.make(Kind::Dict, Vec::new(), Accepts::KEYS))
    }

    fn set(&mut self) -> Built {
        Ok(self.make(Kind::Set, Vec::new(), Accepts::MEMBERS))
    }

    fn append(&mut self, to: &Object, items: impl ExactSizeIterator<Item = Object>) -> Built<()> {
        self.check_changed(to, Accepts::ITEMS);
        for item in items {
            self.graph.put(to.node, item.node);
        }
        self.check_bytes();
        Ok(())
    }

    fn set_item(&mut self, of: &Object, key: Object, value: Object) -> Built<()> {
        self.check_changed(of, Accepts::KEYS);
        self.put_key(of.node, key.node)?;
        self.graph.put(of.node, key.node);
        self.graph.put_value(of.node, value.node);
        self.check_bytes();
        Ok(())
    }

    fn add(&mut self, to: &Object, member: Object) -> Built<()> {
        self.check_changed(to, Accepts::MEMBERS);
        self.put_key(to.node, member.node)?;
        self.graph.put(to.node, member.node);
        self.check_bytes();
        Ok(())
    }

    fn set_state(&mut self, of: &Object, state: &Object, _budget: &mut Budget) -> Built<()> {
        self.check_changed(of, Accepts::STATE);
        self.accepts[of.node] = Accepts::NOTHING;
        self.graph.put_value(of.node, state.node);
        Ok(())
    }

    fn global(&mut self, module: &Object, name: &Object) -> Built<Global> {
        match (self.graph.letter(module.node), self.graph.letter(name.node)) {
            (Some(b'v'), Some(_)) => Ok(Global::Value),
            (Some(_), Some(letter)) => Ok(Global::Callable(letter)),
            _ => Err(Error::NotCallable),
        }
    }

    fn value_of(&mut self, global: &Global) -> Built<Option<Object>> {
        Ok(match global {
            Global::Value => Some(self.make(Kind::Constant(3), Vec::new(), Accepts::NOTHING)),
            Global::Callable(_) => None,
        })
    }

    fn argument_of(&mut self, global: &Global) -> Built {
        match global {
            Global::Callable(b'a'..=b'k') => self.leaf(Kind::Placeholder),
            _ => Err(Error::NotValue),
        }
    }

    fn takes_globals(&self, global: &Global) -> bool {
        matches!(global, Global::Callable(b'a'))
    }

    fn call(
        &mut self,
        global: &Global,
        arguments: &Object,
        values: u32,
        budget: &mut Budget,
    ) -> Built<Made<Self>> {
        let Global::Callable(letter) = *global else { return Err(Error::NotCallable) };
        if self.graph.kind(arguments.node) != &Kind::Tuple {
            return Err(Error::NotCallable);
        }
        assert!(values as usize > self.graph.parts(arguments.node).len());
        if letter != b'a' {
            assert!(!self.graph.has_placeholder(arguments.node), "a name in a value");
        }
        budget.allocate(SMALL_OBJECT)?;
        let weighs_contents = Weight::Contents;
        Ok(match letter {
            b'a' => self.made(Kind::Opaque, arguments, Accepts::NOTHING, Weight::Fixed(1)),
            b'b' => self.made(Kind::Value, arguments, Accepts::NOTHING, weighs_contents),
            b'c' => self.made(Kind::OrderedDict, arguments, Accepts::KEYS, weighs_contents),
            b'd' => {
                budget.allocate(DEQUE)?;
                self.made(Kind::Deque, arguments, Accepts::ITEMS, weighs_contents)
            }
            b'e' => self.made(Kind::Opaque, arguments, Accepts::STATE, Weight::Fixed(1)),
            b'f' => self.made(Kind::Set, arguments, Accepts::MEMBERS, weighs_contents),
            b'g' => self.instance_of(arguments, letter)?,
            b'h' => self.made(Kind::Computed, arguments, Accepts::NOTHING, Weight::Fixed(64)),
            b'i' => Made {
                product: Product::Global(Global::Callable(b'b')),
                accepts: Accepts::NOTHING,
                weight: weighs_contents,
            },
            b'j' => Made {
                product: Product::Pending(()),
                accepts: Accepts::NOTHING,
                weight: weighs_contents,
            },
            _ => return Err(Error::NotCallable),
        })
    }

    fn instance(
        &mut self,
        global: &Global,
        arguments: &Object,
        keywords: Option<&Object>,
        budget: &mut Budget,
    ) -> Built<Made<Self>> {
        if self.graph.kind(arguments.node) != &Kind::Tuple {
            return Err(Error::NotCallable);
        }
        if keywords.is_some_and(|it| self.graph.kind(it.node) != &Kind::Dict) {
            return Err(Error::NotCallable);
        }
        assert!(!self.graph.has_placeholder(arguments.node), "a name in a value");
        budget.allocate(SMALL_OBJECT)?;
        match *global {
            Global::Callable(letter) => self.instance_of(arguments, letter),
            Global::Value => Err(Error::NotCallable),
        }
    }

    fn complete(
        &mut self,
        (): (),
        state: &Object,
        _values: u32,
        budget: &mut Budget,
    ) -> Built<Made<Self>> {
        budget.allocate(SMALL_OBJECT)?;
        let (accepts, weight) = (Accepts::NOTHING, Weight::Contents);
        let object = self.make(Kind::Value, vec![state.node], accepts);
        Ok(Made { product: Product::Object(object), accepts, weight })
    }

    fn persistent(&mut self, _id: &Object) -> Built {
        self.leaf(Kind::Constant(4))
    }

    fn hash(&mut self, key: &Object) -> Built<Hash> {
        let Some(cost) = self.graph.hashing(key.node) else { return Err(Error::Unhashable) };
        assert!(cost.levels <= u64::from(self.limits.depth_max), "{} levels hashed", cost.levels);
        self.hashing = self.hashing.saturating_add(2 * cost.work);
        self.check_hashing();
        Ok(match cost.hash {
            Some(hash) => Hash::Shared(hash),
            None => Hash::Distinct,
        })
    }

    fn before_comparing(&mut self) -> Built<()> {
        Ok(())
    }

    fn pause(&mut self) -> Built<()> {
        self.leaves = 0;
        Ok(())
    }
}

impl Model {
    fn instance_of(&mut self, arguments: &Object, letter: u8) -> Built<Made<Self>> {
        Ok(match letter {
            b'g' => self.made(Kind::Opaque, arguments, Accepts::INSTANCE, Weight::Fixed(1)),
            b'k' => self.made(Kind::Value, arguments, Accepts::INSTANCE, Weight::Contents),
            b'l' => self.made(Kind::Value, arguments, Accepts::NOTHING, Weight::Contents),
            b'j' => Made {
                product: Product::Pending(()),
                accepts: Accepts::NOTHING,
                weight: Weight::Contents,
            },
            _ => return Err(Error::NotCallable),
        })
    }
}
