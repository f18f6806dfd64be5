//! Params of a call, by name or pointer and by position.

use std::ffi::c_char;

use crate::boundary::{bytes, guard};
use crate::call::Call;
use crate::params::{Which, boolean, double, integer};

type CallPointer = *mut Call<'static, 'static>;

/// Looks up one of the params and reads it. `None` also for a NULL call or name.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[inline]
unsafe fn read<'a, T>(
    call: CallPointer,
    which: Option<Which<'_>>,
    read: impl FnOnce(&'a mut Call<'static, 'static>, Which<'_>) -> Option<T>,
) -> Option<T> {
    let which = which?;
    guard(None, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let call = unsafe { call.as_mut() }?;
        read(call, which)
    })
}

/// Writes an output, unless it is not wanted; tells whether there was one.
///
/// # Safety
/// `output` is NULL or writable.
#[inline]
unsafe fn give<T>(value: Option<T>, output: *mut T) -> bool {
    let Some(value) = value else { return false };
    if !output.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { output.write(value) };
    }
    true
}

/// The same for text and its length. Text that is empty ends with a NUL: where it goes in again,
/// its length of 0 says that it does.
///
/// # Safety
/// Both are NULL or writable.
#[inline]
unsafe fn give_text(text: Option<&[u8]>, output: *mut *const c_char, length: *mut usize) -> bool {
    let start = |text: &[u8]| if text.is_empty() { c"".as_ptr() } else { text.as_ptr().cast() };
    // SAFETY: passed on to our caller.
    unsafe {
        give(text.map(<[u8]>::len), length);
        give(text.map(start), output)
    }
}

/// # Safety
/// As for [`bytes`].
#[inline]
unsafe fn named<'a>(name: *const c_char, length: usize) -> Option<Which<'a>> {
    // SAFETY: passed on to our caller.
    unsafe { bytes(name, length) }.map(Which::Named)
}

macro_rules! value_getters {
    ($named:ident, $positional:ident, $type:ty, $what:literal, $read:path) => {
        #[doc = concat!("One of the params by name, if it is ", $what, ".")]
        ///
        /// # Safety
        /// The call is NULL or alive and used by this thread alone; the name is NULL or readable;
        /// the output is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $named(
            call: CallPointer,
            name: *const c_char,
            name_length: usize,
            output: *mut $type,
        ) -> bool {
            // SAFETY: passed on to our caller.
            unsafe {
                let which = named(name, name_length);
                give(read(call, which, |call, which| $read(call.param(which)?)), output)
            }
        }

        #[doc = concat!("One of the params by position, if it is ", $what, ".")]
        ///
        /// # Safety
        /// As for the one by name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $positional(
            call: CallPointer,
            index: usize,
            output: *mut $type,
        ) -> bool {
            // SAFETY: passed on to our caller.
            unsafe {
                let which = Some(Which::At(index));
                give(read(call, which, |call, which| $read(call.param(which)?)), output)
            }
        }
    };
}

macro_rules! text_getters {
    ($named:ident, $positional:ident, $what:literal, $read:path) => {
        #[doc = concat!("One of the params by name, if it is ", $what, ".")]
        ///
        /// # Safety
        /// The call is NULL or alive and used by this thread alone; the name is NULL or readable;
        /// the outputs are NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $named(
            call: CallPointer,
            name: *const c_char,
            name_length: usize,
            output: *mut *const c_char,
            output_length: *mut usize,
        ) -> bool {
            // SAFETY: passed on to our caller.
            unsafe {
                let which = named(name, name_length);
                give_text(read(call, which, $read), output, output_length)
            }
        }

        #[doc = concat!("One of the params by position, if it is ", $what, ".")]
        ///
        /// # Safety
        /// As for the one by name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $positional(
            call: CallPointer,
            index: usize,
            output: *mut *const c_char,
            output_length: *mut usize,
        ) -> bool {
            // SAFETY: passed on to our caller.
            unsafe {
                let which = Some(Which::At(index));
                give_text(read(call, which, $read), output, output_length)
            }
        }
    };
}

value_getters!(
    ucall_param_named_bool,
    ucall_param_positional_bool,
    bool,
    "`true` or `false`",
    boolean
);
value_getters!(
    ucall_param_named_i64,
    ucall_param_positional_i64,
    i64,
    "an integer in range",
    integer
);
value_getters!(ucall_param_named_f64, ucall_param_positional_f64, f64, "a number in range", double);
text_getters!(ucall_param_named_str, ucall_param_positional_str, "a string", Call::string);
text_getters!(ucall_param_named_json, ucall_param_positional_json, "there", Call::param);
