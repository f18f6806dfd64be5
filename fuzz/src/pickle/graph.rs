//! The objects of a model, their sizes in CPython, and the cost of hashing and comparing them.

use std::cell::Cell;
use std::collections::HashMap;

/// The kind of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A singleton.
    Constant(u8),
    Integer(i64),
    Long(Vec<u8>),
    Float(u64),
    Text(Vec<u8>),
    Bytes(Vec<u8>),
    ByteArray(usize),
    Buffer,
    View,
    /// The stand-in for a name among the arguments of a call.
    Placeholder,
    Tuple,
    FrozenSet,
    List,
    Deque,
    Dict,
    OrderedDict,
    Set,
    /// Hashed by its contents.
    Value,
    /// Hashed by its address.
    Opaque,
    /// Hashed by a number of its own, slowly.
    Computed,
}

struct Node {
    kind: Kind,
    parts: Vec<usize>,
    /// Bytes, without those of its parts.
    bytes: u64,
    /// The cached cost of tuples and frozen sets, whose parts do not change.
    hashing: Cell<Option<Option<Hashing>>>,
    /// Keys or members by their hash.
    keys: HashMap<Option<i64>, Vec<usize>>,
    keys_count: u64,
}

/// The cost of hashing an object.
#[derive(Clone, Copy)]
pub(super) struct Hashing {
    /// `None` for a hash that no other object has.
    pub(super) hash: Option<i64>,
    /// Nested calls.
    pub(super) levels: u64,
    /// In hashes of small integers.
    pub(super) work: u64,
}

#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    bytes: u64,
    /// The peak, if only outgrown tables of containers are freed.
    pub(super) bytes_peak: u64,
    compared: HashMap<(usize, usize), u64>,
}

/// Deeper comparisons are estimated.
const COMPARED_LEVELS_MAX: u32 = 500;

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(16)
}

impl Graph {
    pub(super) fn add(&mut self, kind: Kind, parts: Vec<usize>) -> usize {
        let (bytes, keys) = (bytes_of(&kind, parts.len()), HashMap::new());
        self.bytes += bytes;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        self.nodes.push(Node { kind, parts, bytes, hashing: Cell::default(), keys, keys_count: 0 });
        self.nodes.len() - 1
    }

    pub(super) fn kind(&self, node: usize) -> &Kind {
        &self.nodes[node].kind
    }

    pub(super) fn parts(&self, node: usize) -> &[usize] {
        &self.nodes[node].parts
    }

    /// The first letter of a text.
    pub(super) fn letter(&self, node: usize) -> Option<u8> {
        match &self.nodes[node].kind {
            Kind::Text(text) => text.first().copied(),
            _ => None,
        }
    }

    pub(super) fn has_placeholder(&self, tuple: usize) -> bool {
        self.nodes[tuple].parts.iter().any(|&part| self.nodes[part].kind == Kind::Placeholder)
    }

    /// Adds an item, member or key to a container, which grows as CPython's do.
    pub(super) fn put(&mut self, into: usize, part: usize) {
        let node = &mut self.nodes[into];
        node.parts.push(part);
        node.keys_count += 1;
        let (count, before) = (node.keys_count, node.bytes);
        let (now, while_growing) = match node.kind {
            Kind::List => (64 + list_bytes(count), 0),
            Kind::Deque => (768 + 528 * (count / 64), 0),
            Kind::Dict => (64 + dict_bytes(count), dict_bytes(count - 1)),
            Kind::OrderedDict => {
                let nodes = 64 * count + 24 * count;
                (256 + dict_bytes(count) + nodes, dict_bytes(count - 1))
            }
            Kind::Set | Kind::FrozenSet => (224 + set_bytes(count), set_bytes(count - 1)),
            _ => (before + 16, 0),
        };
        node.bytes = before.max(now);
        // The old table exists until the new one is filled.
        let left_behind = if now > before { while_growing } else { 0 };
        self.bytes += node.bytes - before;
        self.bytes_peak = self.bytes_peak.max(self.bytes + left_behind);
    }

    /// Adds a value or state to an object. Its key was charged for it.
    pub(super) fn put_value(&mut self, into: usize, part: usize) {
        self.nodes[into].parts.push(part);
    }

    /// Adds a key, and returns the number of keys that share its hash.
    pub(super) fn put_key(&mut self, of: usize, key: usize) -> u32 {
        let Some(hashing) = self.hashing(key) else { return 0 };
        let collisions = self.nodes[of].keys.entry(hashing.hash).or_default();
        collisions.push(key);
        if hashing.hash.is_none() { 1 } else { collisions.len() as u32 }
    }

