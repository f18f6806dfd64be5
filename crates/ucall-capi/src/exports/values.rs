//! Values of the params of a call, and iteration over arrays and objects.

use std::ffi::c_char;

use super::params::{named, write_output, write_text_output};
use crate::boundary::catch_panic;
use crate::call_handle::CallHandle;
use crate::items::count;
use crate::params::{ParamKey, boolean, double, integer, unsigned_integer};
use crate::value::{Value, ValueType};

/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
unsafe fn find(call: CallHandle, key: ParamKey<'_>) -> Option<Value> {
    // SAFETY: our caller says that it is alive and ours alone.
    let text = unsafe { call.as_mut() }?.param(key)?;
    Some(Value::new(call, text))
}

/// The params of a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_params(call: CallHandle, output: *mut Value) -> bool {
    let params = catch_panic(None, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let text = unsafe { call.as_mut() }?.params_text();
        (!text.is_empty()).then(|| Value::new(call, text))
    });
    // SAFETY: our caller says that it is NULL or writable.
    unsafe { write_output(params, output) }
}

/// One of the params by name.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `name` is NULL or readable; `output` is
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_named_value(
    call: CallHandle,
    name: *const c_char,
    name_length: usize,
    output: *mut Value,
) -> bool {
    // SAFETY: passed on to our caller.
    let value = catch_panic(None, || unsafe { find(call, named(name, name_length)?) });
    // SAFETY: our caller says that it is NULL or writable.
    unsafe { write_output(value, output) }
}

/// One of the params by position.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_positional_value(
    call: CallHandle,
    index: usize,
    output: *mut Value,
) -> bool {
    // SAFETY: passed on to our caller.
    let value = catch_panic(None, || unsafe { find(call, ParamKey::At(index)) });
    // SAFETY: our caller says that it is NULL or writable.
    unsafe { write_output(value, output) }
}

/// The type of one of the params by name.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `name` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_named_type(
    call: CallHandle,
    name: *const c_char,
    name_length: usize,
) -> ValueType {
    catch_panic(ValueType::None, || {
        // SAFETY: passed on to our caller.
        let value = unsafe { named(name, name_length).and_then(|name| find(call, name)) };
        // SAFETY: it is a value of this call.
        value.map_or(ValueType::None, |value| ValueType::of(unsafe { value.text() }))
    })
}

/// The type of one of the params by position.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_positional_type(call: CallHandle, index: usize) -> ValueType {
    catch_panic(ValueType::None, || {
        // SAFETY: passed on to our caller.
        let value = unsafe { find(call, ParamKey::At(index)) };
        // SAFETY: it is a value of this call.
        value.map_or(ValueType::None, |value| ValueType::of(unsafe { value.text() }))
    })
}

/// The text of a value; empty for NULL and for a value of zeros.
///
/// # Safety
/// `value` is NULL, or a value whose call is alive.
unsafe fn text<'a>(value: *const Value) -> &'a [u8] {
    // SAFETY: our caller says that it is NULL or a value.
    unsafe { value.as_ref() }.map_or(&[], |value| {
        // SAFETY: our caller says that its call is alive.
        unsafe { value.text() }
    })
}

/// The type of a value.
///
/// # Safety
/// `value` is NULL, or a value whose call is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_value_type(value: *const Value) -> ValueType {
    // SAFETY: passed on to our caller.
    catch_panic(ValueType::None, || ValueType::of(unsafe { text(value) }))
}

/// The number of items of an array or members of an object.
///
/// # Safety
/// `value` is NULL, or a value whose call is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_value_count(value: *const Value) -> usize {
    // SAFETY: passed on to our caller.
    catch_panic(0, || count(unsafe { text(value) }))
}

/// An export that reads a value.
macro_rules! reader {
    ($export:ident, $what:literal, $type:ty, $read:expr) => {
        #[doc = $what]
        ///
        /// # Safety
        /// `value` is NULL, or a value whose call is alive; `output` is NULL or writable.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $export(value: *const Value, output: *mut $type) -> bool {
            // SAFETY: passed on to our caller.
            let value = catch_panic(None, || $read(unsafe { text(value) }));
            // SAFETY: our caller says that it is NULL or writable.
            unsafe { write_output(value, output) }
        }
    };
}

reader!(ucall_value_bool, "Whether a value is `true`, if it is a boolean.", bool, boolean);
reader!(ucall_value_i64, "The integer that a value is.", i64, integer);
reader!(ucall_value_u64, "The integer that a value is.", u64, unsigned_integer);
reader!(ucall_value_f64, "The number that a value is.", f64, double);

/// The content of a string.
///
/// # Safety
/// `value` is NULL, or a value whose call is alive and used by this thread alone; the outputs are
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_value_str(
    value: *const Value,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let content = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or a value.
        let value = unsafe { value.as_ref() }?;
        // SAFETY: our caller says that its call is alive and ours alone.
        unsafe { value.call()?.unescape(value.text()) }
    });
    // SAFETY: our caller says that they are NULL or writable.
    content.is_some() && unsafe { write_text_output(content, output, output_length) }
}

/// Replaces an item of an array or object by the next one.
///
/// # Safety
/// `container` and `item` are NULL, or values whose call is alive; `item` may be of zeros, and is
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_value_next(container: *const Value, item: *mut Value) -> bool {
    let next = catch_panic(None, || {
        // SAFETY: our caller says that they are NULL or values.
        let (container, previous) = unsafe { (container.as_ref()?, item.as_ref()?) };
        // SAFETY: our caller says that their call is alive.
        Some(unsafe { container.next(previous) }?.1)
    });
    // SAFETY: our caller says that it is NULL or writable.
    unsafe { write_output(next, item) }
}

/// Replaces a member of an object by the next one.
///
/// # Safety
/// As for [`ucall_value_next`]; this thread alone uses the call; the outputs are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_value_next_member(
    object: *const Value,
    member: *mut Value,
    key: *mut *const c_char,
    key_length: *mut usize,
) -> bool {
    let next = catch_panic(None, || {
        // SAFETY: our caller says that they are NULL or values.
        let (object, previous) = unsafe { (object.as_ref()?, member.as_ref()?) };
        // SAFETY: our caller says that their call is alive.
        let (name, next) = unsafe { object.next(previous) }?;
        // SAFETY: and that it is ours alone.
        Some((unsafe { object.call() }?.unescape_text(name?), next))
    });
    let Some((name, next)) = next else { return false };
    // SAFETY: our caller says that they are NULL or writable.
    unsafe {
        write_text_output(Some(name), key, key_length);
        write_output(Some(next), member)
    }
}
