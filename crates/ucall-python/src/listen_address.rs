//! Where a server listens: what its program has asked for, and what it was bound to.

use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use ucall_engine::{Address, Bound};

use crate::bind::{self, FD};

/// An address that the first run resolves and binds.
#[derive(Clone, Debug)]
pub(crate) struct ListenAddress {
    /// A name, a numeric address, `unix:` and a path, or `fd:` and the number of a socket that this
    /// process has inherited.
    host: String,
    port: u16,
    uds_mode: u32,
    /// `None` for a name or a socket before the first run. After it, with the port that the system
    /// picked; it stays after a stop, so that the next run binds the same.
    address: Option<Address>,
}

impl ListenAddress {
    /// Asks no name server.
    pub(crate) fn new(host: &str, port: u16, uds_mode: u32) -> io::Result<Self> {
        let address = match descriptor(host) {
            Some(_) => None,
            None => Address::parse(host, port, uds_mode)?,
        };
        Ok(Self { host: host.to_owned(), port, uds_mode, address })
    }

    /// This address with changes. Keeps its port if there are none.
    pub(crate) fn with(
        &self,
        host: Option<&str>,
        port: Option<u16>,
        uds_mode: Option<u32>,
    ) -> io::Result<Self> {
        let (host, port) = (host.unwrap_or(&self.host), port.unwrap_or(self.port));
        let uds_mode = uds_mode.unwrap_or(self.uds_mode);
        match (host, port, uds_mode) == (&self.host, self.port, self.uds_mode) {
            true => Ok(self.clone()),
            false => Self::new(host, port, uds_mode),
        }
    }

    /// The address to bind. May ask a name server.
    pub(crate) fn resolve(&self) -> io::Result<Address> {
        match &self.address {
            Some(address) => Ok(address.clone()),
            None => Address::resolve(&self.host, self.port, self.uds_mode),
        }
    }

    /// Binds and listens. May ask a name server.
    pub(crate) fn bind(&self) -> PyResult<Bound> {
        match descriptor(&self.host) {
            Some(number) => bind::inherit(number),
            None => bind::bind(&self.resolve()?),
        }
    }

    pub(crate) fn set_bound(&mut self, address: Address) {
        self.address = Some(address);
    }

    /// The address, unless a name is to be resolved first.
    pub(crate) fn known(&self) -> Option<&Address> {
        self.address.as_ref()
    }

    /// Whether another program has bound the socket.
    pub(crate) fn is_inherited(&self) -> bool {
        descriptor(&self.host).is_some()
    }

    /// Whether it is known to be reached by this machine alone.
    pub(crate) fn is_loopback(&self) -> bool {
        self.known().is_some_and(Address::is_loopback)
    }

    /// The bound address, before that the host that was asked for.
    pub(crate) fn host(&self) -> String {
        self.known().map_or_else(|| self.host.clone(), Address::host)
    }

    /// The port; 0 for a Unix socket, and `None` until the system has picked one.
    pub(crate) fn port(&self) -> Option<u16> {
        match self.known() {
            Some(Address::Unix { .. }) => Some(0),
            Some(Address::Tcp(address)) => Some(address.port()).filter(|port| *port != 0),
            None if self.is_inherited() => None,
            None => Some(self.port).filter(|port| *port != 0),
        }
    }

    /// The permissions of a Unix socket's file.
    pub(crate) fn uds_mode(&self) -> u32 {
        self.uds_mode
    }
}

/// The number of an inherited socket.
fn descriptor(host: &str) -> Option<RawFd> {
    host.strip_prefix(FD)?.parse().ok()
}