    /// The cost of comparing the last key with those that share its hash.
    pub(super) fn comparing(&mut self, of: usize, key: usize) -> u64 {
        let Some(Hashing { hash: Some(hash), .. }) = self.hashing(key) else { return 0 };
        let collisions = self.nodes[of].keys.get(&Some(hash)).cloned().unwrap_or_default();
        let others = collisions.iter().take(collisions.len().saturating_sub(1));
        others.fold(0, |cost, &other| cost.saturating_add(self.compared(key, other, 0)))
    }

    fn compared(&mut self, one: usize, other: usize, levels: u32) -> u64 {
        if one == other {
            return 1;
        }
        let names = (one.min(other), one.max(other));
        if let Some(&cost) = self.compared.get(&names) {
            return cost;
        }
        let cost = match (&self.nodes[one].kind, &self.nodes[other].kind) {
            _ if levels > COMPARED_LEVELS_MAX => self.work(one).min(self.work(other)),
            (Kind::Tuple, Kind::Tuple) => {
                let pairs = self.nodes[one].parts.iter().zip(&self.nodes[other].parts);
                let pairs: Vec<_> = pairs.map(|(&a, &b)| (a, b)).collect();
                self.compared_all(pairs, levels)
            }
            (Kind::FrozenSet, Kind::FrozenSet)
                if self.nodes[one].parts.len() == self.nodes[other].parts.len() =>
            {
                let mut pairs = Vec::new();
                for &part in &self.nodes[one].parts {
                    let hash = self.hashing(part).and_then(|it| it.hash);
                    let collisions = self.nodes[other].keys.get(&hash).into_iter().flatten();
                    pairs.extend(collisions.filter(|_| hash.is_some()).map(|&it| (part, it)));
                }
                self.compared_all(pairs, levels)
            }
            (a, b) if std::mem::discriminant(a) == std::mem::discriminant(b) => {
                self.work(one).min(self.work(other))
            }
            _ => 1,
        };
        self.compared.insert(names, cost);
        cost
    }

    fn compared_all(&mut self, pairs: Vec<(usize, usize)>, levels: u32) -> u64 {
        let costs = pairs.into_iter();
        costs.fold(1, |cost, (a, b)| cost.saturating_add(self.compared(a, b, levels + 1)))
    }

    fn work(&self, node: usize) -> u64 {
        self.hashing(node).map_or(1, |it| it.work)
    }

    /// The cost of hashing an object now, or `None` if it is not hashable.
    pub(super) fn hashing(&self, node: usize) -> Option<Hashing> {
        let of_leaf = |hash, work| Some(Hashing { hash, levels: 0, work });
        match &self.nodes[node].kind {
            Kind::Constant(_) => of_leaf(None, 1),
            &Kind::Integer(value) if value.abs() < 1 << 16 => of_leaf(None, 1),
            &Kind::Integer(value) => of_leaf(Some(value % 5), 1),
            Kind::Long(bytes) => {
                let sum: i64 = bytes.iter().map(|&byte| i64::from(byte)).sum();
                of_leaf(Some(sum % 5), 1 + bytes.len() as u64 / 8)
            }
            &Kind::Float(bits) => of_leaf(Some((bits % 7) as i64), 1),
            Kind::Text(bytes) | Kind::Bytes(bytes) => of_leaf(None, 1 + bytes.len() as u64 / 64),
            Kind::Tuple | Kind::FrozenSet => {
                let known = &self.nodes[node].hashing;
                if known.get().is_none() {
                    known.set(Some(self.hashing_of_parts(node)));
                }
                known.get()?
            }
            Kind::Value => self.hashing_of_value(node),
            Kind::Opaque => of_leaf(Some(1000 + node as i64), 1),
            Kind::Computed => of_leaf(Some(3), 64),
            _ => None,
        }
    }

    fn hashing_of_parts(&self, node: usize) -> Option<Hashing> {
        let mut whole = Hashing { hash: Some(0), levels: 0, work: 1 };
        for &part in &self.nodes[node].parts {
            let hashing = self.hashing(part)?;
            whole.levels = whole.levels.max(hashing.levels);
            whole.work = whole.work.saturating_add(hashing.work);
            let sum = whole.hash.unwrap_or(0) + hashing.hash.unwrap_or(1);
            whole.hash = Some(sum % 3);
        }
        Some(Hashing { levels: whole.levels + 1, ..whole })
    }

