//! What a call knows: its method, its caller and its request.

use std::ffi::{c_char, c_void};
use std::ptr;

use ucall_proto::http1::Head;

use super::params::write_text_output;
use super::server::write_sized;
use crate::boundary::{catch_panic, name};
use crate::call::Call;
use crate::call_handle::CallHandle;
use crate::peer::PeerAddress;

/// The name by which a call was registered.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; the outputs are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_method(
    call: CallHandle,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    // SAFETY: our caller says that it is alive and ours alone.
    let name = catch_panic(None, || Some(unsafe { call.as_ref() }?.procedure().as_bytes()));
    // SAFETY: our caller says that they are NULL or writable.
    name.is_some() && unsafe { write_text_output(name, output, output_length) }
}

/// Whether the caller of a call gets no reply.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_is_notification(call: CallHandle) -> bool {
    // SAFETY: our caller says that it is alive and ours alone.
    catch_panic(false, || unsafe { call.as_ref() }.is_some_and(Call::is_notification))
}

/// What the program's authentication has said of the caller of a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_user(call: CallHandle) -> *mut c_void {
    // SAFETY: our caller says that it is alive and ours alone.
    catch_panic(ptr::null_mut(), || unsafe { call.as_ref() }.map_or(ptr::null_mut(), Call::user))
}

/// The other end of the connection of a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_peer(
    call: CallHandle,
    output: *mut PeerAddress,
    size: usize,
) -> bool {
    // SAFETY: our caller says that it is alive and ours alone.
    let peer = catch_panic(None, || PeerAddress::of(unsafe { call.as_ref() }?.peer()?));
    // SAFETY: our caller says that it is NULL or writable.
    peer.is_some_and(|peer| output.is_null() || unsafe { write_sized(&peer, output, size) })
}

/// A header of the HTTP request of a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; `name` is NULL or readable; the outputs
/// are NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_header(
    call: CallHandle,
    name: *const c_char,
    name_length: usize,
    output: *mut *const c_char,
    output_length: *mut usize,
) -> bool {
    let value = catch_panic(None, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let head = unsafe { call.as_ref() }?.head()?;
        // SAFETY: our caller says that it is NULL or readable.
        unsafe { header(head, name, name_length) }
    });
    // SAFETY: our caller says that they are NULL or writable.
    value.is_some() && unsafe { write_text_output(value, output, output_length) }
}

/// The first header of a name.
///
/// # Safety
/// `text` is NULL or readable.
pub(super) unsafe fn header<'a>(
    head: &Head<'a>,
    text: *const c_char,
    length: usize,
) -> Option<&'a [u8]> {
    // SAFETY: passed on to our caller.
    head.header(unsafe { name(text, length) }?)
}
