//! Calls of Python code that a thread may not come back from.
//!
//! While the interpreter is finalised, a thread that asks for its lock is ended: before 3.14 by
//! `pthread_exit`, which unwinds the thread's stack. Frames of Rust cannot be unwound like that;
//! the whole process would abort. So the unwinding is stopped where it would enter the first of
//! them: the thread sleeps there until the process ends, as from 3.14 on CPython has it. It costs
//! the calls that come back nothing. pyo3 does the same where it attaches a thread.

use std::ffi::c_int;
use std::ptr;

use pyo3::ffi::PyObject;

mod raw {
    use std::ffi::c_int;

    use pyo3::ffi::PyObject;

    unsafe extern "C-unwind" {
        pub(super) fn PyObject_Vectorcall(
            callable: *mut PyObject,
            arguments: *const *mut PyObject,
            flagged_count: usize,
            names: *mut PyObject,
        ) -> *mut PyObject;
        pub(super) fn PyObject_VectorcallDict(
            callable: *mut PyObject,
            arguments: *const *mut PyObject,
            flagged_count: usize,
            keywords: *mut PyObject,
        ) -> *mut PyObject;
        pub(super) fn PyIter_Send(
            iterator: *mut PyObject,
            argument: *mut PyObject,
            result: *mut *mut PyObject,
        ) -> c_int;
        pub(super) fn PyObject_Call(
            callable: *mut PyObject,
            arguments: *mut PyObject,
            keywords: *mut PyObject,
        ) -> *mut PyObject;
    }
}

/// Keeps a thread that is unwound from going any further.
struct Halt;

impl Drop for Halt {
    fn drop(&mut self) {
        halt()
    }
}

/// Sleeps until the process ends.
pub(crate) fn halt() -> ! {
    loop {
        std::thread::park();
    }
}

/// `PyObject_Vectorcall`.
///
/// # Safety
/// As that asks for, with the thread attached.
#[inline]
pub(super) unsafe fn vectorcall(
    callable: *mut PyObject,
    arguments: *const *mut PyObject,
    flagged_count: usize,
    names: *mut PyObject,
) -> *mut PyObject {
    let halt = Halt;
    // SAFETY: the caller's.
    let result = unsafe { raw::PyObject_Vectorcall(callable, arguments, flagged_count, names) };
    std::mem::forget(halt);
    result
}

/// `PyObject_VectorcallDict`.
///
/// # Safety
/// As that asks for, with the thread attached.
#[inline]
pub(super) unsafe fn vectorcall_dict(
    callable: *mut PyObject,
    arguments: *const *mut PyObject,
    flagged_count: usize,
    keywords: *mut PyObject,
) -> *mut PyObject {
    let halt = Halt;
    // SAFETY: the caller's.
    let result =
        unsafe { raw::PyObject_VectorcallDict(callable, arguments, flagged_count, keywords) };
    std::mem::forget(halt);
    result
}

/// `PyObject_Call` without keyword arguments.
///
/// # Safety
/// As that asks for, with the thread attached.
#[inline]
pub(super) unsafe fn call(callable: *mut PyObject, arguments: *mut PyObject) -> *mut PyObject {
    let halt = Halt;
    // SAFETY: the caller's.
    let result = unsafe { raw::PyObject_Call(callable, arguments, ptr::null_mut()) };
    std::mem::forget(halt);
    result
}

/// `PyIter_Send`.
///
/// # Safety
/// As that asks for, with the thread attached.
#[inline]
pub(super) unsafe fn send(
    iterator: *mut PyObject,
    argument: *mut PyObject,
    result: *mut *mut PyObject,
) -> c_int {
    let halt = Halt;
    // SAFETY: the caller's.
    let status = unsafe { raw::PyIter_Send(iterator, argument, result) };
    std::mem::forget(halt);
    status
}