    /// Hashes an instance by its contents, hashable or not.
    fn hashing_of_value(&self, node: usize) -> Option<Hashing> {
        let walk = self.walk(node, |kind| matches!(kind, Kind::Opaque | Kind::Computed));
        let (levels, work) = walk.expect("hashed while it holds itself");
        Some(Hashing { hash: Some(9), levels, work })
    }

    /// The levels below an object and the number of values in it, counted once per reference, or
    /// `None` if it contains itself.
    pub(super) fn extent(&self, node: usize) -> Option<(u64, u64)> {
        self.walk(node, |_| false)
    }

    fn walk(&self, root: usize, is_leaf: impl Fn(&Kind) -> bool) -> Option<(u64, u64)> {
        let mut done: HashMap<usize, (u64, u64)> = HashMap::new();
        let mut is_on_way = vec![false; self.nodes.len()];
        let mut way = vec![(root, 0)];
        while let Some((node, next)) = way.last_mut() {
            let parts = match is_leaf(&self.nodes[*node].kind) && *node != root {
                true => &[][..],
                false => &self.nodes[*node].parts,
            };
            is_on_way[*node] = true;
            if let Some(&part) = parts.get(*next) {
                *next += 1;
                if is_on_way[part] {
                    return None;
                }
                if !done.contains_key(&part) {
                    way.push((part, 0));
                }
                continue;
            }
            let extents = parts.iter().filter_map(|part| done.get(part));
            let whole = extents.fold((0, 1_u64), |(height, values), part| {
                (height.max(part.0 + 1), values.saturating_add(part.1))
            });
            is_on_way[*node] = false;
            done.insert(*node, whole);
            way.pop();
        }
        done.get(&root).copied()
    }
}

/// Bytes of a new object with `parts` parts on a 64-bit machine, with the collector's header.
fn bytes_of(kind: &Kind, parts: usize) -> u64 {
    match kind {
        Kind::Constant(_) => 0,
        Kind::Integer(value) if (-5..=256).contains(value) => 0,
        Kind::Integer(_) | Kind::Float(_) => 32,
        Kind::Long(bytes) => rounded(24 + 4 * (8 * bytes.len() as u64).div_ceil(30)),
        Kind::Text(utf8) => text_bytes(utf8),
        Kind::Bytes(bytes) => rounded(33 + bytes.len() as u64),
        Kind::ByteArray(length) => 64 + rounded(1 + *length as u64),
        Kind::Buffer => 0,
        Kind::View => 256,
        Kind::Placeholder => 32,
        Kind::Tuple if parts == 0 => 0,
        Kind::Tuple => rounded(40 + 8 * parts as u64),
        Kind::List | Kind::Dict => 64,
        Kind::Set | Kind::FrozenSet => 224,
        Kind::OrderedDict => 256,
        Kind::Deque => 768,
        Kind::Value | Kind::Opaque | Kind::Computed => 128,
    }
}

fn text_bytes(utf8: &[u8]) -> u64 {
    let characters = utf8.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() as u64;
    match utf8.iter().max() {
        None | Some(..0x80) => rounded(49 + characters),
        Some(..0xc4) => rounded(73 + characters),
        Some(..0xf0) => rounded(72 + 2 * (characters + 1)),
        Some(_) => rounded(72 + 4 * (characters + 1)),
    }
}

fn list_bytes(count: u64) -> u64 {
    let mut places = 0;
    while places < count {
        places = (places + 1 + ((places + 1) >> 3) + 6) & !3;
    }
    8 * places
}

fn dict_bytes(count: u64) -> u64 {
    if count == 0 {
        return 0;
    }
    let mut size = 8_u64;
    while size * 2 / 3 < count {
        size = (size * 2 / 3 * 3).next_power_of_two();
    }
    let index = if size < 256 { 1 } else { 2 };
    rounded(32 + index * size + 24 * (size * 2 / 3))
}

fn set_bytes(count: u64) -> u64 {
    let mut size = 8_u64;
    while count * 5 >= (size - 1) * 3 {
        let used = ((size - 1) * 3).div_ceil(5);
        size = (if used > 50_000 { used * 2 } else { used * 4 } + 1).next_power_of_two();
    }
    if size == 8 { 0 } else { 16 * size }
}
