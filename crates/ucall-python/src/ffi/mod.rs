//! Raw CPython calls of the hot path, each in a small safe wrapper.
//!
//! What pyo3 does as cheaply goes through pyo3. Here is what it has no cheap way for: calls
//! without a tuple of arguments, values made and read without a temporary, and types told apart by
//! one look. Every wrapper takes a token or an object that proves that this thread is attached to
//! the interpreter.

mod bytes;
mod call;
mod halt;
mod members;
mod number;
mod text;
mod value;

pub(crate) use bytes::{BytesType, memory_filled, with_buffer};
pub(crate) use call::{
    Slots, call, call_with_keywords, call_with_names, call_with_slots, call_with_tuple,
};
pub(crate) use halt::halt;
pub(crate) use members::members;
pub(crate) use number::{decimal, float, integer, integer_from_digits, small_integer};
pub(crate) use text::text;
pub(crate) use value::{Value, type_name};

use pyo3::prelude::*;

/// Takes over a new reference, or the exception that stands in its place.
#[inline]
fn owned<'py>(py: Python<'py>, pointer: *mut pyo3::ffi::PyObject) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: every caller hands in what a function of the C API returned: a new reference or,
    // with an exception set, null.
    unsafe { Bound::from_owned_ptr_or_err(py, pointer) }
}

/// Whether this thread is attached to the first interpreter of the process, and not to one that
/// was made within it.
pub(crate) fn is_main_interpreter(_py: Python<'_>) -> bool {
    // SAFETY: the thread is attached, so that there is a present interpreter.
    unsafe { pyo3::ffi::PyInterpreterState_Get() == pyo3::ffi::PyInterpreterState_Main() }
}
