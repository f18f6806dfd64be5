//! AF_XDP exists on Linux only.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use crate::DatagramPath;

/// No value of it exists.
pub enum XdpQueue {}

/// No value of it exists.
pub enum XdpDatagram {}

/// No value of it is made.
pub struct Xdp {
    /// How frames arrive.
    pub mode: &'static str,
    /// None.
    pub queues: Vec<XdpQueue>,
}

impl Xdp {
    /// Fails.
    pub fn attach(name: &str, _: &UdpSocket) -> io::Result<Self> {
        let message = format!("xdp: {name}: AF_XDP exists on Linux only");
        Err(io::Error::new(io::ErrorKind::Unsupported, message))
    }
}

#[expect(missing_docs, reason = "none of it can be called")]
impl XdpQueue {
    pub fn receive(&mut self) -> Option<XdpDatagram> {
        match *self {}
    }

    pub fn bytes(&mut self, _: &XdpDatagram) -> &[u8] {
        match *self {}
    }

    pub fn reply(&mut self, _: XdpDatagram, _: &[u8]) -> bool {
        match *self {}
    }

    pub fn release(&mut self, _: XdpDatagram) {
        match *self {}
    }

    pub fn flush(&mut self) {
        match *self {}
    }

    pub fn drops(&self) -> u64 {
        match *self {}
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

#[expect(missing_docs, reason = "none of it can be called")]
impl XdpDatagram {
    pub fn path(&self) -> DatagramPath {
        match *self {}
    }
}
