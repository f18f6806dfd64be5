//! What the function of a batch returned or yielded, as a result for each call.

use pyo3::exceptions::{PyBaseException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arguments::Failure;
use crate::convert::ConversionFault;

/// The list of what a batch's function returned or yielded, with an entry for each call.
pub(crate) fn as_list<'py>(
    result: &Bound<'py, PyAny>,
    count: usize,
) -> Result<Bound<'py, PyList>, Failure> {
    let py = result.py();
    let is_text = result.is_instance_of::<pyo3::types::PyString>()
        || result.is_instance_of::<pyo3::types::PyDict>();
    let results = match result.try_iter() {
        Ok(items) if !is_text => {
            let items = items.collect::<PyResult<Vec<_>>>().map_err(Failure::Raised)?;
            PyList::new(py, items).map_err(Failure::Raised)?
        }
        Ok(_) => return Err(mismatch(format!("expected a list of {count} results"))),
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            return Err(mismatch(format!("expected a list of {count} results")));
        }
        Err(error) => return Err(Failure::Raised(error)),
    };
    match results.len() {
        len if len == count => Ok(results),
        len => Err(mismatch(format!("expected {count} results for a batch of {count}, got {len}"))),
    }
}

fn mismatch(problem: String) -> Failure {
    Failure::Result(ConversionFault::value(problem))
}

/// The result of one call. An exception as an item is raised for that call.
pub(crate) fn item_result(item: Bound<'_, PyAny>) -> Result<Bound<'_, PyAny>, Failure> {
    match item.is_instance_of::<PyBaseException>() {
        true => Err(Failure::Raised(PyErr::from_value(item))),
        false => Ok(item),
    }
}
