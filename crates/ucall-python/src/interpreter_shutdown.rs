//! The threads of pools when the program ends.
//!
//! A drain waits for calls, but not for ever: a function that is stuck leaves a thread behind,
//! which may come back while the interpreter is finalised, and must not go on then (`ffi::halt`).
//! In the function itself the wrappers of `ffi` see to that. For the moments around it a hook runs
//! when the program ends, before that: from then on no thread comes out of a function, and those
//! that are just busy before or after one are waited for.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::ffi;

/// Threads that run code of ours, and are attached.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// The process whose threads they are: a forked child has none of its parent's.
static OWNER_PID: AtomicU32 = AtomicU32::new(0);
/// The program ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// So long code of ours may take at most; nothing there waits but a log that is stuck.
const WAIT_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Has the end of the program wait for threads. Called when the module is imported: hooks run in
/// the reverse of their order, and those of servers, which let calls finish, have to be earlier.
pub(crate) fn install_exit_hook(py: Python<'_>) -> PyResult<()> {
    let hook = wrap_pyfunction!(wait_for_threads, py)?;
    py.import("atexit")?.call_method1("register", (hook,)).map(drop)
}

/// There will be a thread of a pool in this process.
pub(crate) fn register_process() {
    let here = process::id();
    if OWNER_PID.swap(here, Ordering::SeqCst) != here {
        BUSY.store(0, Ordering::SeqCst);
    }
}

/// Runs when the program ends, on its main thread.
#[pyfunction]
fn wait_for_threads(py: Python<'_>) {
    if OWNER_PID.load(Ordering::SeqCst) != process::id() {
        return;
    }
    IS_ENDING.store(true, Ordering::SeqCst);
    let until = Instant::now() + WAIT_MAX;
    while BUSY.load(Ordering::SeqCst) > 0 && Instant::now() < until {
        py.detach(|| std::thread::sleep(POLL_INTERVAL));
    }
}

/// Runs code of ours on a thread of a pool.
pub(crate) fn run_tracked<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    let _tracked = TrackedThread::begin(py);
    work()
}

/// Runs a function from within [`run_tracked`]. It may be stuck: nobody waits for it, and once the
/// program ends this does not return.
pub(crate) fn run_untracked<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    let untracked = UntrackedSection::begin(py);
    let value = work();
    drop(untracked);
    value
}

struct TrackedThread;

impl TrackedThread {
    fn begin(py: Python<'_>) -> Self {
        mark_busy(py);
        Self
    }
}

impl Drop for TrackedThread {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
    }
}

struct UntrackedSection<'py>(Python<'py>);

impl<'py> UntrackedSection<'py> {
    fn begin(py: Python<'py>) -> Self {
        BUSY.fetch_sub(1, Ordering::SeqCst);
        Self(py)
    }
}

impl Drop for UntrackedSection<'_> {
    fn drop(&mut self) {
        mark_busy(self.0);
    }
}

/// Attached, a thread sees that the program ends, or the program sees the thread.
fn mark_busy(py: Python<'_>) {
    BUSY.fetch_add(1, Ordering::SeqCst);
    if IS_ENDING.load(Ordering::SeqCst) {
        BUSY.fetch_sub(1, Ordering::SeqCst);
        py.detach(|| ffi::halt());
    }
}
