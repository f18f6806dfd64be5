//! The functions of a server as tools of the Model Context Protocol (MCP).
//!
//! `tools/call` finds the function of a tool and wraps its result, whether that comes at once
//! (`Dispatch::call_mcp`) or later ([`McpCalls`]). Every other method is a procedure of its own,
//! which gets the params and the version of the request.

mod deferred;
mod dispatch;
mod result;
mod schema;

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

pub(crate) use deferred::McpCalls;
pub use schema::ResultSchema;

/// The path of MCP over HTTP, below those of calls.
pub(crate) const PATH: &str = "/mcp";

/// What a client without credentials may ask for, if it may call any tool: to learn of the server
/// and of that tool.
pub(crate) const PUBLIC_METHODS: [&[u8]; 7] = [
    // To what a public tool asks its caller.
    ucall_proto::RESPONSE,
    b"initialize",
    b"logging/setLevel",
    b"notifications/initialized",
    b"ping",
    b"server/discover",
    b"tools/list",
];

/// How the result of a function becomes that of a tool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToolForm {
    /// A text: the value of a string, or the JSON of anything else.
    Text,
    /// The member `result` of the structured content, and its text.
    Value,
    /// The structured content, and its text.
    Object,
    /// A base64 string: an image of this media type; of that of its first bytes for `image/*`.
    Image(String),
    /// A base64 string: audio of this media type.
    Audio(String),
    /// A base64 string: an embedded resource of this media type.
    Blob(String),
    /// An object with the members of the tool's result.
    Whole,
}

/// A tool.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The method that it calls.
    pub method: String,
    /// What becomes of the method's result.
    pub form: ToolForm,
    /// What the method's result must fit.
    pub schema: Option<ResultSchema>,
    /// The names of params that have headers, and those of their headers.
    pub headers: Vec<(String, String)>,
}

/// The tools and the methods of MCP.
#[derive(Debug)]
pub(crate) struct McpTable<P> {
    methods: HashMap<Box<[u8]>, Arc<P>, FixedState>,
    tools: HashMap<Box<[u8]>, Arc<Tool>, FixedState>,
}

impl Tool {
    /// Whether a result fits what the tool promises.
    fn check(&self, result: &[u8]) -> Result<(), schema::Mismatch> {
        self.schema.as_ref().map_or(Ok(()), |schema| schema.check(result))
    }
}

impl<P> Default for McpTable<P> {
    fn default() -> Self {
        Self { methods: HashMap::default(), tools: HashMap::default() }
    }
}

impl<P> Clone for McpTable<P> {
    fn clone(&self) -> Self {
        Self { methods: self.methods.clone(), tools: self.tools.clone() }
    }
}

impl<P> McpTable<P> {
    /// Adds a method in place of an earlier one of its name.
    pub(crate) fn insert_method(&mut self, name: &str, procedure: P) {
        self.methods.insert(name.as_bytes().into(), Arc::new(procedure));
    }

    pub(crate) fn method(&self, name: &[u8]) -> Option<Arc<P>> {
        self.methods.get(name).cloned()
    }

    pub(crate) fn tool(&self, name: &[u8]) -> Option<Arc<Tool>> {
        self.tools.get(name).cloned()
    }

    pub(crate) fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.tools.values().map(|tool| &**tool)
    }

    /// Whether MCP answers a method, or knows it as a notification.
    pub(crate) fn has_method(&self, name: &[u8]) -> bool {
        matches!(name, b"tools/call" | ucall_proto::CANCELLED) || self.methods.contains_key(name)
    }

    /// Replaces all tools.
    pub(crate) fn set_tools(&mut self, tools: Vec<Tool>) {
        let named = tools.into_iter().map(|tool| (tool.name.as_bytes().into(), Arc::new(tool)));
        self.tools = named.collect();
    }
}
