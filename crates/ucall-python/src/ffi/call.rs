//! Calls of Python callables without a tuple of arguments (vectorcall).

use std::ptr;

use pyo3::exceptions::PySystemError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;

use super::{halt, owned};

/// Slots on the stack, including the free one before the arguments.
const INLINE: usize = 9;

/// The arguments of one call, in order, after one free slot that the interpreter may use during the
/// call (for the `self` of a bound method).
pub(crate) struct Slots<'py> {
    slots: SmallVec<[Option<Bound<'py, PyAny>>; INLINE]>,
    /// The number of arguments that are not set although a later one is.
    gaps: usize,
}

impl<'py> Slots<'py> {
    /// Without arguments.
    #[inline]
    pub(crate) fn new() -> Self {
        let mut slots = SmallVec::new();
        slots.push(None);
        Self { slots, gaps: 0 }
    }

    /// Sets the argument at `index`. Arguments are mostly set in their order.
    #[inline]
    pub(crate) fn set(&mut self, index: usize, argument: Bound<'py, PyAny>) {
        match self.slots.len() == index + 1 {
            true => self.slots.push(Some(argument)),
            false => self.set_in_any_order(index, argument),
        }
    }

    #[inline(never)]
    fn set_in_any_order(&mut self, index: usize, argument: Bound<'py, PyAny>) {
        if let Some(slot) = self.slots.get_mut(index + 1) {
            self.gaps -= usize::from(slot.is_none());
            *slot = Some(argument);
            return;
        }
        self.gaps += index + 1 - self.slots.len();
        self.slots.resize_with(index + 1, || None);
        self.slots.push(Some(argument));
    }

    /// Whether the argument at `index` is set.
    pub(crate) fn is_set(&self, index: usize) -> bool {
        self.slots.get(index + 1).is_some_and(Option::is_some)
    }

    /// Whether exactly the first `count` arguments are set.
    #[inline]
    pub(crate) fn are_set(&self, count: usize) -> bool {
        self.slots.len() == count + 1 && self.gaps == 0
    }

    /// Inserts arguments at `index`; those from there on move up.
    pub(crate) fn insert_many(&mut self, index: usize, arguments: Vec<Bound<'py, PyAny>>) {
        self.slots.insert_many(index + 1, arguments.into_iter().map(Some));
    }

    /// Takes the arguments from `index` on out.
    pub(crate) fn split_off<T: FromIterator<Bound<'py, PyAny>>>(&mut self, index: usize) -> T {
        self.slots.drain(index + 1..).flatten().collect()
    }

    /// The arguments as vectorcall takes them, and their number. An argument that is not set, a bug
    /// of this crate, raises `SystemError`.
    #[inline]
    fn arguments(&self) -> PyResult<(*const *mut ffi::PyObject, usize)> {
        if self.gaps > 0 {
            return Err(PySystemError::new_err("an argument was not filled in"));
        }
        // `Bound` is transparent over a non-null pointer: a filled slot is that pointer.
        Ok((self.slots.as_ptr().wrapping_add(1).cast(), self.slots.len() - 1))
    }
}

/// Calls with the last arguments named by `names`, the others by position.
#[inline(always)]
pub(crate) fn call_with_slots<'py>(
    callable: &Bound<'py, PyAny>,
    slots: &Slots<'py>,
    names: Option<&Bound<'py, PyTuple>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (arguments, count) = slots.arguments()?;
    let positional = count.saturating_sub(names.map_or(0, |names| names.len()));
    let names = names.map_or(ptr::null_mut(), |names| names.as_ptr());
    let flagged = positional | ffi::PY_VECTORCALL_ARGUMENTS_OFFSET;
    // SAFETY: `count` consecutive arguments, alive until the call returns, follow a slot that the
    // interpreter may use.
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

/// Calls with arguments of which the last ones are named by `names`.
#[inline]
pub(crate) fn call_with_names<'py, const COUNT: usize>(
    callable: &Bound<'py, PyAny>,
    arguments: &[&Bound<'py, PyAny>; COUNT],
    names: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyAny>> {
    let arguments = arguments.map(Bound::as_ptr);
    let positional = COUNT.saturating_sub(names.len());
    // SAFETY: `COUNT` consecutive arguments, alive until the call returns.
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
