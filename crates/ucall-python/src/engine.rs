//! Chooses the engine of a server or a queue.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_engine::EngineKind;

use crate::log::Log;

/// The engine of that name. Where io_uring is refused, `"auto"` takes posix and logs that once, and
/// `"uring"` raises `ucall.EngineError`.
pub(crate) fn choose(py: Python<'_>, name: &str) -> PyResult<EngineKind> {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    match name {
        "posix" => return Ok(EngineKind::Posix),
        "auto" | "uring" => {}
        _ => return Err(PyValueError::new_err(format!("unknown engine {name:?}"))),
    }
    let refused = match EngineKind::probe_uring() {
        Ok(uring) => return Ok(uring),
        Err(refused) => refused,
    };
    if name == "uring" {
        let error = py.import("ucall.errors")?.getattr("EngineError")?;
        let raised = error.call1((format!("io_uring cannot be used here: {refused}"),))?;
        return Err(PyErr::from_value(raised));
    }
    if !LOGGED.swap(true, Ordering::Relaxed) {
        let line = format!("running on the posix engine: {refused}");
        // The interpreter reports an interrupt again.
        let _ = Log::import(py)?.warning(py, &line);
    }
    Ok(EngineKind::Posix)
}
