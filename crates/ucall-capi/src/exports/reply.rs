//! Replies, of live calls and of deferred ones.

use std::ffi::{c_char, c_int};

use ucall_proto::RpcError;
use ucall_proto::json::{write_f64, write_i64, write_string};

use crate::boundary::{bytes, guard};
use crate::call::Call;

type CallPointer = *mut Call<'static, 'static>;

/// Runs `reply` on a call, unless it is NULL.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[inline]
unsafe fn with(call: CallPointer, reply: impl FnOnce(&mut Call<'static, 'static>)) {
    guard((), || {
        // SAFETY: our caller says that it is alive and ours alone.
        if let Some(call) = unsafe { call.as_mut() } {
            reply(call);
        }
    });
}

/// Replies with JSON text.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `json` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_content(
    call: CallPointer,
    json: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    unsafe { with(call, |call| call.reply_content(bytes(json, length).unwrap_or_default())) }
}

/// Replies with `true` or `false`.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_bool(call: CallPointer, value: bool) {
    let text: &[u8] = if value { b"true" } else { b"false" };
    // SAFETY: passed on to our caller.
    unsafe { with(call, |call| call.reply(|out| out.extend_from_slice(text))) }
}

/// Replies with an integer.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_i64(call: CallPointer, value: i64) {
    // SAFETY: passed on to our caller.
    unsafe { with(call, |call| call.reply(|out| write_i64(out, value))) }
}

/// Replies with a double; JSON has no NaN and no infinity.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_f64(call: CallPointer, value: f64) {
    let reply = |call: &mut Call<'_, '_>| match value.is_finite() {
        true => call.reply(|out| {
            let _ = write_f64(out, value);
        }),
        false => call.fail("replied with a number that is not finite"),
    };
    // SAFETY: passed on to our caller.
    unsafe { with(call, reply) }
}

/// Replies with a string, escaped as JSON wants it.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `text` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_str(
    call: CallPointer,
    text: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    let text = unsafe { bytes(text, length) };
    let reply = |call: &mut Call<'_, '_>| match text.map(std::str::from_utf8) {
        Some(Ok(text)) => call.reply(|out| write_string(out, text)),
        Some(Err(_)) => call.fail("replied with a string that is not UTF-8"),
        None => call.fail("replied with a string that is NULL"),
    };
    // SAFETY: as above.
    unsafe { with(call, reply) }
}

/// Replies with an error of the program's own.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `message` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error(
    call: CallPointer,
    code: c_int,
    message: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    let message = unsafe { bytes(message, length) }.unwrap_or_default();
    // SAFETY: as above.
    unsafe {
        with(call, |call| {
            let message = String::from_utf8_lossy(message).into_owned();
            call.reply_error(RpcError::new(code.into(), message));
        });
    }
}

/// # Safety
/// As for the exports.
unsafe fn standard(call: CallPointer, code: i64, message: &'static str) {
    // SAFETY: passed on to our caller.
    unsafe { with(call, |call| call.reply_error(RpcError::new(code, message))) }
}

/// Replies that params are missing or of the wrong type.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_invalid_params(call: CallPointer) {
    // SAFETY: passed on to our caller.
    unsafe { standard(call, RpcError::INVALID_PARAMS, "Invalid params") }
}

/// Replies that memory ran out.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_out_of_memory(call: CallPointer) {
    // SAFETY: passed on to our caller.
    unsafe { standard(call, RpcError::INTERNAL_ERROR, "Out of memory") }
}

/// Replies that something failed.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_unknown(call: CallPointer) {
    // SAFETY: passed on to our caller.
    unsafe { standard(call, RpcError::INTERNAL_ERROR, "Internal error") }
}
