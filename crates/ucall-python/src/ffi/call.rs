//! Calls without a tuple of arguments.

use std::ptr;

use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;

use super::{halt, owned};

/// How many places there are on the stack, the free one in front of the arguments included.
const INLINE: usize = 9;

/// Arguments of one call, in order, behind one free place that the interpreter may use meanwhile
/// (it puts the `self` of a bound method there).
pub(crate) struct Slots<'py> {
    slots: SmallVec<[Option<Bound<'py, PyAny>>; INLINE]>,
}

impl<'py> Slots<'py> {
    /// No places yet.
    #[inline]
    pub(crate) fn new() -> Self {
        Self { slots: SmallVec::new() }
    }

    /// Makes places for `count` arguments, none of them there yet. Made where they stay: a copy of
    /// what was just written waits for that.
    #[inline]
    pub(crate) fn make(&mut self, count: usize) {
        self.slots.resize_with(count + 1, || None);
    }

    /// The places of the arguments.
    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [Option<Bound<'py, PyAny>>] {
        self.slots.get_mut(1..).unwrap_or_default()
    }

    /// Inserts arguments at `index`, so that those from there on move further.
    pub(crate) fn insert_many(&mut self, index: usize, arguments: Vec<Bound<'py, PyAny>>) {
        self.slots.insert_many(index + 1, arguments.into_iter().map(Some));
    }

    /// Takes the arguments from `index` on out.
    pub(crate) fn split_off(&mut self, index: usize) -> Vec<Bound<'py, PyAny>> {
        self.slots.drain(index + 1..).flatten().collect()
    }

    /// The arguments as the interpreter wants them, and how many there are. A place left empty,
    /// which would be a mistake of this crate, raises `SystemError`.
    #[inline]
    fn arguments(&self) -> PyResult<(*const *mut ffi::PyObject, usize)> {
        if self.slots.iter().skip(1).any(Option::is_none) {
            return Err(PySystemError::new_err("an argument was not filled in"));
        }
        // `Bound` is transparent over a non-null pointer: a filled slot is that pointer.
        Ok((self.slots.as_ptr().wrapping_add(1).cast(), self.slots.len() - 1))
    }
}

/// Calls with as many keyword arguments as there are `names`, and all before them by position.
#[inline]
pub(crate) fn call_with_slots<'py>(
    callable: &Bound<'py, PyAny>,
    slots: &Slots<'py>,
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (arguments, count) = slots.arguments()?;
    let positional = count.saturating_sub(names.map_or(0, |names| names.len()));
    let names = names.map_or(ptr::null_mut(), |names| names.as_ptr());
    let flagged = positional | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    // SAFETY: `count` arguments follow one another, alive until the call returns, behind a place
    // that the interpreter may use.
    owned(callable.py(), unsafe { halt::vectorcall(callable.as_ptr(), arguments, flagged, names) })
}

/// Calls with all slots by position, and keyword arguments from a dict whose keys are `str`.
pub(crate) fn call_with_keywords<'py>(
    callable: &Bound<'py, PyAny>,
    slots: &Slots<'py>,
    keywords: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let (arguments, count) = slots.arguments()?;
    let flagged = count | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    // SAFETY: as above.
    owned(callable.py(), unsafe {
        halt::vectorcall_dict(callable.as_ptr(), arguments, flagged, keywords.as_ptr())
    })
}

/// Calls with arguments of which the last ones go by `names`.
#[inline]
pub(crate) fn call_with_names<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: &[&Bound<'py, PyAny>; COUNT],
    names: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.map(Bound::as_ptr);
    let positional = COUNT.saturating_sub(names.len());
    // SAFETY: `COUNT` arguments follow one another, alive until the call returns.
    owned(callable.py(), unsafe {
        let names = names.as_ptr();
        halt::vectorcall(callable.as_ptr(), arguments.as_ptr(), positional, names)
    })
}

/// Calls with arguments by position.
#[inline]
pub(crate) fn call<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: [&Bound<'_, PyAny>; COUNT],
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.map(Bound::as_ptr);
    // SAFETY: as above.
    owned(callable.py(), unsafe {
        halt::vectorcall(callable.as_ptr(), arguments.as_ptr(), COUNT, ptr::null_mut())
    })
}

/// Calls with the items of a tuple by position.
#[inline]
pub(crate) fn call_with_tuple<'py>(
    callable: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: a tuple, which is alive until the call returns.
    owned(callable.py(), unsafe { halt::call(callable.as_ptr(), arguments.as_ptr()) })
}
