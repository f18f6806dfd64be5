//! Checks the result of a tool against the JSON Schema that the tool promises (2020-12).
//!
//! It knows what the schemas of annotations say of a value's form: types, members, items, enums,
//! alternatives and references. It ignores what they say of values of one type, such as `minimum`,
//! `pattern` and `format`.

use std::fmt;

use ucall_proto::json::{Reader, ValueKind};

/// A result may nest deeper; the parts below count as valid.
const DEPTH_MAX: usize = 128;

const DEFINITIONS: &[u8] = b"#/$defs/";

/// A schema that is ready to check results.
#[derive(Clone, Debug)]
pub struct ResultSchema {
    nodes: Vec<Node>,
    root: usize,
}

/// What a result has instead of what its schema says.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// The members and items that lead to it, the innermost first.
    path: Vec<String>,
    expected: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.path.iter().rev() {
            write!(f, "{part}: ")?;
        }
        write!(f, "expected {}", self.expected)
    }
}

/// A schema whose parts are indices of other nodes.
#[derive(Clone, Debug)]
struct Node {
    /// Bits of `TYPES`.
    types: u8,
    values: Option<Vec<Value>>,
    properties: Vec<Property>,
    required: usize,
    others: Rest,
    first_items: Vec<usize>,
    items: Rest,
    items_min: u64,
    items_max: u64,
    /// Of each group, one must fit.
    any_of: Vec<Vec<usize>>,
    all_of: Vec<usize>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            types: ANY,
            values: None,
            properties: Vec::new(),
            required: 0,
            others: Rest::Any,
            first_items: Vec::new(),
            items: Rest::Any,
            items_min: 0,
            items_max: u64::MAX,
            any_of: Vec::new(),
            all_of: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
struct Property {
    name: Box<[u8]>,
    is_required: bool,
    schema: usize,
}

/// What the members and items may be that have no schema of their own.
#[derive(Clone, Copy, Debug)]
enum Rest {
    Any,
    Nothing,
    Schema(usize),
}

/// A value of an enum.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Value {
    /// The string that it means.
    Text(Vec<u8>),
    /// The text of any other value.
    Other(Vec<u8>),
}

impl Value {
    fn read(text: &[u8]) -> Self {
        let mut reader = Reader::new(text);
        match reader.kind() {
            ValueKind::String => Self::Text(reader.string().unescaped().into_owned()),
            _ => Self::Other(text.to_vec()),
        }
    }
}

const INTEGER: u8 = 1 << 3;
const NUMBER: u8 = 1 << 4;
const ANY: u8 = 0x7f;
const TYPES: [(&str, u8); 7] = [
    ("null", 1),
    ("boolean", 1 << 1),
    ("string", 1 << 2),
    ("integer", INTEGER),
    ("number", NUMBER),
    ("array", 1 << 5),
    ("object", 1 << 6),
];

fn bit_of(kind: ValueKind) -> u8 {
    match kind {
        ValueKind::Null => 1,
        ValueKind::Bool => 1 << 1,
        ValueKind::String => 1 << 2,
        ValueKind::Number => NUMBER,
        ValueKind::Array => 1 << 5,
        ValueKind::Object => 1 << 6,
    }
}

impl ResultSchema {
    /// Reads a schema, which must be valid JSON. References lead to its `$defs`.
    pub fn new(text: &[u8]) -> Self {
        let mut builder = Builder::default();
        let [definitions] = Reader::new(text).members([b"$defs"]).unwrap_or_default();
        let definitions = definitions.map(members_of).unwrap_or_default();
        for (name, _) in &definitions {
            builder.names.push(name.clone());
            builder.nodes.push(Node::default());
        }
        for (place, (_, schema)) in definitions.iter().enumerate() {
            let node = builder.node(schema);
            if let Some(slot) = builder.nodes.get_mut(place) {
                *slot = node;
            }
        }
        let root = builder.add(text);
        Self { nodes: builder.nodes, root }
    }

    /// Checks a value, which must be valid JSON.
    pub(super) fn check(&self, text: &[u8]) -> Result<(), Mismatch> {
        self.check_value(self.root, &mut Reader::new(text), 0)
    }

