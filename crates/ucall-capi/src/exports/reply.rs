//! Replies to live and deferred calls.

use std::ffi::{c_char, c_int};
use std::ptr;

use ucall_proto::Limits;
use ucall_proto::RpcError;
use ucall_proto::json::{validate, write_f64, write_i64, write_string};

use crate::boundary::{bytes, catch_panic, optional_bytes};
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::writer::{Writer, write_u64};

/// Runs `reply` on a call, unless the call is NULL. After a panic the caller gets an error in place
/// of the partial reply.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[inline]
pub(super) unsafe fn with_call(call: CallHandle, reply: impl FnOnce(&mut Call<'static, 'static>)) {
    let call = if let Some(live) = call.live() {
        live
    } else if let Some(deferred) = catch_panic(None, || call.deferred_or_ended()) {
        deferred
    } else {
        return;
    };
    let call = call.cast::<Call<'static, 'static>>();
    let has_returned = catch_panic(false, || {
        // SAFETY: our caller says that it is alive and ours alone.
        reply(unsafe { &mut *call });
        true
    });
    if !has_returned {
        // SAFETY: as above.
        unsafe { roll_back(call) };
    }
}

/// # Safety
/// As for [`with_call`].
#[cold]
#[inline(never)]
unsafe fn roll_back(call: *mut Call<'static, 'static>) {
    // SAFETY: our caller says that it is alive and ours alone.
    catch_panic((), || unsafe { &mut *call }.fail("could not reply: a bug in ucall"));
}

/// Replies with JSON text, after validating it.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `json` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_content(
    call: CallHandle,
    json: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    let json = unsafe { bytes(json, length) };
    let reply = |call: &mut Call<'_, '_>| match json {
        Ok(json) => call.reply_content(json),
        Err(fault) => call.fail(&format!("replied with JSON that {fault}")),
    };
    // SAFETY: as above.
    unsafe { with_call(call, reply) }
}

/// Replies with `true` or `false`.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_bool(call: CallHandle, value: bool) {
    let text: &[u8] = if value { b"true" } else { b"false" };
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, |call| call.reply(|out| out.extend_from_slice(text))) }
}

/// Replies with an integer.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_i64(call: CallHandle, value: i64) {
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, |call| call.reply(|out| write_i64(out, value))) }
}

/// Replies with an integer.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_u64(call: CallHandle, value: u64) {
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, |call| call.reply(|out| write_u64(out, value))) }
}

/// Replies with null.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_null(call: CallHandle) {
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, |call| call.reply(|out| out.extend_from_slice(b"null"))) }
}

/// Replies with the value of a writer.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `writer` is NULL, or alive and used by
/// this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_writer(call: CallHandle, writer: *const Writer) {
    // SAFETY: our caller says that it is NULL or alive.
    let text = unsafe { writer.as_ref() }.map_or(Err("the writer is NULL"), Writer::text);
    let reply = |call: &mut Call<'_, '_>| match text {
        Ok(text) => call.reply(|out| out.extend_from_slice(text)),
        Err(why) => call.fail(&format!("replied by a writer: {why}")),
    };
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, reply) }
}

/// Replies with a double; JSON has no NaN and no infinity.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_f64(call: CallHandle, value: f64) {
    let reply = |call: &mut Call<'_, '_>| match value.is_finite() {
        true => call.reply(|out| {
            let _ = write_f64(out, value);
        }),
        false => call.fail("replied with a number that is not finite"),
    };
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, reply) }
}

/// Replies with a string, escaped as JSON wants it.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `text` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_str(
    call: CallHandle,
    text: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    let text = unsafe { bytes(text, length) };
    let reply = |call: &mut Call<'_, '_>| match text.map(std::str::from_utf8) {
        Ok(Ok(text)) => call.reply(|out| write_string(out, text)),
        Ok(Err(_)) => call.fail("replied with a string that is not UTF-8"),
        Err(fault) => call.fail(&format!("replied with a string that {fault}")),
    };
    // SAFETY: as above.
    unsafe { with_call(call, reply) }
}

/// Replies with an error of the program.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `message` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error(
    call: CallHandle,
    code: c_int,
    message: *const c_char,
    length: usize,
) {
    // SAFETY: passed on to our caller.
    unsafe { ucall_call_reply_error_data(call, code, message, length, ptr::null(), 0) }
}

