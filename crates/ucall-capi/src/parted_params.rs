//! Params that refer to parts behind their document, which few requests have.
//!
//! Functions that do not read buffers see base64 in place of the parts, as without them. The text
//! with it is made when they first read one of the params.

use std::sync::Arc;

use ucall_proto::Parts;

use crate::params::{ParamBuffers, Params};

/// The parts of a document, and what the call that runs has read of its params.
#[derive(Debug)]
pub(crate) struct PartedParams {
    pub(crate) parts: Arc<Parts>,
    /// The address of the text of the call's params.
    text_at: usize,
    inlined: Option<Vec<u8>>,
    /// For lookups in the text as it was received.
    pub(crate) buffers: ParamBuffers,
}

impl PartedParams {
    pub(crate) fn new(parts: Arc<Parts>) -> Self {
        Self { parts, text_at: 0, inlined: None, buffers: ParamBuffers::default() }
    }

    /// Forgets what the call before has read, if it was another one.
    pub(crate) fn select(&mut self, text: &[u8]) {
        let text_at = text.as_ptr().addr();
        if self.text_at != text_at {
            self.text_at = text_at;
            self.inlined = None;
            self.buffers.reset();
        }
    }

    /// The params with base64 in place of parts. As they are, if they refer to a part that is not
    /// there or is used twice.
    #[cold]
    pub(crate) fn inlined(&mut self, text: &[u8]) -> Params<'_> {
        self.select(text);
        let Self { parts, inlined, .. } = self;
        // A deferred call reads them again, after the live one has.
        let inline = || parts.untaken().inline(text).unwrap_or_else(|_| text.to_vec());
        Params { text: inlined.get_or_insert_with(inline), members: None }
    }
}
