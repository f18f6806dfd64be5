//! Binary parts: the arrays, images and bytes that lie behind a JSON-RPC document.

use std::ops::Range;
use std::sync::Arc;

use ucall_buffer::Bytes;

use crate::arrays::Tensor;

/// The parts of one document, in memory of their own.
#[derive(Debug)]
pub struct Parts {
    memory: Vec<u8>,
    parts: Vec<(Range<usize>, Option<Tensor>)>,
}

/// One part of a document.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Its bytes.
    pub bytes: &'a [u8],
    /// What the bytes are, if they are the items of an array without the header of a `.npy`.
    pub tensor: Option<&'a Tensor>,
}

impl Parts {
    /// Parts that lie in `memory`, each with what it is the items of.
    pub fn new(memory: Vec<u8>, parts: Vec<(Range<usize>, Option<Tensor>)>) -> Self {
        Self { memory, parts }
    }

    /// The part of an index.
    pub fn get(&self, index: usize) -> Option<Part<'_>> {
        let (range, tensor) = self.parts.get(index)?;
        Some(Part { bytes: self.memory.get(range.clone())?, tensor: tensor.as_ref() })
    }
}

/// How arrays and bytes are written in a result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ResultFormat {
    /// As base64 in the JSON text.
    #[default]
    Json,
    /// As parts beside the JSON text.
    Parts,
    /// Arrays as nested lists, bytes as base64.
    Lists,
}

/// What the calls of a document have beside their text.
#[derive(Clone, Debug)]
pub struct Binary {
    /// The parts of the document, if it has any.
    pub parts: Option<Arc<Parts>>,
    /// How results are written.
    pub results: ResultFormat,
}

/// A part of a result.
#[derive(Clone, Debug)]
pub struct ResultPart {
    /// What the bytes are, if they are the items of an array.
    pub tensor: Option<Tensor>,
    /// Its bytes.
    pub bytes: Bytes,
}
