//! Listening sockets, with errors as Python programs expect them.

use std::io;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use ucall_engine::Address;

/// Binds and listens. The error has the number that Python programs check.
pub(crate) fn bind(address: &Address) -> PyResult<ucall_engine::Bound> {
    address.bind(false).map_err(to_python)
}

/// An error of binding, with the system's number.
pub(crate) fn to_python(error: io::Error) -> PyErr {
    let number = match error.kind() {
        io::ErrorKind::AddrInUse => libc::EADDRINUSE,
        io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
        io::ErrorKind::PermissionDenied => libc::EACCES,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        _ => return error.into(),
    };
    PyOSError::new_err((number, error.to_string()))
}
