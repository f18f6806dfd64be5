//! In place of AF_XDP on other systems than Linux, and in a build without it.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::DatagramPath;

/// No value of it exists.
pub enum XdpQueue {}

/// No value of it exists.
pub enum XdpDatagram {}

/// No value of it exists.
#[derive(Debug)]
pub enum XdpProgram {}

/// The queues of one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueShare {
    /// From 0.
    pub worker: u32,
    /// How many there are.
    pub workers: u32,
}

/// No value of it is made.
pub struct Xdp {
    program: XdpProgram,
    /// None.
    pub queues: Vec<XdpQueue>,
}

/// Fails.
pub fn hand_over(name: &str, _: BorrowedFd<'_>) -> io::Result<()> {
    Err(unsupported(name))
}

fn unsupported(name: &str) -> io::Error {
    let why = match cfg!(target_os = "linux") {
        true => "this build of ucall has no AF_XDP: it was built without the feature `xdp`",
        false => "AF_XDP exists on Linux only",
    };
    io::Error::new(io::ErrorKind::Unsupported, format!("xdp: {name}: {why}"))
}

#[expect(missing_docs, reason = "none of it can be called")]
impl XdpProgram {
    pub fn attach(name: &str, _: SocketAddr) -> io::Result<Self> {
        Err(unsupported(name))
    }

    pub fn share(name: &str, _: OwnedFd, _: bool) -> io::Result<Self> {
        Err(unsupported(name))
    }

    pub fn check_workers(&self, _: u32) -> io::Result<()> {
        match *self {}
    }

    pub fn interface(&self) -> &str {
        match *self {}
    }

    pub fn queues(&self) -> u32 {
        match *self {}
    }

    pub fn is_native(&self) -> bool {
        match *self {}
    }

    pub fn why_generic(&self) -> Option<&str> {
        match *self {}
    }

    pub fn sockets(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

#[expect(missing_docs, reason = "none of it can be called")]
impl Xdp {
    pub fn attach(name: &str, _: &UdpSocket, _: bool) -> io::Result<Self> {
        Err(unsupported(name))
    }

    pub fn share(program: Arc<XdpProgram>, _: QueueShare, _: bool) -> io::Result<Self> {
        match *program {}
    }

    pub fn bind_more(&mut self) -> io::Result<usize> {
        match self.program {}
    }

    pub fn has_busy(&self) -> bool {
        match self.program {}
    }

    pub fn program(&self) -> &XdpProgram {
        &self.program
    }

    pub fn mode(&self) -> &'static str {
        match self.program {}
    }
}

#[expect(missing_docs, reason = "none of it can be called")]
impl XdpQueue {
    pub fn poll(&mut self) {
        match *self {}
    }

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_it_names_the_feature() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = Xdp::attach("eth0", &socket, false).err().unwrap();
        let text = "xdp: eth0: this build of ucall has no AF_XDP: \
                    it was built without the feature `xdp`";
        assert_eq!(error.to_string(), text);
    }
}
