//! Messages that the server starts.

use std::ffi::c_char;

use ucall_server::Overflow;

use crate::boundary::{catch_panic, name, optional_bytes};
use crate::call_handle::CallHandle;
use crate::channel::message;
use crate::server::Server;

/// Publishes to the subscribers of a topic.
///
/// # Safety
/// `server` is NULL or alive; the texts are NULL, or readable for their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_publish(
    server: *const Server,
    topic: *const c_char,
    topic_length: usize,
    method: *const c_char,
    method_length: usize,
    params: *const c_char,
    params_length: usize,
) -> bool {
    catch_panic(false, || {
        // SAFETY: our caller says that it is NULL or alive.
        let Some(server) = (unsafe { server.as_ref() }) else { return false };
        // SAFETY: our caller says that they are NULL, or readable.
        let (topic, method, params) = unsafe {
            (
                name(topic, topic_length),
                name(method, method_length),
                optional_bytes(params, params_length),
            )
        };
        let (Some(topic), Some(method), Ok(params)) = (topic, method, params) else {
            return false;
        };
        message(topic, method, params).is_some_and(|message| server.publish(topic, &message))
    })
}

/// Sends the client of a call a notification.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; the texts are NULL, or readable for
/// their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_notify(
    call: CallHandle,
    method: *const c_char,
    method_length: usize,
    params: *const c_char,
    params_length: usize,
) -> bool {
    catch_panic(false, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(call) = (unsafe { call.as_ref() }) else { return false };
        // SAFETY: our caller says that they are NULL, or readable.
        let (method, params) =
            unsafe { (name(method, method_length), optional_bytes(params, params_length)) };
        let (Some(method), Ok(params)) = (method, params) else { return false };
        let message = message("", method, params);
        message.is_some_and(|message| call.channel().is_some_and(|it| it.notify(message)))
    })
}

/// Subscribes the connection of a call to a topic.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `topic` is NULL, or readable for its
/// length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_subscribe(
    call: CallHandle,
    topic: *const c_char,
    topic_length: usize,
    overflow: u32,
) -> bool {
    catch_panic(false, || {
        let overflow = match overflow {
            0 => Overflow::DropOldest,
            1 => Overflow::DropNewest,
            2 => Overflow::Close,
            _ => return false,
        };
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(call) = (unsafe { call.as_ref() }) else { return false };
        // SAFETY: our caller says that it is NULL, or readable.
        let Some(topic) = (unsafe { name(topic, topic_length) }) else { return false };
        call.channel().is_some_and(|channel| channel.subscribe(topic, overflow))
    })
}

/// Ends the subscription of the connection of a call.
///
/// # Safety
/// As for [`ucall_call_subscribe`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_unsubscribe(
    call: CallHandle,
    topic: *const c_char,
    topic_length: usize,
) {
    catch_panic((), || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(channel) = unsafe { call.as_ref() }.and_then(|call| call.channel()) else {
            return;
        };
        // SAFETY: our caller says that it is NULL, or readable.
        if let Some(topic) = unsafe { name(topic, topic_length) } {
            channel.unsubscribe(topic);
        }
    });
}
