//! `ucall.END`: marks a call that has ended, in the items of a batch.

use pyo3::prelude::*;

/// The type of `ucall.END`.
#[pyclass(frozen, module = "ucall", name = "EndType")]
pub(crate) struct EndType;

#[pymethods]
impl EndType {
    fn __repr__(&self) -> &'static str {
        "ucall.END"
    }
}
