//! Calls of Python code from threads that the interpreter may end.
//!
//! While the interpreter is finalised, a thread that asks for its lock is ended: before 3.14 by
//! `pthread_exit`, which unwinds the thread's stack. Unwinding through Rust frames would abort the
//! process. So these wrappers stop the unwinding before the first Rust frame: the thread sleeps
//! until the process ends, as CPython does from 3.14 on. Calls that return cost nothing more. pyo3
//! does the same where it attaches a thread.
//!
//! pyo3 declares the same functions as ones that never unwind. Link-time optimisation may merge the
//! declarations of a name into that one, so these functions are called by addresses that are opaque
//! to the optimiser.

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

/// The same address, opaque to the optimiser.
#[inline(always)]
fn hide(mut address: *const ()) -> *const () {
    // SAFETY: the assembly is empty.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, readonly, nostack, preserves_flags))
    }
    address
}

/// A function of CPython, declared as one that may unwind.
macro_rules! unwinding {
    ($function:ident as $signature:ty) => {
        mem::transmute::<*const (), $signature>(hide(ffi::$function as *const ()))
    };
}

/// Stops the unwinding of its thread when dropped.
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
