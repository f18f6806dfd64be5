//! The upstreams of a relay, from the options of `ucall.Server.relay`.

use std::io;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_relay::{RelayOptions, UpstreamAddress, UpstreamOptions};

use crate::tls::{ClientFiles, to_py_error};

/// Resolves the servers `to`, and reads the files of TLS if one of them needs it.
pub(crate) fn upstreams(
    py: Python<'_>,
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
    let resolve = || to.iter().map(|name| UpstreamAddress::resolve(name, &options)).collect();
    let upstreams: io::Result<Vec<_>> = py.detach(resolve);
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
