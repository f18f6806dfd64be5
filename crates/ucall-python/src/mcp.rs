//! Methods of the Model Context Protocol, as Python describes them.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::procedure::{CallMode, Procedure, Signature};

/// The procedure of a method.
pub(crate) fn method(
    name: &str,
    function: Py<PyAny>,
    signature: &Bound<'_, PyList>,
    encode: Py<PyAny>,
    mode: &str,
    timeout: Option<Duration>,
) -> PyResult<Procedure> {
    let signature = Some(Signature::from_description(signature)?);
    let mode = CallMode::from_description(mode, None, None)?;
    let procedure = Procedure::new(name.to_owned(), function, signature, encode, mode);
    Ok(Procedure { timeout, ..procedure })
}
