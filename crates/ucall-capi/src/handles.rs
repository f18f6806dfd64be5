//! The handles that the program has freed, so that freeing one twice is an error and no crash.
//!
//! Freed servers are known in every build. Writers and deferred calls are known in debug builds
//! alone, because each would cost a lock.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::boundary::{ErrorCode, set_last_error};

/// How many freed servers keep their address, so that no newer one has it.
const KEPT_MAX: usize = 1_000;

static FREED: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static KEPT: Mutex<VecDeque<Weak<dyn Any + Send + Sync>>> = Mutex::new(VecDeque::new());

fn freed() -> MutexGuard<'static, BTreeSet<usize>> {
    FREED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program gets a handle, whose address may be that of one that was freed.
pub(crate) fn create<T>(handle: *const T) {
    freed().remove(&handle.addr());
}

/// Whether a handle is freed for the first time. Reports an error if not.
pub(crate) fn free<T>(handle: *const T, function: &str) -> bool {
    let is_first = freed().insert(handle.addr());
    if !is_first {
        report(function);
    }
    is_first
}

/// Keeps the address of a freed object for a long time: another free of it then meets no newer one.
pub(crate) fn keep_address<T: Send + Sync + 'static>(object: &Arc<T>) {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == KEPT_MAX {
        kept.pop_front();
    }
    let weak: Weak<T> = Arc::downgrade(object);
    kept.push_back(weak);
}

/// [`create`] in a debug build.
pub(crate) fn create_checked<T>(handle: *const T) {
    if cfg!(debug_assertions) {
        create(handle);
    }
}

/// [`free`] in a debug build; `true` in others.
pub(crate) fn free_checked<T>(handle: *const T, function: &str) -> bool {
    !cfg!(debug_assertions) || free(handle, function)
}

#[cold]
fn report(function: &str) {
    let text = format!("{function}: called twice with one handle; ignored");
    eprintln!("ucall: {text}");
    set_last_error(ErrorCode::InvalidArgument, &text);
}
