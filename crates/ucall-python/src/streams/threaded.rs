//! Generators in threads of the pool: a thread runs one from its first step to its end.

use std::sync::Arc;

use pyo3::prelude::*;

use super::Generator;
use super::state::Progress;
use super::stream::Stream;
use crate::arguments::Failure;
use crate::ffi::{self, Step};
use crate::interpreter_shutdown::run_untracked;

/// Runs a generator until it returns, raises, or no call is open, and returns its value.
pub(crate) fn iterate<'py>(
    py: Python<'py>,
    stream: &Arc<Stream>,
    generator: &Generator,
) -> Result<Bound<'py, PyAny>, Failure> {
    let returned = generator.within(py, |iterator| take_steps(stream, iterator));
    if let Ok(Some(value)) = returned {
        return Ok(value);
    }
    let closed = run_untracked(py, || generator.close(py));
    returned?;
    closed?;
    Ok(py.None().into_bound(py))
}

/// `None` if no call is open.
fn take_steps<'py>(
    stream: &Arc<Stream>,
    iterator: &Bound<'py, PyAny>,
) -> Result<Option<Bound<'py, PyAny>>, Failure> {
    let py = iterator.py();
    let (mut progress, mut text) = (stream.progress(), Vec::new());
    loop {
        progress = match progress {
            Progress::Continue if !run_untracked(py, || stream.begin_step(py))? => {
                stream.progress()
            }
            Progress::Continue => match run_untracked(py, || ffi::step(iterator))? {
                Step::Item(item) => stream.put(&item, &mut text)?,
                Step::Returned(value) => return Ok(Some(value)),
            },
            Progress::Wait => run_untracked(py, || py.detach(|| stream.wait_for_room())),
            Progress::End => return Ok(None),
        };
    }
}
