//! Messages that the server starts.

use std::ffi::c_char;

use ucall_server::Overflow;

use crate::boundary::{bytes, catch_panic, string};
use crate::call_handle::CallHandle;
use crate::channel::message;
use crate::server::Server;

/// Publishes to the subscribers of a topic.
///
/// # Safety
/// `server` is NULL or alive; the texts are NULL, or end at a NUL; `params` may have a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_publish(
    server: *const Server,
    topic: *const c_char,
    method: *const c_char,
    params: *const c_char,
    length: usize,
) -> bool {
    catch_panic(false, || {
        // SAFETY: our caller says that it is NULL or alive.
        let Some(server) = (unsafe { server.as_ref() }) else { return false };
        // SAFETY: our caller says that they are NULL, or end at a NUL.
        let (topic, method) = unsafe { (string(topic, "topic"), string(method, "method")) };
        let (Ok(topic), Ok(method)) = (topic, method) else { return false };
        // SAFETY: our caller says that they are NULL, or readable.
        let params = unsafe { bytes(params, length) }.ok();
        message(topic, method, params).is_some_and(|message| server.publish(topic, &message))
    })
}

/// Sends the client of a call a notification.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; the texts are NULL, or end at a NUL;
/// `params` may have a length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_notify(
    call: CallHandle,
    method: *const c_char,
    params: *const c_char,
    length: usize,
) -> bool {
    catch_panic(false, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(call) = (unsafe { call.as_ref() }) else { return false };
        // SAFETY: our caller says that it is NULL, or ends at a NUL.
        let Ok(method) = (unsafe { string(method, "method") }) else { return false };
        // SAFETY: our caller says that they are NULL, or readable.
        let params = unsafe { bytes(params, length) }.ok();
        let message = message("", method, params);
        message.is_some_and(|message| call.channel().is_some_and(|it| it.notify(message)))
    })
}

/// Subscribes the connection of a call to a topic.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `topic` is NULL, or ends at a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_subscribe(
    call: CallHandle,
    topic: *const c_char,
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
        // SAFETY: our caller says that it is NULL, or ends at a NUL.
        let Ok(topic) = (unsafe { string(topic, "topic") }) else { return false };
        call.channel().is_some_and(|channel| channel.subscribe(topic, overflow))
    })
}

/// Ends the subscription of the connection of a call.
///
/// # Safety
/// As for [`ucall_call_subscribe`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_unsubscribe(call: CallHandle, topic: *const c_char) {
    catch_panic((), || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(channel) = unsafe { call.as_ref() }.and_then(|call| call.channel()) else {
            return;
        };
        // SAFETY: our caller says that it is NULL, or ends at a NUL.
        if let Ok(topic) = unsafe { string(topic, "topic") } {
            channel.unsubscribe(topic);
        }
    });
}
