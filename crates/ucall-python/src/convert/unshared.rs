//! Whether a result can be written while the function that returned it runs again.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use crate::ffi::{self, NumPy, Value};

/// Lists and the like within each other, beyond which a result counts as shared.
const NESTING_MAX: usize = 32;
/// The references to an item of a list while it is looked at.
const OF_ITEM: isize = 2;

/// Whether nothing but `result` refers to what can change of a result, as far as is known of its
/// class.
pub(crate) fn is_unshared(py: Python<'_>, result: &Py<PyAny>) -> bool {
    is_held_by(1, result.bind(py), NESTING_MAX)
}

/// Whether an object cannot change, or has that many references and contains only such objects.
fn is_held_by(references: isize, object: &Bound<'_, PyAny>, nesting_left: usize) -> bool {
    let is_held = || nesting_left > 0 && ffi::reference_count(object) == references;
    let is_item = |item: &Bound<'_, PyAny>| is_held_by(OF_ITEM, item, nesting_left - 1);
    match Value::of(object) {
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Text(_) | Value::Bytes(_) => true,
        Value::Float(_) | Value::DerivedFloat(_) => true,
        Value::List(list) if list.is_exact_instance_of::<PyList>() => {
            is_held() && list.iter().all(|item| is_item(&item))
        }
        Value::Tuple(tuple) if tuple.is_exact_instance_of::<PyTuple>() => {
            is_held() && tuple.iter().all(|item| is_item(&item))
        }
        Value::Dict(dict) if dict.is_exact_instance_of::<PyDict>() => {
            is_held() && ffi::members(dict).all(|(key, value)| is_item(&key) && is_item(&value))
        }
        Value::Other => is_held() && owns_numbers(object),
        _ => false,
    }
}

/// Whether an object is an array of numbers in memory of its own.
fn owns_numbers(object: &Bound<'_, PyAny>) -> bool {
    let array = NumPy::imported(object.py()).ok().flatten().and_then(|it| it.array(object));
    array.is_some_and(|it| {
        it.is_plain()
            && it.owns_memory()
            && !it.has_weak_references()
            && matches!(it.dtype(), Ok(Some(_)))
    })
}
