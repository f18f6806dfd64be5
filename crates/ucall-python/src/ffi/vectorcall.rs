//! Classes whose objects CPython calls without a tuple of arguments.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use pyo3::PyClass;
use pyo3::exceptions::{PySystemError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;

use super::reused::value_offset;

/// What an object is called by, as a field of its value.
#[repr(transparent)]
pub(crate) struct Vectorcall(ffi::vectorcallfunc);

/// A class whose objects are called without arguments.
pub(crate) trait CalledWithoutArguments: PyClass<Frozen = True> + Sync {
    /// Where its field of the type [`Vectorcall`] is.
    const FIELD_OFFSET: usize;

    fn call<'py>(object: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>>;
}

impl Vectorcall {
    pub(crate) fn of<T: CalledWithoutArguments>() -> Self {
        Self(vectorcall::<T>)
    }

    /// Has CPython call the objects of a class by their field.
    pub(crate) fn enable<T: CalledWithoutArguments>(object: &Bound<'_, T>) {
        let offset = value_offset(object) + T::FIELD_OFFSET;
        let class = object.as_any().get_type().as_type_ptr();
        // SAFETY: the thread is attached, and the class is on the heap and has no subclasses. Its
        // objects have this field at this place.
        unsafe {
            (*class).tp_vectorcall_offset = offset as ffi::Py_ssize_t;
            (*class).tp_flags |= ffi::Py_TPFLAGS_HAVE_VECTORCALL;
            ffi::PyType_Modified(class);
        }
    }
}

unsafe extern "C" fn vectorcall<T: CalledWithoutArguments>(
    object: *mut ffi::PyObject,
    _arguments: *const *mut ffi::PyObject,
    flagged_count: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: CPython has attached the thread that calls this. pyo3 counts only what it has
    // attached itself; on another thread it defers the drop of a `Py` until some thread attaches.
    let py = unsafe { Python::assume_attached() };
    let call = || {
        // SAFETY: CPython calls this for an object of the class. This reference keeps it, as the
        // caller may lose its own meanwhile.
        let object = unsafe { Bound::from_borrowed_ptr(py, object).cast_into_unchecked::<T>() };
        // SAFETY: it is the count that CPython has given.
        let positional = unsafe { ffi::PyVectorcall_NARGS(flagged_count) };
        match positional == 0 && names.is_null() {
            true => T::call(&object),
            false => Err(PyTypeError::new_err("it is called without arguments")),
        }
    };
    let panicked = |_| Err(PySystemError::new_err("the call has panicked"));
    let called = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked);
    called.map(Bound::into_ptr).unwrap_or_else(|error| {
        error.restore(py);
        ptr::null_mut()
    })
}
