//! Streams: calls that are replied to in parts.

use std::ffi::{c_char, c_void};

use ucall_server::Overflow;

use super::deferral::into_handle;
use super::params::write_text_output;
use crate::boundary::{bytes, catch_panic, name_bytes};
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::stream::{ItemState, RoomCallback, RoomFunction};

/// Whether the caller takes items of a stream.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_takes_items(call: CallHandle) -> bool {
    // SAFETY: our caller says that it is alive.
    catch_panic(false, || unsafe { call.as_ref() }.is_some_and(Call::takes_items))
}

/// Defers a call as a stream.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `has_room` is NULL, or may be called
/// with `tag` until it has reported the end of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_stream(
    call: CallHandle,
    overflow: u32,
    has_room: Option<RoomFunction>,
    tag: *mut c_void,
) -> CallHandle {
    catch_panic(CallHandle::NULL, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(call) = (unsafe { call.as_mut() }) else { return CallHandle::NULL };
        let overflow = match overflow {
            0 => Overflow::DropOldest,
            1 => Overflow::DropNewest,
            2 => Overflow::Close,
            3 => Overflow::Pause,
            _ => {
                call.fail("asked for an overflow that does not exist");
                return CallHandle::NULL;
            }
        };
        let stream = call.stream(overflow, RoomCallback { function: has_room, tag });
        stream.map_or(CallHandle::NULL, into_handle)
    })
}

/// Sends an item of a stream.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `json` is NULL or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_send_item(
    call: CallHandle,
    json: *const c_char,
    length: usize,
) -> ItemState {
    catch_panic(ItemState::Ended, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let Some(call) = (unsafe { call.as_mut() }) else { return ItemState::Ended };
        // SAFETY: our caller says that it is NULL or readable. An empty item is invalid JSON.
        call.send_item(unsafe { bytes(json, length) }.unwrap_or_default())
    })
}

/// A member of a call's `_meta`.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `name` is NULL or readable; the outputs
/// are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_meta(
    call: CallHandle,
    name: *const c_char,
    name_length: usize,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let value = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL, or readable.
        let name = unsafe { name_bytes(name, name_length) }.ok()?;
        // SAFETY: our caller says that it is alive and ours alone.
        unsafe { call.as_mut() }?.meta(name)
    });
    // SAFETY: our caller says that they are NULL or writable.
    value.is_some() && unsafe { write_text_output(value, output, output_length) }
}
