//! What a program has run around all calls of a server.

use pyo3::prelude::*;
use ucall_server::SeriesIndex;

use crate::hook_options::HookOptions;
use crate::procedure::{CallMode, Procedure};
use crate::server::Server;

/// Has hooks run around the calls of methods that a server does not have.
#[pyfunction]
pub(crate) fn set_unknown_hooks(
    server: &Bound<'_, Server>,
    encode: Py<PyAny>,
    hooks: HookOptions,
) -> PyResult<()> {
    let (py, name) = (server.py(), "an unknown method".to_owned());
    let nothing = Procedure {
        series: Some(SeriesIndex::OTHER),
        ..Procedure::new(name, py.None(), None, encode, CallMode::Inline)
    };
    let procedures = &server.get().procedures;
    procedures.want_peers();
    procedures.set_unknown(hooks.around_nothing(py, nothing)?.shared());
    Ok(())
}

/// Has async hooks run around the calls of native procedures.
#[pyfunction]
pub(crate) fn set_native_hooks(
    server: &Bound<'_, Server>,
    encode: Py<PyAny>,
    hooks: HookOptions,
) -> PyResult<()> {
    let (py, name) = (server.py(), "a native procedure".to_owned());
    // The procedure itself has a series.
    let native = Procedure::new(name, py.None(), None, encode, CallMode::Inline);
    let procedures = &server.get().procedures;
    procedures.want_peers();
    procedures.set_native_hooks(hooks.around_natives(py, native)?.shared());
    Ok(())
}

/// Has a server's next run find the errors of exceptions by `find`, which returns a
/// `ucall.RPCError` or None.
#[pyfunction]
pub(crate) fn set_error_finder(server: &Bound<'_, Server>, find: Py<PyAny>) {
    server.get().state().find_error = Some(find);
}
