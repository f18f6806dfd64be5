//! Chooses the engine of a server or a queue.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_engine::{EngineKind, UringUnavailable};

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
        return Err(engine_error(py, &refused));
    }
    if !LOGGED.swap(true, Ordering::Relaxed) {
        let line = format!("running on the posix engine: {refused}");
        // The interpreter reports an interrupt again.
        let _ = Log::import(py)?.warning(py, &line);
    }
    Ok(EngineKind::Posix)
}

/// What to raise where the engine of a worker cannot be made.
pub(crate) fn failure(py: Python<'_>, error: io::Error) -> PyErr {
    match error.downcast::<UringUnavailable>() {
        Ok(refused) => engine_error(py, &refused),
        Err(error) => error.into(),
    }
}

fn engine_error(py: Python<'_>, refused: &UringUnavailable) -> PyErr {
    let text = format!("io_uring cannot be used here: {refused}");
    let raised =
        py.import("ucall.errors").and_then(|errors| errors.getattr("EngineError")?.call1((text,)));
    raised.map_or_else(|failed| failed, PyErr::from_value)
}
