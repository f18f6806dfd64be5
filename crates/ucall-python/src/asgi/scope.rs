//! The scope of a request: what an application learns of it before its body.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use ucall_engine::Peer;
use ucall_proto::http1::{ForwardedClient, Head, Version, request_origin};
use ucall_proto::websocket::Handshake;
use ucall_proto::{Call, percent_decoded};
use ucall_server::Caller;

use super::mount::Mount;

/// The version of the specification's HTTP part: from it on `send` raises OSError after the client
/// has left.
const SPEC_VERSION: &str = "2.4";

/// What a scope is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopeKind {
    Http,
    WebSocket,
}

/// The scope of a request.
pub(crate) fn scope_of<'py>(
    py: Python<'py>,
    kind: ScopeKind,
    mount: &Mount,
    head: &Head<'_>,
    call: &Call<'_>,
    caller: &Caller,
) -> PyResult<Bound<'py, PyDict>> {
    let (raw_path, query) = head.path_and_query();
    let scope = PyDict::new(py);
    let extensions = PyDict::new(py);
    match kind {
        ScopeKind::Http => {
            scope.set_item(intern!(py, "type"), intern!(py, "http"))?;
            scope.set_item(intern!(py, "method"), method(py, head))?;
        }
        ScopeKind::WebSocket => {
            scope.set_item(intern!(py, "type"), intern!(py, "websocket"))?;
            scope.set_item(intern!(py, "subprotocols"), subprotocols(py, head)?)?;
            extensions.set_item(intern!(py, "websocket.http.response"), PyDict::new(py))?;
        }
    }
    scope.set_item(intern!(py, "asgi"), versions(py)?)?;
    let version = match head.version() {
        Version::Http10 => intern!(py, "1.0"),
        Version::Http11 => intern!(py, "1.1"),
    };
    scope.set_item(intern!(py, "http_version"), version)?;
    let is_https = is_https(mount, head, call, caller);
    let scheme = match (kind, is_https) {
        (ScopeKind::Http, false) => intern!(py, "http"),
        (ScopeKind::Http, true) => intern!(py, "https"),
        (ScopeKind::WebSocket, false) => intern!(py, "ws"),
        (ScopeKind::WebSocket, true) => intern!(py, "wss"),
    };
    scope.set_item(intern!(py, "scheme"), scheme)?;
    scope.set_item(intern!(py, "path"), path(py, raw_path))?;
    scope.set_item(intern!(py, "raw_path"), PyBytes::new(py, raw_path))?;
    scope.set_item(intern!(py, "query_string"), PyBytes::new(py, query))?;
    scope.set_item(intern!(py, "root_path"), &mount.root_path)?;
    scope.set_item(intern!(py, "headers"), headers(py, head)?)?;
    scope.set_item(intern!(py, "client"), client(py, caller)?)?;
    scope.set_item(intern!(py, "server"), server(py, mount)?)?;
    scope.set_item(intern!(py, "state"), mount.lifespan_state.bind(py).copy()?)?;
    scope.set_item(intern!(py, "extensions"), extensions)?;
    Ok(scope)
}

/// The subprotocols that a client of a WebSocket offers.
fn subprotocols<'py>(py: Python<'py>, head: &Head<'_>) -> PyResult<Bound<'py, PyList>> {
    let offered = Handshake::subprotocols(head).map(String::from_utf8_lossy);
    PyList::new(py, offered.collect::<Vec<_>>())
}

/// Whether the client has used TLS, to this server or to a trusted proxy.
fn is_https(mount: &Mount, head: &Head<'_>, call: &Call<'_>, caller: &Caller) -> bool {
    let is_tls = call.session.is_some();
    let Some(proxies) = mount.trusted_proxies.as_deref() else { return is_tls };
    // The peer is the client that the headers name only if a trusted proxy has sent them.
    let is_proxied = match (proxies.client(head), caller.peer) {
        (ForwardedClient::Address(client), Some(Peer::Address(peer))) => client == peer,
        _ => false,
    };
    let origin = request_origin(head, is_proxied.then_some(proxies), is_tls);
    origin.map_or(is_tls, |origin| origin.starts_with("https:"))
}

fn versions(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let versions = PyDict::new(py);
    versions.set_item(intern!(py, "version"), intern!(py, "3.0"))?;
    versions.set_item(intern!(py, "spec_version"), intern!(py, SPEC_VERSION))?;
    Ok(versions)
}

fn method<'py>(py: Python<'py>, head: &Head<'_>) -> Bound<'py, PyString> {
    match head.method().name() {
        Some("GET") => intern!(py, "GET").clone(),
        Some("POST") => intern!(py, "POST").clone(),
        _ => PyString::new(py, &String::from_utf8_lossy(head.method_text()).to_ascii_uppercase()),
    }
}

/// The path without percent-encoding.
fn path<'py>(py: Python<'py>, raw: &[u8]) -> Bound<'py, PyString> {
    match raw.contains(&b'%').then(|| percent_decoded(raw)).flatten() {
        Some(decoded) => PyString::new(py, &String::from_utf8_lossy(&decoded)),
        None => PyString::new(py, &String::from_utf8_lossy(raw)),
    }
}

/// Pairs of the name in lower case and the value.
fn headers<'py>(py: Python<'py>, head: &Head<'_>) -> PyResult<Bound<'py, PyList>> {
    let mut lower = Vec::new();
    let headers = PyList::empty(py);
    for (name, value) in head.headers() {
        lower.clear();
        lower.extend(name.iter().map(u8::to_ascii_lowercase));
        headers.append((PyBytes::new(py, &lower), PyBytes::new(py, value)))?;
    }
    Ok(headers)
}

fn client<'py>(py: Python<'py>, caller: &Caller) -> PyResult<Option<Bound<'py, PyTuple>>> {
    match caller.peer {
        Some(Peer::Address(address)) => {
            Ok(Some((address.ip().to_string(), address.port()).into_pyobject(py)?))
        }
        _ => Ok(None),
    }
}

/// The address and the port that the server listens on, or the path of its socket and None.
fn server<'py>(py: Python<'py>, mount: &Mount) -> PyResult<Bound<'py, PyTuple>> {
    let (host, port) = (mount.server_address)();
    match host.strip_prefix("unix:") {
        Some(path) => (path, py.None()).into_pyobject(py),
        None => (host, port).into_pyobject(py),
    }
}
