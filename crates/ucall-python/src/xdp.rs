//! AF_XDP for several processes: what a supervisor shares with its workers, and what
//! `ucall-xdp-setup` hands over.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_engine::Address;
use ucall_engine::xdp::{QueueShare, XdpProgram, hand_over};

use crate::server::Server;

/// The program on an interface, until it is closed.
#[pyclass(frozen, name = "XdpProgram", module = "ucall._core")]
pub(crate) struct PyXdpProgram(XdpProgram);

#[pymethods]
impl PyXdpProgram {
    /// Steers the datagrams to an address to `workers` processes.
    #[new]
    fn new(py: Python<'_>, interface: &str, host: &str, port: u16, workers: u32) -> PyResult<Self> {
        let Address::Tcp(address) = py.detach(|| Address::resolve(host, port, 0))? else {
            return Err(PyValueError::new_err("udp: has no effect on a Unix socket"));
        };
        let program = py.detach(|| XdpProgram::attach(interface, address))?;
        program.check_workers(workers)?;
        Ok(Self(program))
    }

    /// The descriptor to send to a worker.
    fn fileno(&self) -> RawFd {
        self.0.sockets().as_raw_fd()
    }

    /// Whether the driver runs the program.
    #[getter]
    fn is_native(&self) -> bool {
        self.0.is_native()
    }
}

impl Server {
    /// See `share_xdp`.
    pub(crate) fn take_xdp(
        &self,
        sockets: OwnedFd,
        is_native: bool,
        share: QueueShare,
    ) -> PyResult<()> {
        let Some(config) = &self.config.datagrams.xdp else { return Ok(()) };
        let program = Arc::new(XdpProgram::share(&config.interface, sockets, is_native)?);
        self.state().xdp = Some((program, share));
        Ok(())
    }
}

/// Hands AF_XDP over to the server at the other end of a socket: see `ucall_engine::xdp`.
#[pyfunction]
pub(crate) fn hand_over_xdp(py: Python<'_>, interface: &str, descriptor: RawFd) -> PyResult<()> {
    // SAFETY: the caller keeps it open.
    let connection = unsafe { BorrowedFd::borrow_raw(descriptor) };
    Ok(py.detach(|| hand_over(interface, connection))?)
}
