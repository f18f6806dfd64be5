//! Params of a call, by name, by pointer and by position.

use std::ffi::c_char;

use crate::boundary::{catch_panic, name_bytes};
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::params::{
    Lookup, ParamKey, boolean, double, integer, plain_string, short_integer, unsigned_integer,
};

/// For longer names, strlen is faster.
const SHORT: usize = 16;

/// Looks up one of the params on the fast path. It calls no function and cannot panic, so it needs
/// no panic boundary and saves few registers.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[inline(always)]
unsafe fn lookup<'a>(call: CallHandle, key: Option<ParamKey<'_>>) -> Lookup<'a> {
    match (key, call.live()) {
        // SAFETY: it is live, and our caller says that it is ours alone.
        (Some(key), Some(call)) => unsafe { (*call.cast::<Call<'_, '_>>()).lookup(key) },
        _ => Lookup::Unknown,
    }
}

/// A name, if it is short. With a length of 0 it ends at its NUL.
///
/// # Safety
/// As for [`bytes`](crate::boundary::bytes).
#[inline(always)]
unsafe fn short_name<'a>(name: *const c_char, length: usize) -> Option<&'a [u8]> {
    let length = match length {
        _ if name.is_null() => return None,
        // SAFETY: no byte after the NUL is read.
        0 => (0..=SHORT).find(|&at| unsafe { *name.add(at) } == 0)?,
        1..=SHORT => length,
        _ => return None,
    };
    // SAFETY: our caller says that `length` bytes are readable.
    Some(unsafe { std::slice::from_raw_parts(name.cast(), length) })
}

/// Looks up one of the params and reads it. `None` also for a NULL call or name.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[inline]
pub(super) unsafe fn read<'a, T>(
    call: CallHandle,
    key: Option<ParamKey<'_>>,
    read: impl FnOnce(&'a mut Call<'static, 'static>, ParamKey<'_>) -> Option<T>,
) -> Option<T> {
    let key = key?;
    catch_panic(None, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let call = unsafe { call.as_mut() }?;
        read(call, key)
    })
}

/// Writes an output, unless `output` is NULL; `true` if there is a value.
///
/// # Safety
/// `output` is NULL or writable.
#[inline]
pub(super) unsafe fn write_output<T>(value: Option<T>, output: *mut T) -> bool {
    let Some(value) = value else { return false };
    if !output.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { output.write(value) };
    }
    true
}

/// Writes text and its length. Empty text ends with a NUL, as a name with a length of 0 has to.
///
/// # Safety
/// Both are NULL or writable.
#[inline]
pub(super) unsafe fn write_text_output(
    text: Option<&[u8]>,
    output: *mut *const c_char,
    length: *mut usize,
) -> bool {
    let start = |text: &[u8]| if text.is_empty() { c"".as_ptr() } else { text.as_ptr().cast() };
    // SAFETY: passed on to our caller.
    unsafe {
        write_output(text.map(<[u8]>::len), length);
        write_output(text.map(start), output)
    }
}

/// The name of a param.
///
/// # Safety
/// As for [`bytes`](crate::boundary::bytes).
#[inline]
pub(super) unsafe fn named<'a>(name: *const c_char, length: usize) -> Option<ParamKey<'a>> {
    // SAFETY: passed on to our caller.
    unsafe { name_bytes(name, length) }.ok().map(ParamKey::Named)
}

/// An export that looks up one of the params and reads it: by `$lookup` if the key is `$short` and
/// the value simple, and otherwise by `$read`.
macro_rules! getter {
    (
        $export:ident, $what:expr, ($($input:ident: $of:ty),+), $short:expr, $key:expr,
        ($($output:ident: $type:ty),+), $write_output:ident, $lookup:expr, $read:expr
    ) => {
        #[doc = $what]
        ///
        /// # Safety
        /// The call is NULL or alive and used by this thread alone; a name is NULL or readable; the
        /// outputs are NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $export(
            call: CallHandle,
            $($input: $of,)+
            $($output: *mut $type),+
        ) -> bool {
            /// # Safety
            /// As for the export.
            #[cold]
            #[inline(never)]
            unsafe extern "C" fn general(
                call: CallHandle,
                $($input: $of,)+
                $($output: *mut $type),+
            ) -> bool {
                // SAFETY: passed on to our caller.
                unsafe { $write_output(read(call, $key, $read), $($output),+) }
            }
            // SAFETY: passed on to our caller.
            unsafe {
                match lookup(call, $short) {
                    Lookup::Absent => return false,
                    Lookup::Found(value) => if let Some(value) = $lookup(value) {
                        return $write_output(Some(value), $($output),+);
                    }
                    Lookup::Unknown => {}
                }
                general(call, $($input,)+ $($output),+)
            }
        }
    };
}

/// The text of a value that surely refers to no part: one that is no container.
#[inline]
fn without_parts(value: &[u8]) -> Option<&[u8]> {
    (!matches!(value.first(), Some(b'{' | b'['))).then_some(value)
}

/// The getters of one type.
macro_rules! getters {
    ($named:ident, $positional:ident, $what:literal, $($how:tt)+) => {
        getter!(
            $named,
            concat!("One of the params by name, if it is ", $what, "."),
            (name: *const c_char, name_length: usize),
            short_name(name, name_length).map(ParamKey::Named),
            named(name, name_length),
            $($how)+
        );
        getter!(
            $positional,
            concat!("One of the params by position, if it is ", $what, "."),
            (index: usize),
            Some(ParamKey::At(index)),
            Some(ParamKey::At(index)),
            $($how)+
        );
    };
}

getters!(
    ucall_param_named_bool,
    ucall_param_positional_bool,
    "`true` or `false`",
    (output: bool),
    write_output,
    boolean,
    |call, key| boolean(call.param(key)?)
);
getters!(
    ucall_param_named_i64,
    ucall_param_positional_i64,
    "an integer in range",
    (output: i64),
    write_output,
    short_integer,
    |call, key| integer(call.param(key)?)
);
getters!(
    ucall_param_named_u64,
    ucall_param_positional_u64,
    "an integer in range that is not negative",
    (output: u64),
    write_output,
    |value| short_integer(value).and_then(|value| u64::try_from(value).ok()),
    |call, key| unsigned_integer(call.param(key)?)
);
getters!(
    ucall_param_named_f64,
    ucall_param_positional_f64,
    "a number in range",
    (output: f64),
    write_output,
    |value| catch_panic(None, || double(value)),
    |call, key| double(call.param(key)?)
);
getters!(
    ucall_param_named_str,
    ucall_param_positional_str,
    "a string",
    (output: *const c_char, output_length: usize),
    write_text_output,
    plain_string,
    Call::string
);
getters!(
    ucall_param_named_json,
    ucall_param_positional_json,
    "present",
    (output: *const c_char, output_length: usize),
    write_text_output,
    without_parts,
    Call::param
);
