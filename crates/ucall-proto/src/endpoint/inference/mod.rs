//! The Open Inference Protocol, version 2, with the extension for binary tensors.
//!
//! Source: <https://github.com/kserve/open-inference-protocol> and the protocol extensions of
//! Triton Inference Server.
//!
//! | path | method | answer |
//! |---|---|---|
//! | `/v2` | GET | the name of the server, and its extensions |
//! | `/v2/health/live`, `/v2/health/ready` | GET | whether it runs, and takes calls |
//! | `/v2/models/NAME[/versions/1]` | GET | the tensors of a model |
//! | `/v2/models/NAME[/versions/1]/ready` | GET | whether it takes calls |
//! | `/v2/models/NAME[/versions/1]/config` | GET | its configuration, an extension of Triton |
//! | `/v2/models/NAME[/versions/1]/infer` | POST | the outputs of a call |
//!
//! A model is a function. A request's tensors are the params of a call: an array is a part of it,
//! and a scalar, a text or a list is in its text, because functions check them there. So what a
//! function says of wrong params is the error of a request.

pub(crate) mod datatype;
mod request;
mod response;
#[cfg(test)]
mod tests;

use super::percent_decoded;
pub use datatype::Datatype;
pub(crate) use request::read;
#[cfg(any(test, feature = "invariants"))]
pub(crate) use request::read_split;
pub(crate) use response::{InferenceReply, refused};

/// The version that all models have.
pub const VERSION: &str = "1";

/// A function as a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InferenceModel {
    /// Its name.
    pub name: String,
    /// The method that it calls.
    pub method: String,
    /// The params of the method.
    pub inputs: Vec<ModelInput>,
    /// The outputs that its annotation has; there may be others.
    pub outputs: Vec<ModelOutput>,
    /// Whether the items of a list that the method returns are outputs.
    pub returns_items: bool,
    /// Its metadata, as JSON text.
    pub metadata: String,
    /// Its configuration as Triton has it, as JSON text.
    pub config: String,
}

/// An input of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelInput {
    /// The name of the param.
    pub name: String,
    /// What the param takes.
    pub form: InputForm,
}

/// What a param takes of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputForm {
    /// An array.
    Array,
    /// The only item: a number or a bool.
    Scalar,
    /// The only item, which is text.
    Text,
    /// The only item, which is bytes.
    Bytes,
    /// A list of numbers or bools, in nested lists if it has several dimensions.
    List,
    /// A list of texts.
    Texts,
    /// A list of bytes.
    BytesList,
}

/// An output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelOutput {
    /// Its name.
    pub name: String,
    /// The datatype of its numbers, if they are no array.
    pub datatype: Option<Datatype>,
}

/// What a path of the protocol names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InferencePath {
    /// The server.
    Server,
    /// The metadata of a model, by name.
    Model(String),
    /// Whether it is ready.
    ModelReady(String),
    /// Its configuration.
    ModelConfig(String),
    /// Calls it.
    Infer(String),
}

impl InferencePath {
    /// Reads a path; `None` of one that the protocol does not have. The names of models are
    /// percent-encoded.
    #[must_use]
    pub fn read(path: &[u8]) -> Option<Self> {
        let mut steps = path.strip_prefix(b"/v2")?.split(|&byte| byte == b'/');
        steps.next().filter(|before| before.is_empty())?;
        match steps.next() {
            None => return Some(Self::Server),
            Some(b"models") => {}
            Some(_) => return None,
        }
        let name = String::from_utf8(percent_decoded(steps.next()?)?).ok()?;
        let mut action = steps.next();
        if action == Some(b"versions") {
            steps.next().filter(|&version| version == VERSION.as_bytes())?;
            action = steps.next();
        }
        let path = match action {
            None => Self::Model(name),
            Some(b"ready") => Self::ModelReady(name),
            Some(b"config") => Self::ModelConfig(name),
            Some(b"infer") => Self::Infer(name),
            Some(_) => return None,
        };
        steps.next().is_none().then_some(path)
    }
}