    /// Checks the next value, and consumes it if it fits.
    fn check_value(
        &self,
        at: usize,
        reader: &mut Reader<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let Some(node) = self.nodes.get(at).filter(|_| depth < DEPTH_MAX) else {
            reader.skip();
            return Ok(());
        };
        let kind = reader.kind();
        self.check_type(node, kind, reader)?;
        for &other in &node.all_of {
            self.check_value(other, &mut reader.clone(), depth + 1)?;
        }
        for group in &node.any_of {
            let fits = |it: &usize| self.check_value(*it, &mut reader.clone(), depth + 1).is_ok();
            if !group.iter().any(fits) {
                return Err(mismatch(self.alternatives(group)));
            }
        }
        if let Some(values) = &node.values {
            let value = Value::read(reader.clone().skip());
            if !values.contains(&value) {
                return Err(mismatch("one of its enum"));
            }
        }
        match kind {
            ValueKind::Object if !node.properties.is_empty() || node.others.is_limit() => {
                self.check_members(node, reader, depth)
            }
            ValueKind::Array if node.limits_items() => self.check_items(node, reader, depth),
            _ => {
                reader.skip();
                Ok(())
            }
        }
    }

    fn check_type(
        &self,
        node: &Node,
        kind: ValueKind,
        reader: &Reader<'_>,
    ) -> Result<(), Mismatch> {
        let fits = node.types & bit_of(kind) != 0
            || (kind == ValueKind::Number
                && node.types & INTEGER != 0
                && is_whole(&mut reader.clone()));
        if fits { Ok(()) } else { Err(mismatch(names_of(node.types))) }
    }

    fn check_members(
        &self,
        node: &Node,
        reader: &mut Reader<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let whole = reader.clone();
        let mut required = 0;
        reader.enter();
        while let Some(key) = reader.next_key() {
            let name = key.unescaped();
            let schema = match node.properties.iter().find(|it| *it.name == *name) {
                Some(property) => {
                    required += usize::from(property.is_required);
                    Rest::Schema(property.schema)
                }
                None => node.others,
            };
            self.check_part(schema, reader, depth).map_err(|it| it.within(&shown(&name)))?;
        }
        if required < node.required {
            return Err(mismatch(node.missing(whole)));
        }
        Ok(())
    }

    fn check_items(
        &self,
        node: &Node,
        reader: &mut Reader<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        let mut count = 0;
        reader.enter();
        while reader.next_item() {
            let first = usize::try_from(count).ok().and_then(|it| node.first_items.get(it));
            let schema = first.map_or(node.items, |it| Rest::Schema(*it));
            self.check_part(schema, reader, depth).map_err(|it| it.within(&count.to_string()))?;
            count += 1;
        }
        if count < node.items_min || count > node.items_max {
            return Err(mismatch("another number of items"));
        }
        Ok(())
    }

    fn check_part(
        &self,
        schema: Rest,
        reader: &mut Reader<'_>,
        depth: usize,
    ) -> Result<(), Mismatch> {
        match schema {
            Rest::Any => {
                reader.skip();
                Ok(())
            }
            Rest::Nothing => Err(mismatch("nothing")),
            Rest::Schema(at) => self.check_value(at, reader, depth + 1),
        }
    }

    #[cold]
    fn alternatives(&self, group: &[usize]) -> String {
        let types = group.iter().filter_map(|at| self.nodes.get(*at)).map(|it| it.types);
        names_of(types.fold(0, |all, it| all | it))
    }
}

impl Rest {
    fn is_limit(self) -> bool {
        !matches!(self, Self::Any)
    }
}

impl Node {
    fn limits_items(&self) -> bool {
        self.items.is_limit()
            || !self.first_items.is_empty()
            || self.items_min > 0
            || self.items_max < u64::MAX
    }

    #[cold]
    fn missing(&self, mut reader: Reader<'_>) -> String {
        let mut found = Vec::new();
        reader.enter();
        while let Some(key) = reader.next_key() {
            found.push(key.unescaped());
            reader.skip();
        }
        let is_missing =
            |it: &&Property| it.is_required && found.iter().all(|key| **key != *it.name);
        let missing = self.properties.iter().find(is_missing);
        format!("the member {}", missing.map_or_else(String::new, |it| shown(&it.name)))
    }
}

impl Mismatch {
    #[cold]
    fn within(mut self, part: &str) -> Self {
        self.path.push(part.to_owned());
        self
    }
}

#[cold]
fn mismatch(expected: impl Into<String>) -> Mismatch {
    Mismatch { path: Vec::new(), expected: expected.into() }
}

#[cold]
fn names_of(types: u8) -> String {
    let named = TYPES.iter().filter(|(_, bit)| types & bit != 0).map(|(name, _)| *name);
    named.collect::<Vec<_>>().join(" or ")
}

fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// Whether the next number is an integer, however it is written.
fn is_whole(reader: &mut Reader<'_>) -> bool {
    let number = reader.number();
    number.is_integer || number.as_f64().fract() == 0.0
}

/// The members of an object, with the texts of their values.
fn members_of(text: &[u8]) -> Vec<(Vec<u8>, &[u8])> {
    let mut reader = Reader::new(text);
    let mut found = Vec::new();
    if reader.enter_object() {
        while let Some(key) = reader.next_key() {
            found.push((key.unescaped().into_owned(), reader.skip()));
        }
    }
    found
}

/// The texts of the items of an array.
fn items_of(text: &[u8]) -> Vec<&[u8]> {
    let mut reader = Reader::new(text);
    let mut found = Vec::new();
    if reader.kind() == ValueKind::Array {
        reader.enter();
        while reader.next_item() {
            found.push(reader.skip());
        }
    }
    found
}

/// Makes nodes of the texts of schemas.
#[derive(Default)]
struct Builder {
    /// The first of them are the definitions.
    nodes: Vec<Node>,
    names: Vec<Vec<u8>>,
}

impl Builder {
    /// The index of a schema: that of the definition, if it is a reference alone.
    fn add(&mut self, text: &[u8]) -> usize {
        let node = self.node(text);
        if let ([target], true) = (node.all_of.as_slice(), node.is_reference()) {
            return *target;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    fn node(&mut self, text: &[u8]) -> Node {
        let mut node = Node::default();
        if Reader::new(text).kind() == ValueKind::Bool {
            node.types = if text == b"false" { 0 } else { ANY };
        }
        let (mut required, mut has_patterns) = (Vec::new(), false);
        for (keyword, value) in members_of(text) {
            match keyword.as_slice() {
                b"type" => node.types = types_of(value),
                b"enum" => {
                    node.values = Some(items_of(value).into_iter().map(Value::read).collect())
                }
                b"const" => node.values = Some(vec![Value::read(value)]),
                b"$ref" => node.all_of.extend(self.target(value)),
                b"allOf" => node.all_of.extend(self.add_all(value)),
                b"anyOf" | b"oneOf" => node.any_of.push(self.add_all(value)),
                b"prefixItems" => node.first_items = self.add_all(value),
                b"items" => node.items = self.rest(value),
                b"minItems" => node.items_min = count_of(value).unwrap_or(0),
                b"maxItems" => node.items_max = count_of(value).unwrap_or(u64::MAX),
                b"additionalProperties" => node.others = self.rest(value),
                b"required" => required = items_of(value),
                b"properties" => {
                    for (name, schema) in members_of(value) {
                        let schema = self.add(schema);
                        node.properties.push(Property {
                            name: name.into(),
                            is_required: false,
                            schema,
                        });
                    }
                }
                b"patternProperties" => has_patterns = true,
                _ => {}
            }
        }
        if has_patterns {
            node.others = Rest::Any;
        }
        for name in required {
            self.require(&mut node, &Reader::new(name).string().unescaped());
        }
        node
    }

    fn require(&mut self, node: &mut Node, name: &[u8]) {
        node.required += 1;
        if let Some(property) = node.properties.iter_mut().find(|it| *it.name == *name) {
            property.is_required = true;
            return;
        }
        let schema = self.add(b"true");
        node.properties.push(Property { name: name.into(), is_required: true, schema });
    }

    fn add_all(&mut self, text: &[u8]) -> Vec<usize> {
        items_of(text).into_iter().map(|it| self.add(it)).collect()
    }

    fn rest(&mut self, text: &[u8]) -> Rest {
        match text {
            b"true" => Rest::Any,
            b"false" => Rest::Nothing,
            _ => Rest::Schema(self.add(text)),
        }
    }

    /// The definition that a reference leads to.
    fn target(&self, text: &[u8]) -> Option<usize> {
        let reference = Reader::new(text).string().unescaped().into_owned();
        let name = reference.strip_prefix(DEFINITIONS)?;
        self.names.iter().position(|it| it == name)
    }
}

impl Node {
    fn is_reference(&self) -> bool {
        self.types == ANY
            && self.values.is_none()
            && self.properties.is_empty()
            && !self.others.is_limit()
            && !self.limits_items()
            && self.any_of.is_empty()
    }
}

fn types_of(text: &[u8]) -> u8 {
    let names = match Reader::new(text).kind() {
        ValueKind::String => vec![text],
        _ => items_of(text),
    };
    names.into_iter().fold(0, |all, name| {
        let name = Reader::new(name).string();
        let bit = TYPES.iter().find(|(known, _)| known.as_bytes() == name.raw());
        all | bit.map_or(0, |(_, bit)| *bit)
    })
}

fn count_of(text: &[u8]) -> Option<u64> {
    Reader::new(text).number().as_i64().and_then(|it| u64::try_from(it).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(schema: &str, value: &str) -> Option<String> {
        let checked = ResultSchema::new(schema.as_bytes()).check(value.as_bytes());
        checked.err().map(|it| it.to_string())
    }

    #[test]
    fn each_keyword_takes_what_fits_alone() {
        let list = r##"{"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}], "$defs": {"Node":
            {"type": "object", "required": ["value"], "properties": {"value": {"type": "integer"},
            "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}}}"##;
        for (schema, fitting, others) in [
            ("true", &["1", "{}"][..], &[][..]),
            ("false", &[], &["1"]),
            (r#"{"type": "integer"}"#, &["1", "-2", "1.0"], &["1.5", "\"1\"", "true", "null"]),
            (r#"{"type": ["number", "null"]}"#, &["1", "1.5", "null"], &["\"1\"", "[]"]),
            (r#"{"type": "boolean", "default": 1}"#, &["true", "false"], &["0"]),
            (r#"{"enum": ["a\u0062", 1]}"#, &["\"ab\"", "\"\\u0061b\"", "1"], &["\"a\"", "2"]),
            (r#"{"const": "x"}"#, &["\"x\""], &["\"y\"", "1"]),
            (
                r#"{"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}"#,
                &["[\"a\"]", "[\"a\",\"b\"]"],
                &["[]", "[1]", "[\"a\",\"b\",\"c\"]", "{}"],
            ),
            (
                r#"{"prefixItems": [{"type": "integer"}, {}], "items": false}"#,
                &["[]", "[1]", "[1,2]"],
                &["[\"a\"]", "[1,2,3]"],
            ),
            (
                r#"{"type": "object", "additionalProperties": {"type": "integer"}}"#,
                &["{}", "{\"a\":1}"],
                &["{\"a\":\"b\"}", "[]"],
            ),
            (
                r#"{"properties": {"a": {"type": "integer"}}, "required": ["a", "b"],
                    "additionalProperties": false}"#,
                &["{\"b\":null,\"a\":1}", "{\"\\u0061\":1,\"b\":2}"],
                &["{\"a\":1}", "{\"b\":1}", "{\"a\":\"x\",\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}"],
            ),
            (
                r#"{"patternProperties": {"^x": {}}, "additionalProperties": false}"#,
                &["{\"x\":1}"],
                &[],
            ),
            (
                r#"{"allOf": [{"type": "object"}, {"required": ["a"]}], "oneOf": [{}]}"#,
                &["{\"a\":1}"],
                &["{}", "1"],
            ),
            (
                list,
                &["null", "{\"value\":1}", "{\"value\":1,\"next\":{\"value\":2,\"next\":null}}"],
                &["1", "{}", "{\"value\":1,\"next\":{\"value\":\"x\"}}"],
            ),
        ] {
            for value in fitting {
                assert_eq!(problem(schema, value), None, "{schema} {value}");
            }
            for value in others {
                assert!(problem(schema, value).is_some(), "{schema} {value}");
            }
        }
    }

    #[test]
    fn a_mismatch_names_its_place() {
        let schema = r##"{"type": "object", "properties": {"result": {"type": "array", "items":
            {"$ref": "#/$defs/A"}}}, "required": ["result"],
            "$defs": {"A": {"type": ["integer", "null"]}}}"##;
        let found = problem(schema, r#"{"result":[1,"a"]}"#);
        assert_eq!(found.as_deref(), Some("result: 1: expected null or integer"));
        assert_eq!(problem(schema, "{}").as_deref(), Some("expected the member result"));
    }

    #[test]
    fn a_deep_value_is_checked_to_a_depth() {
        let schema = r##"{"$ref": "#/$defs/L", "$defs": {"L": {"type": "array", "items":
            {"$ref": "#/$defs/L"}}}}"##;
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(problem(schema, &nested(DEPTH_MAX - 1)).is_some());
        assert_eq!(problem(schema, &nested(100_000)), None);
    }
}
