//! Deferred calls.

use std::time::{Duration, Instant};

use crate::boundary::catch_panic;
use crate::call::{self, Call};
use crate::call_handle::CallHandle;
use crate::handles;

/// Defers a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_defer(call: CallHandle) -> CallHandle {
    catch_panic(CallHandle::NULL, || {
        // SAFETY: our caller says that it is alive and ours alone.
        let deferred = unsafe { call.as_mut() }.and_then(|call| call.defer());
        deferred.map_or(CallHandle::NULL, into_handle)
    })
}

/// Hands a deferred call out to the program.
pub(super) fn into_handle(deferred: Box<Call<'static, 'static>>) -> CallHandle {
    handles::create_checked(&raw const *deferred);
    call::into_handle(deferred)
}

/// Releases a deferred call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; a deferred one is not used after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_release(call: CallHandle) {
    catch_panic((), || {
        let Some(deferred) = call.deferred().map(<*mut _>::cast::<Call<'_, '_>>) else {
            // SAFETY: our caller says that it is alive and ours alone.
            return unsafe { call.as_ref() }.map_or((), Call::warn_not_deferred);
        };
        if handles::free_checked(deferred, "ucall_call_release") {
            // SAFETY: a deferred call came from a box, and the program does not use it after.
            unsafe { Box::from_raw(deferred) }.release();
        }
    });
}

/// Whether a deferred call is cancelled.
///
/// # Safety
/// `call` is NULL, or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_is_cancelled(call: CallHandle) -> bool {
    // SAFETY: our caller says that it is alive.
    catch_panic(true, || unsafe { call.as_ref() }.is_none_or(Call::is_cancelled))
}

/// The deadline of a call, in milliseconds of CLOCK_MONOTONIC.
///
/// # Safety
/// `call` is NULL, or alive; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_deadline_ms(call: CallHandle, output: *mut i64) -> bool {
    // SAFETY: our caller says that it is alive.
    let deadline = catch_panic(None, || unsafe { call.as_ref() }?.deadline());
    let Some(deadline) = deadline else { return false };
    if !output.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { output.write(monotonic_ms(deadline)) };
    }
    true
}

/// An `Instant` has no number, only a distance from now.
fn monotonic_ms(moment: Instant) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable, and every system has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now_ms = now.tv_sec * 1_000 + now.tv_nsec / 1_000_000;
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    match moment.checked_duration_since(Instant::now()) {
        Some(left) => now_ms.saturating_add(ms(left)),
        None => now_ms.saturating_sub(ms(moment.elapsed())),
    }
}
