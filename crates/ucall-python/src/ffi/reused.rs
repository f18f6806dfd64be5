//! Objects that nothing refers to any more, for later ones of their class.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::PyClass;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::pyclass::boolean_struct::True;

use super::has_one_reference;

/// Keeps an object of a class for its next use.
pub(crate) struct ReusedObject<T> {
    object: AtomicPtr<ffi::PyObject>,
    class: PhantomData<fn() -> T>,
}

impl<T: PyClass<Frozen = True> + Sync> ReusedObject<T> {
    pub(crate) const fn none() -> Self {
        Self { object: AtomicPtr::new(ptr::null_mut()), class: PhantomData }
    }

    /// Takes the object that was kept.
    #[inline]
    pub(crate) fn take<'py>(&self, py: Python<'py>) -> Option<Bound<'py, T>> {
        let object = self.object.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: it is null, or the reference that `keep` has left to an object of the class.
        unsafe { Some(Bound::from_owned_ptr_or_opt(py, object)?.cast_into_unchecked()) }
    }

    /// Keeps an object, unless another one is kept.
    #[inline]
    pub(crate) fn keep(&self, object: Bound<'_, T>) {
        let py = object.py();
        let object = object.into_ptr();
        let (none, order) = (ptr::null_mut(), Ordering::Release);
        if self.object.compare_exchange(none, object, order, Ordering::Relaxed).is_err() {
            // SAFETY: the reference is still this function's.
            drop(unsafe { Bound::from_owned_ptr(py, object) });
        }
    }
}

/// The value of an object, if nothing else refers to it. The class has no weak references, and the
/// garbage collector does not know its objects.
#[inline]
pub(crate) fn sole_value<'a, T>(object: &'a mut Bound<'_, T>) -> Option<&'a mut T>
where
    T: PyClass<Frozen = True> + Sync,
{
    if !has_one_reference(object.as_any()) {
        return None;
    }
    let offset = value_offset(object);
    // SAFETY: the value is at this place of the object. No reference to it exists: that would need
    // another one to the object, whose only one is borrowed for as long as the value.
    Some(unsafe { &mut *object.as_ptr().byte_add(offset).cast::<T>() })
}

/// Where in an object its value is.
#[inline]
pub(super) fn value_offset<T: PyClass<Frozen = True> + Sync>(object: &Bound<'_, T>) -> usize {
    ptr::from_ref(object.get()).addr() - object.as_ptr().addr()
}
