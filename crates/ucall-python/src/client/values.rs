//! The values in a message, as Python objects.

use bytes::Bytes;
use pyo3::prelude::*;

use super::error::value_error;
use crate::convert::{Convert, Input, Scratch};

/// Builds objects from validated text.
pub(super) fn build<'py>(
    py: Python<'py>,
    text: &Bytes,
    convert: &Convert,
    root: &str,
) -> PyResult<Bound<'py, PyAny>> {
    let mut scratch = Scratch::default();
    let built = Input::new(py, text, &mut scratch).read(convert);
    built.map_err(|fault| value_error(fault, root))
}
