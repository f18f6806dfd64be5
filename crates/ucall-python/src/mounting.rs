//! Mounts applications of ASGI on a server.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use ucall_server::RouteAccess;

use crate::asgi::Mount;
use crate::procedure::{CallMode, Procedure};
use crate::server::Server;
use crate::server_state;

/// Mounts an application at a path, which has no `/` at the end, in place of the server's pages at
/// `replaced`.
#[pyfunction]
pub(crate) fn insert_mount(
    server: &Bound<'_, Server>,
    path: &str,
    app: Py<PyAny>,
    lifespan_state: Py<PyDict>,
    replaced: Vec<String>,
) {
    let (py, server) = (server.py(), server.get());
    let state = server.state.clone();
    let mount = Mount {
        root_path: PyString::new(py, path).unbind(),
        lifespan_state,
        server_address: Box::new(move || {
            let state = server_state::lock(&state);
            (state.address.host(), state.address.port())
        }),
        trusted_proxies: server.config.trusted_proxies.clone(),
    };
    let series = {
        let state = server_state::lock(&server.state);
        state.metrics.as_ref().map(|metrics| metrics.register(&format!("{path}/*")))
    };
    let procedure = Procedure {
        timeout: server.timeout,
        series,
        route: Some(RouteAccess::Public.into()),
        mount: Some(mount),
        ..Procedure::new(format!("{path}/"), app, None, py.None(), CallMode::Task)
    };
    for page in replaced {
        server.procedures.remove_routes(&page);
    }
    server.procedures.want_peers();
    server.procedures.mount(path, procedure.shared());
}
