//! Registers routes on a server.

use pyo3::prelude::*;
use ucall_server::{BodyRules, PathPattern, RouteAccess};

use crate::http_route;
use crate::procedure::{CallMode, Procedure, RouteRules, Signature};
use crate::server::Server;

/// Has `function` answer the HTTP requests of a path and these methods. It takes a
/// `ucall.HttpRequest` and returns a response as bytes. A path that ends in `*` means all that
/// begin with the rest, and a segment `{name}` any that is not empty. A public route is not
/// authenticated.
#[pyfunction]
#[pyo3(signature = (
    server, path, methods, function, encode, *, mode, is_public, wants_peer, streams_body = false,
    max_body_bytes = None
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn insert_route(
    server: &Bound<'_, Server>,
    path: String,
    methods: Vec<String>,
    function: Py<PyAny>,
    encode: Py<PyAny>,
    mode: &str,
    is_public: bool,
    wants_peer: bool,
    streams_body: bool,
    max_body_bytes: Option<usize>,
) -> PyResult<()> {
    let server = server.get();
    let methods = http_route::methods(&methods)?;
    let access = if is_public { RouteAccess::Public } else { RouteAccess::Authenticated };
    let mode = CallMode::from_description(mode, None, None)?;
    let route = RouteRules { access, pattern: PathPattern::of(&path), streams_body };
    let procedure = Procedure {
        timeout: server.timeout,
        route: Some(route),
        ..Procedure::new(path.clone(), function, Some(Signature::of_route()), encode, mode)
    };
    if wants_peer {
        server.procedures.want_peers();
    }
    let body = BodyRules { streams: streams_body, bytes_max: max_body_bytes };
    server.procedures.insert_route(&path, methods, access, body, procedure.shared());
    Ok(())
}
