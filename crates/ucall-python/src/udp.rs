//! The UDP socket of a server.

use std::net::{SocketAddr, UdpSocket};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use ucall_engine::{Address, bind_udp};

use crate::bind::to_python;

/// Where a server takes calls in datagrams.
#[derive(Debug)]
pub(crate) struct Udp {
    /// `None` for the port of TCP. With the port that the system picked, once it is bound.
    pub(crate) port: Option<u16>,
    /// Whether `auth` may serve addresses other than loopback, which senders can forge.
    pub(crate) allows_auth: bool,
    /// Whether other processes are bound to the same port.
    pub(crate) is_shared: bool,
    /// Bound and not yet served.
    pub(crate) socket: Option<UdpSocket>,
}

impl Udp {
    pub(crate) fn new(port: Option<u16>, allows_auth: bool) -> Self {
        Self { port, allows_auth, is_shared: false, socket: None }
    }

    /// Refuses settings that datagrams cannot have.
    pub(crate) fn check(&self, address: &Address, has_auth: bool, has_tls: bool) -> PyResult<()> {
        let wrong = match address {
            Address::Unix { .. } => "udp: has no effect on a Unix socket",
            _ if has_tls => "udp: datagrams cannot be encrypted; expected no tls",
            _ if has_auth && !self.allows_auth && !address.is_loopback() => {
                "udp: the sender of a datagram can forge its address, and what auth checks is not \
                 encrypted; expected a loopback address, or UDP(auth=True)"
            }
            _ => return Ok(()),
        };
        Err(PyValueError::new_err(wrong))
    }

    /// The port, beside that of TCP; `None` until the system has picked one.
    pub(crate) fn port(&self, tcp: Option<u16>) -> Option<u16> {
        self.port.or(tcp).filter(|port| *port != 0)
    }

    /// Binds, unless it has.
    pub(crate) fn bind(&mut self, address: &Address) -> PyResult<()> {
        if let (None, Address::Tcp(tcp)) = (&self.socket, address) {
            let address = SocketAddr::new(tcp.ip(), self.port.unwrap_or(tcp.port()));
            let socket = bind_udp(address, self.is_shared).map_err(to_python)?;
            self.port = self.port.map(|_| socket.local_addr().map(|it| it.port())).transpose()?;
            self.socket = Some(socket);
        }
        Ok(())
    }
}
