//! Deferred calls.

use std::ptr;
use std::time::{Duration, Instant};

use crate::boundary::catch_panic;
use crate::call::Call;

type CallPointer = *mut Call<'static, 'static>;

/// Defers a call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_defer(call: CallPointer) -> CallPointer {
    catch_panic(ptr::null_mut(), || {
        // SAFETY: our caller says that it is alive and ours alone.
        let deferred = unsafe { call.as_mut() }.and_then(|call| call.defer());
        deferred.map_or(ptr::null_mut(), Box::into_raw)
    })
}

/// Releases a deferred call.
///
/// # Safety
/// `call` is NULL, or alive and used by this thread alone; a deferred one is not used after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_release(call: CallPointer) {
    catch_panic((), || {
        // SAFETY: our caller says that it is alive and ours alone.
        if unsafe { call.as_ref() }.is_some_and(Call::may_be_released) {
            // SAFETY: a deferred call came from `Box::into_raw`, and the program does not use it
            // after.
            unsafe { Box::from_raw(call) }.release();
        }
    });
}

/// Whether a deferred call is cancelled.
///
/// # Safety
/// `call` is NULL, or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_is_cancelled(call: *const Call<'static, 'static>) -> bool {
    // SAFETY: our caller says that it is alive.
    catch_panic(true, || unsafe { call.as_ref() }.is_none_or(Call::is_cancelled))
}

/// The deadline of a call, in microseconds of CLOCK_MONOTONIC.
///
/// # Safety
/// `call` is NULL, or alive; `output` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_call_deadline(
    call: *const Call<'static, 'static>,
    output: *mut i64,
) -> bool {
    // SAFETY: our caller says that it is alive.
    let deadline = catch_panic(None, || unsafe { call.as_ref() }?.deadline());
    let Some(deadline) = deadline else { return false };
    if !output.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { output.write(monotonic_micro_seconds(deadline)) };
    }
    true
}

/// An `Instant` has no number, only a distance from now.
fn monotonic_micro_seconds(moment: Instant) -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable, and every system has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let now_micro_seconds = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000;
    let micro_seconds = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    match moment.checked_duration_since(Instant::now()) {
        Some(left) => now_micro_seconds.saturating_add(micro_seconds(left)),
        None => now_micro_seconds.saturating_sub(micro_seconds(moment.elapsed())),
    }
}
