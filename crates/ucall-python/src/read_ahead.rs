//! Reads calls that wait while a batch of their function runs.
//!
//! A batch of many calls begins sooner if it has only to collect their arguments. So a second
//! thread of the pool reads them, where the function releases the interpreter's lock
//! (`lock_release.rs`). A call keeps its input, as if it was not read: it may end, or its batch
//! begin, while it is read, and one that cannot be read fails in its batch. Only short params are
//! read ahead, for which no memory is reserved, as they are held as text and as objects then.

use std::sync::Arc;

use pyo3::prelude::*;
use smallvec::SmallVec;
use ucall_server::Token;

use crate::arguments;
use crate::convert::Scratch;
use crate::ffi::DropAttached;
use crate::job_input::{Contents, JobInput};
use crate::procedure::Procedure;

/// The arguments of a call. Most functions have one or two.
pub(crate) type ReadParams = DropAttached<SmallVec<[Py<PyAny>; 2]>>;

/// The input of a call that waits for a batch.
pub(crate) struct WaitingInput {
    pub(crate) input: Arc<JobInput>,
    /// Set if it was read ahead.
    pub(crate) read: Option<ReadParams>,
}

/// The input of a call whose batch runs.
pub(crate) struct BatchInput {
    pub(crate) contents: Contents,
    /// Set if it was read ahead.
    pub(crate) read: Option<ReadParams>,
}

impl WaitingInput {
    /// Takes the input, unless the call has ended.
    pub(crate) fn take(self) -> Option<BatchInput> {
        Some(BatchInput { contents: self.input.take()?, read: self.read })
    }
}

impl From<Arc<JobInput>> for WaitingInput {
    fn from(input: Arc<JobInput>) -> Self {
        Self { input, read: None }
    }
}

impl From<Contents> for BatchInput {
    fn from(contents: Contents) -> Self {
        Self { contents, read: None }
    }
}

/// Reads calls, whose inputs these are, if no Python code of a program does that. Leaves out those
/// that are long or cannot be read.
pub(crate) fn read(
    py: Python<'_>,
    procedure: &Procedure,
    inputs: Vec<(Token, Arc<JobInput>)>,
    scratch: &mut Scratch,
) -> Vec<(Token, ReadParams)> {
    if !procedure.is_read_natively() {
        return Vec::new();
    }
    let read = |(token, input): (Token, Arc<JobInput>)| {
        let origin = input.short_params()?;
        let arguments: SmallVec<[Bound<'_, PyAny>; 2]> =
            arguments::take(py, procedure, origin.params(), None, scratch).ok()?;
        let arguments = arguments.into_iter().map(Bound::unbind).collect();
        Some((token, DropAttached::new(arguments)))
    };
    inputs.into_iter().filter_map(read).collect()
}
