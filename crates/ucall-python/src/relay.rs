//! A relay, from the options of `ucall.Server.relay`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_relay::{
    HealthOptions, RelayModule, RelayOptions, Rewrite, UpstreamAddress, UpstreamOptions,
};

use crate::client_tls::ClientFiles;
use crate::options;
use crate::server::Server;
use crate::tls::to_py_error;

/// Relays a server's calls of `methods` to the servers `to`, whose names are resolved while
/// it serves.
#[pyfunction]
#[pyo3(signature = (
    server, methods, to, *, headers, meta, tls, timeout_ms, max_outstanding,
    max_connection_outstanding, max_request_bytes, max_failures, health, idempotent, hash_param,
    rename, params
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn insert_relay(
    server: &Bound<'_, Server>,
    methods: Vec<String>,
    to: Vec<String>,
    headers: Vec<(String, String)>,
    meta: bool,
    tls: ClientFiles,
    timeout_ms: f64,
    max_outstanding: usize,
    max_connection_outstanding: Option<usize>,
    max_request_bytes: usize,
    max_failures: u32,
    health: Option<(String, HealthNumbers)>,
    idempotent: Vec<String>,
    hash_param: Option<String>,
    rename: Vec<(String, String)>,
    params: &str,
) -> PyResult<RelayStatus> {
    let server = server.get();
    let upstreams = upstreams(&to, headers, meta, &tls)?;
    let timeout = options::timeout(Some(timeout_ms))?;
    let module = Arc::new(RelayModule::new(RelayOptions {
        methods,
        upstreams,
        idempotent,
        hash_param,
        rewrite: Rewrite::new(rename, params).map_err(PyValueError::new_err)?,
        timeout: timeout.unwrap_or(Duration::MAX),
        outstanding_max: max_outstanding,
        connection_outstanding_max: max_connection_outstanding
            .unwrap_or_else(|| RelayOptions::connection_outstanding_max(max_outstanding)),
        failures_max: max_failures,
        health: health.map(health_options).transpose()?.map(Arc::new),
        reply_bytes_max: server.call_limits.reply_bytes_max,
        request_bytes_max: max_request_bytes,
    }));
    server.procedures.insert_native(module.clone(), timeout);
    Ok(RelayStatus(module))
}

/// A year.
const HEALTH_MS_MAX: f64 = 365.0 * 86_400_000.0;

/// The numbers of health checks, by their names in Python.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct HealthNumbers {
    #[pyo3(item("health_interval_ms"))]
    interval_ms: f64,
    #[pyo3(item("health_timeout_ms"))]
    timeout_ms: f64,
    #[pyo3(item("health_failures"))]
    failures: u32,
    #[pyo3(item("health_successes"))]
    successes: u32,
}

fn health_options((ask, numbers): (String, HealthNumbers)) -> PyResult<HealthOptions> {
    // A time that can be added to any other.
    let duration = |millis: f64| Duration::from_secs_f64(millis.clamp(0.0, HEALTH_MS_MAX) / 1e3);
    let HealthNumbers { interval_ms, timeout_ms, failures, successes } = numbers;
    HealthOptions::new(ask, duration(interval_ms), duration(timeout_ms), failures, successes)
        .map_err(|error| PyValueError::new_err(format!("health_check: {error}")))
}

/// What health checks ask a relay.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct RelayStatus(Arc<RelayModule>);

#[pymethods]
impl RelayStatus {
    /// Why none of the upstreams has an address and is healthy, if that is so.
    fn problem(&self) -> Option<String> {
        self.0.problem()
    }
}

/// Parses the servers `to`, and reads the files of TLS if one of them needs it.
fn upstreams(
    to: &[String],
    headers: Vec<(String, String)>,
    meta: bool,
    tls: &ClientFiles,
) -> PyResult<Vec<UpstreamAddress>> {
    if to.len() > RelayOptions::UPSTREAMS_MAX {
        let max = RelayOptions::UPSTREAMS_MAX;
        return Err(PyValueError::new_err(format!("to: expected at most {max} upstreams")));
    }
    let has_http_options = meta || !headers.is_empty();
    let needs_tls = to.iter().any(|name| UpstreamAddress::names_tls(name));
    let tls = needs_tls.then(|| tls.config(&tls.store(), &[])).transpose();
    let options = UpstreamOptions::new(headers, meta, tls.map_err(to_py_error)?)
        .map_err(|error| PyValueError::new_err(format!("headers: {error}")))?;
    let upstreams = to.iter().map(|name| UpstreamAddress::parse(name, &options));
    let upstreams: io::Result<Vec<_>> = upstreams.collect();
    let upstreams = upstreams.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => PyValueError::new_err(format!("to: {error}")),
        _ => error.into(),
    })?;
    if has_http_options && !upstreams.iter().any(UpstreamAddress::is_http) {
        let option = if meta { "meta" } else { "headers" };
        let message = format!("{option}: expected an upstream over HTTP");
        return Err(PyValueError::new_err(message));
    }
    Ok(upstreams)
}
