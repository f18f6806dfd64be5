//! Threads of pools at the end of the program.
//!
//! A drain has a time limit, so a function that blocks may outlive it. Its thread may return while
//! the interpreter is finalised, and must not go on then. Within the function, the wrappers of
//! `ffi` stop it (`ffi::halt`). For the code around functions, an exit hook runs before
//! finalisation: after it no thread returns from a function, and the hook waits for threads that
//! are in our code before or after one.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::ffi;

/// The number of attached threads that run our code.
static BUSY: AtomicUsize = AtomicUsize::new(0);
/// The process that counts them: a forked child has none of its parent's threads.
static OWNER_PID: AtomicU32 = AtomicU32::new(0);
/// Set when the program ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// The longest wait for our code; only a log that blocks makes it that long.
const WAIT_MAX: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Installs the exit hook. It must be called when the module is imported: hooks run in reverse
/// order, and those of servers, which let calls finish, have to run first.
pub(crate) fn install_exit_hook(py: Python<'_>) -> PyResult<()> {
    let hook = wrap_pyfunction!(wait_for_threads, py)?;
    py.import("atexit")?.call_method1("register", (hook,)).map(drop)
}

/// Declares that this process will have a thread of a pool.
pub(crate) fn register_process() {
    let here = process::id();
    if OWNER_PID.swap(here, Ordering::SeqCst) != here {
        BUSY.store(0, Ordering::SeqCst);
    }
}

/// The exit hook, on the main thread.
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

/// Runs our code on a thread of a pool.
pub(crate) fn run_tracked<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    begin_busy(py);
    let _end = OnDrop(end_busy);
    work()
}

/// Runs a function within [`run_tracked`]. The exit hook does not wait for it, and once the program
/// ends this does not return.
pub(crate) fn run_untracked<T>(py: Python<'_>, work: impl FnOnce() -> T) -> T {
    end_busy();
    let _end = OnDrop(|| begin_busy(py));
    work()
}

/// Calls a function when it is dropped, even by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Under the interpreter's lock, either the thread sees that the program ends or the hook sees the
/// thread.
fn begin_busy(py: Python<'_>) {
    BUSY.fetch_add(1, Ordering::SeqCst);
    if IS_ENDING.load(Ordering::SeqCst) {
        end_busy();
        py.detach(|| ffi::halt());
    }
}

fn end_busy() {
    BUSY.fetch_sub(1, Ordering::SeqCst);
}