/// Replies with an error of the program that has data.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; the texts are NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_data(
    call: CallHandle,
    code: c_int,
    message: *const c_char,
    message_length: usize,
    data: *const c_char,
    data_length: usize,
) {
    // SAFETY: passed on to our caller.
    let (message, data) =
        unsafe { (optional_bytes(message, message_length), optional_bytes(data, data_length)) };
    let reply = |call: &mut Call<'_, '_>| {
        let message = match message {
            Ok(message) => String::from_utf8_lossy(message.unwrap_or_default()).into_owned(),
            Err(fault) => {
                return call.fail(&format!("replied with an error whose message {fault}"));
            }
        };
        let data = match data {
            Ok(Some(data)) if validate(data, Limits::NESTING_MAX).is_ok() => Some(data.to_vec()),
            Ok(None) => None,
            _ => return call.fail("replied with an error whose data is invalid JSON"),
        };
        call.reply_error(RpcError { data, ..RpcError::new(code.into(), message) });
    };
    // SAFETY: as above.
    unsafe { with_call(call, reply) }
}

/// Writes a warning of a call to the log.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `text` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_warn(call: CallHandle, text: *const c_char, length: usize) {
    catch_panic((), || {
        // SAFETY: our caller says that it is NULL or readable.
        if let Ok(text) = unsafe { bytes(text, length) } {
            let text = String::from_utf8_lossy(text);
            // SAFETY: our caller says that it is alive and ours alone.
            if let Some(call) = unsafe { call.as_ref() } {
                call.warn(&text);
            }
        }
    });
}

/// # Safety
/// As for the exports.
unsafe fn reply_standard_error(call: CallHandle, code: i64, message: &'static str) {
    // SAFETY: passed on to our caller.
    unsafe { with_call(call, |call| call.reply_error(RpcError::new(code, message))) }
}

/// Replies that params are missing or of the wrong type.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_invalid_params(call: CallHandle) {
    // SAFETY: passed on to our caller.
    unsafe { reply_standard_error(call, RpcError::INVALID_PARAMS, "Invalid params") }
}

/// Replies that memory ran out.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_out_of_memory(call: CallHandle) {
    // SAFETY: passed on to our caller.
    unsafe { reply_standard_error(call, RpcError::INTERNAL_ERROR, "Out of memory") }
}

/// Replies that something failed.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_reply_error_unknown(call: CallHandle) {
    // SAFETY: passed on to our caller.
    unsafe { reply_standard_error(call, RpcError::INTERNAL_ERROR, "Internal error") }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::ptr;
    use std::sync::Arc;
    use std::time::Instant;

    use ucall_engine::Id;
    use ucall_proto::http1::{AccessRules, ReplyWriter};
    use ucall_proto::{
        Call as Request, CallOutcome, Connection, Drain, Environment, Limits, LoadState, Reply,
        Scratch, Service,
    };
    use ucall_server::{Caller, Handler, Transport};

    use super::*;
    use crate::callback::Callback;
    use crate::callback_handler::CallbackHandler;
    use crate::log::{Format, Log, Output};
    use crate::stop::StopSignal;
    use crate::turn_control::TurnControl;

    /// Runs one callback for every call.
    struct Only {
        handler: CallbackHandler,
        callback: Callback,
    }

    impl Service for Only {
        fn call(&mut self, call: &Request<'_>, reply: &mut Reply<'_>) -> CallOutcome {
            let connection = Id { index: 0, generation: 0 };
            let caller = Caller { connection, peer: None, transport: Transport::Tcp };
            self.handler.call(&self.callback, call, &caller, reply)
        }
    }

    /// Panics in the middle of a reply.
    unsafe extern "C-unwind" fn panics(call: CallHandle, _tag: *mut c_void) {
        let reply = |call: &mut Call<'_, '_>| {
            call.reply(|out| {
                out.extend_from_slice(b"[1,");
                panic!("on purpose");
            });
        };
        // SAFETY: the call is alive until the callback returns.
        unsafe { with_call(call, reply) };
    }

    #[test]
    fn a_panic_takes_back_what_was_written() {
        let log = Arc::new(Log::new(Output::Warnings, Format::Human));
        let control = Arc::new(TurnControl::new(StopSignal::new().unwrap(), log));
        let handler = CallbackHandler::new(control, None, None, 1, 1).unwrap();
        let (tag, series) = (ptr::null_mut(), Box::default());
        let callback = Callback { name: "x".into(), function: panics, tag, series };
        let mut service = Only { handler, callback };
        let (limits, now) = (Limits::default(), Instant::now());
        let mut connection = Connection::new(now, &limits);
        let mut out = Vec::new();
        let mut environment = Environment {
            limits: &limits,
            access: &AccessRules::default(),
            now,
            replies: &mut ReplyWriter::default(),
            service: &mut service,
            scratch: &mut Scratch::default(),
            out: &mut out,
            queued_bytes: 0,
            drain: Drain::No,
            load: LoadState::Normal,
        };
        let mut request = *br#"{"jsonrpc":"2.0","method":"x","id":1}"#;
        connection.receive(&mut request, &mut environment);
        let error = r#"{"code":-32603,"message":"The handler could not reply: a bug in ucall"}"#;
        let reply = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{error}}}"#);
        assert_eq!(out.trim_ascii(), reply.as_bytes());
    }
}
