//! What the function of a batch returned or yielded, as a result for each call.

use pyo3::exceptions::{PyBaseException, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_proto::RpcError;
use ucall_server::Token;

use crate::arguments::Failure;
use crate::convert::ConversionFault;
use crate::outcomes::DeferredOutcome;
use crate::procedure::Procedure;
use crate::report::Report;

/// The outcome of each call: its item of the list that the function returned, or the exception that
/// it raised.
pub(crate) fn outcomes(
    py: Python<'_>,
    report: &Report,
    procedure: &Procedure,
    items: Vec<Token>,
    result: PyResult<Bound<'_, PyAny>>,
) -> Vec<(Token, DeferredOutcome)> {
    let as_list = result.map_err(Failure::Raised).and_then(|result| as_list(&result, items.len()));
    match as_list {
        Ok(results) => {
            let outcome = |(token, item): (Token, Bound<'_, PyAny>)| {
                (token, DeferredOutcome::BatchResult(item.unbind()))
            };
            items.into_iter().zip(results.iter()).map(outcome).collect()
        }
        Err(failure) => {
            // The exception is logged once, and each caller gets the error.
            let (error, _): (RpcError, _) = report.fail(py, procedure, failure, usize::MAX);
            let outcome = |token| (token, DeferredOutcome::Text(Err(error.clone())));
            items.into_iter().map(outcome).collect()
        }
    }
}

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
