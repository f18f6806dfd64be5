//! Calls of Python code that a thread may not come back from.
//!
//! While the interpreter is finalised, a thread that asks for its lock is ended: before 3.14 by
//! `pthread_exit`, which unwinds the thread's stack. Frames of Rust cannot be unwound like that;
//! the whole process would abort. So the unwinding is stopped where it would enter the first of
//! them: the thread sleeps there until the process ends, as from 3.14 on CPython has it. It costs
//! the calls that come back nothing. pyo3 does the same where it attaches a thread.
//!
//! pyo3 declares the same functions as ones that never unwind. A whole program is optimised as one,
//! where a name has one declaration, and that may be pyo3's; so these are called by addresses that
//! the optimiser cannot see through.

use std::arch::asm;
use std::mem;
use std::ptr;

use pyo3::ffi::{self, PyObject};

type Vectorcall = unsafe extern "C-unwind" fn(
    callable: *mut PyObject,
    arguments: *const *mut PyObject,
    flagged_count: usize,
    names: *mut PyObject,
) -> *mut PyObject;
type VectorcallDict = unsafe extern "C-unwind" fn(
    callable: *mut PyObject,
    arguments: *const *mut PyObject,
    flagged_count: usize,
    keywords: *mut PyObject,
) -> *mut PyObject;
type Call = unsafe extern "C-unwind" fn(
    callable: *mut PyObject,
    arguments: *mut PyObject,
    keywords: *mut PyObject,
) -> *mut PyObject;

/// The same address, of which the optimiser knows nothing.
#[inline(always)]
fn hide(mut address: *const ()) -> *const () {
    // SAFETY: it does nothing.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, readonly, nostack, preserves_flags))
    }
    address
}

/// A function of CPython, as one that may unwind.
macro_rules! unwinding {
    ($function:ident as $signature:ty) => {
        mem::transmute::<*const (), $signature>(hide(ffi::$function as *const ()))
    };
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
    let result = unsafe {
        unwinding!(PyObject_Vectorcall as Vectorcall)(callable, arguments, flagged_count, names)
    };
    mem::forget(halt);
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
    let result = unsafe {
        unwinding!(PyObject_VectorcallDict as VectorcallDict)(
            callable,
            arguments,
            flagged_count,
            keywords,
        )
    };
    mem::forget(halt);
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
    let result = unsafe { unwinding!(PyObject_Call as Call)(callable, arguments, ptr::null_mut()) };
    mem::forget(halt);
    result
}
