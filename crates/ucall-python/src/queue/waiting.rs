//! Waits without the interpreter's lock.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;

use super::detach::detached;

/// A wait on the thread that handles signals polls for them this often.
pub(super) const WAIT_SLICE: Duration = Duration::from_millis(100);

/// The end of a wait of this many seconds; `None` for no limit.
pub(super) fn deadline_after(timeout: Option<f64>) -> PyResult<Option<Instant>> {
    let Some(timeout) = timeout else { return Ok(None) };
    let timeout = Duration::try_from_secs_f64(timeout.max(0.0))
        .map_err(|_| PyOverflowError::new_err("timeout: expected a number of seconds"))?;
    Ok(Instant::now().checked_add(timeout))
}

/// Waits without the interpreter's lock. On the thread that handles signals it also polls for them.
pub(super) fn wait_checking_signals<T>(
    py: Python<'_>,
    deadline: Option<Instant>,
    mut wait: impl FnMut(Option<Instant>) -> Option<T>,
) -> PyResult<Option<T>> {
    let checks_signals = handles_signals();
    loop {
        let until = Instant::now() + WAIT_SLICE;
        let is_last = !checks_signals || deadline.is_some_and(|deadline| deadline <= until);
        let until = if is_last { deadline } else { Some(until) };
        // SAFETY: every caller waits for the communicator's thread and accesses no Python object.
        if let Some(found) = unsafe { detached(py, || wait(until)) } {
            return Ok(Some(found));
        }
        if is_last {
            return Ok(None);
        }
        py.check_signals()?;
    }
}

/// Whether Python handles signals on this thread: the program's first one, or the one that called
/// fork. `true` on platforms that do not report it.
fn handles_signals() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: the calls have no arguments and cannot fail.
    return unsafe { libc::gettid() == libc::getpid() };
    #[cfg(not(target_os = "linux"))]
    true
}
