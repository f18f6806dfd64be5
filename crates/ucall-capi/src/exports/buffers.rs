//! Params and replies that are arrays or bytes.

use std::ffi::c_char;

use super::params::{named, read, write_output};
use super::reply::with_call;
use crate::buffers::Buffer;
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::params::ParamKey;

/// One of the params by name, if it is an array or bytes.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `name` is NULL or readable; `output` is
/// NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_named_buffer(
    call: CallHandle,
    name: *const c_char,
    name_length: usize,
    output: *mut Buffer,
) -> bool {
    // SAFETY: passed on to our caller.
    unsafe { write_output(read(call, named(name, name_length), Call::buffer), output) }
}

/// One of the params by position, if it is an array or bytes.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_param_positional_buffer(
    call: CallHandle,
    index: usize,
    output: *mut Buffer,
) -> bool {
    // SAFETY: passed on to our caller.
    unsafe { write_output(read(call, Some(ParamKey::At(index)), Call::buffer), output) }
}

/// Replies with an array or bytes.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `buffer` is NULL, or its data and shape
/// are NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_buffer(call: CallHandle, buffer: *const Buffer) {
    // SAFETY: our caller says that it is NULL or readable.
    let content = match unsafe { buffer.as_ref() } {
        // SAFETY: as above.
        Some(buffer) => unsafe { buffer.content() },
        None => Err("is NULL"),
    };
    let reply = |call: &mut Call<'_, '_>| match content {
        Ok((tensor, bytes)) => call.reply_buffer(tensor, bytes),
        Err(fault) => call.fail(&format!("replied with a buffer that {fault}")),
    };
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, reply) }
}
