//! Safe wrappers of raw CPython calls, for the hot path.
//!
//! They cover what pyo3 has no cheap way for: calls without a tuple of arguments, conversion of
//! values without temporaries, and classification of an object by its type. Each
//! wrapper takes a token or an object that proves that this thread is attached to the interpreter.

mod buffer;
mod bytes;
mod call;
mod dlpack;
mod drop_attached;
mod halt;
mod imported;
mod iterator;
mod members;
mod number;
mod numpy;
mod reused;
mod shared_bytes;
mod text;
mod value;
pub(crate) mod variables;
mod vectorcall;

pub(crate) use buffer::{Memory, has_buffer, shared_buffer, with_buffer, with_items, with_memory};
#[cfg(feature = "queue")]
pub(crate) use buffer::{bytes_view, fill_view};
pub(crate) use bytes::{BytesType, memory_filled};
pub(crate) use call::{Slots, call, call_with_keywords, call_with_names, call_with_slots};
pub(crate) use dlpack::{is_tensor, with_dlpack};
pub(crate) use drop_attached::DropAttached;
pub(crate) use halt::halt;
pub(crate) use imported::Imported;
pub(crate) use iterator::{Step, is_iterator, step};
pub(crate) use members::members;
pub(crate) use number::{decimal, float, integer, integer_from_digits, small_integer};
pub(crate) use numpy::{Array, NumPy, as_uninit, copy_to, is_bfloat};
pub(crate) use reused::{ReusedObject, sole_value};
pub(crate) use shared_bytes::shared_bytes;
pub(crate) use text::text;
pub(crate) use value::{Value, type_name};
pub(crate) use vectorcall::{CalledWithoutArguments, Vectorcall};

use pyo3::prelude::*;

/// Takes over a new reference; null means that an exception is set.
#[inline]
fn owned<'py>(py: Python<'py>, pointer: *mut pyo3::ffi::PyObject) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: every caller passes the result of a function of the C API: a new reference, or null
    // with an exception set.
    unsafe { Bound::from_owned_ptr_or_err(py, pointer) }
}

/// Whether no other code has a reference to an object.
#[inline]
pub(crate) fn has_one_reference(object: &Bound<'_, PyAny>) -> bool {
    reference_count(object) == 1
}

/// The number of references to an object.
#[inline]
pub(crate) fn reference_count(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: the object is alive, and this thread is attached.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) }
}

/// Whether this thread is attached to the main interpreter, not to a subinterpreter.
pub(crate) fn is_main_interpreter(_py: Python<'_>) -> bool {
    // SAFETY: the thread is attached, so it has an interpreter.
    unsafe { pyo3::ffi::PyInterpreterState_Get() == pyo3::ffi::PyInterpreterState_Main() }
}
