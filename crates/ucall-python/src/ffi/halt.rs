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

use pyo3::ffi::{self, PyObject};

/// The same address, opaque to the optimiser.
#[inline(always)]
fn hide(mut address: *const ()) -> *const () {
    // SAFETY: the assembly is empty.
    unsafe {
        asm!("/* {0} */", inout(reg) address, options(pure, readonly, nostack, preserves_flags))
    }
    address
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

/// Wraps a function of CPython, declared as one that may unwind.
macro_rules! wrapper {
    (
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $function:ident
    ) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As that asks for, with the thread attached.
        #[inline]
        pub(super) unsafe fn $name($($argument: $type),*) -> $result {
            type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
            let halt = Halt;
            // SAFETY: it is the signature of that function; the rest is the caller's.
            let result = unsafe {
                let address = hide(ffi::$function as *const ());
                mem::transmute::<*const (), Function>(address)($($argument),*)
            };
            mem::forget(halt);
            result
        }
    };
}

type Object = *mut PyObject;

wrapper!(
    /// `PyObject_Vectorcall`.
    vectorcall(callable: Object, arguments: *const Object, flagged_count: usize, names: Object)
        -> Object = PyObject_Vectorcall
);
wrapper!(
    /// `PyObject_VectorcallDict`.
    vectorcall_dict(callable: Object, arguments: *const Object, flagged_count: usize, keys: Object)
        -> Object = PyObject_VectorcallDict
);
wrapper!(
    /// `PyIter_Send`.
    send(iterator: Object, value: Object, result: *mut Object) -> ffi::PySendResult = PyIter_Send
);
