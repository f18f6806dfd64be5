//! Datagrams over AF_XDP: a program on the network interface steers them into memory that this
//! process shares with the kernel, past the kernel's network stack.
//!
//! [`Xdp`] complements an ordinary UDP socket at the same port, which gets all datagrams that the
//! program does not take. The kernel detaches the program when the process ends, also by SIGKILL.

mod bpf;
mod frame;
mod interface;
mod program;
mod queue;
mod rings;
mod umem;

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

pub use frame::DatagramFrame;
pub use queue::{XdpDatagram, XdpQueue};

use bpf::Place;
use interface::Interface;
use program::Destination;
use queue::retry_while_busy;
use umem::{FRAME_BYTES, HEADROOM_BYTES};

/// The program compares a destination with each address. Others take the ordinary socket.
const ADDRESSES_MAX: usize = 64;

/// How frames come into the memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpMode {
    /// The network card writes them there.
    ZeroCopy,
    /// The driver runs the program and copies them.
    Native,
    /// The kernel copies them out of its own buffers, for drivers without XDP.
    Generic,
}

impl fmt::Display for XdpMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::ZeroCopy => "zero-copy mode",
            Self::Native => "native mode with copies",
            Self::Generic => "generic mode",
        })
    }
}

/// The program on an interface, until it is dropped, and a socket for each receive queue.
pub struct Xdp {
    /// Detaches the program when it is closed.
    _link: OwnedFd,
    _sockets: OwnedFd,
    /// How the first queue gets its frames.
    pub mode: XdpMode,
    /// One for each queue of the interface.
    pub queues: Vec<XdpQueue>,
}

impl Xdp {
    /// Takes the datagrams for `socket` that arrive at the interface with this name.
    ///
    /// # Errors
    /// The kernel's, with the names of capabilities that are missing.
    pub fn attach(name: &str, socket: &UdpSocket) -> io::Result<Self> {
        attach(name, socket).map_err(|error| explain(name, &error))
    }
}

fn attach(name: &str, socket: &UdpSocket) -> io::Result<Xdp> {
    let interface = Interface::find(name, socket)?;
    let sockets = bpf::create_map(interface.queues)?;
    let destination = destination(&interface, socket)?;
    let program = program::load(sockets.as_fd(), &destination, program::PASS)?;
    let attach = |place| retry_while_busy(|| bpf::attach(program.as_fd(), interface.index, place));
    let (link, is_native) = match attach(Place::Driver) {
        Ok(link) => (link, true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(error),
        Err(_) => (attach(Place::Generic)?, false),
    };
    let queues = (0..interface.queues).map(|number| {
        let queue = XdpQueue::bind(interface.index, number, interface.mtu)?;
        bpf::set_socket(sockets.as_fd(), number, queue.as_fd())?;
        Ok(queue)
    });
    let queues: Vec<XdpQueue> = queues.collect::<io::Result<_>>()?;
    let mode = match queues.first() {
        Some(queue) if queue.is_zero_copy() => XdpMode::ZeroCopy,
        _ if is_native => XdpMode::Native,
        _ => XdpMode::Generic,
    };
    Ok(Xdp { _link: link, _sockets: sockets, mode, queues })
}

/// What the socket receives at the interface.
fn destination(interface: &Interface, socket: &UdpSocket) -> io::Result<Destination> {
    let bound = socket.local_addr()?;
    let is_bound = |address: &&IpAddr| match bound.ip() {
        ip if ip.is_unspecified() => ip.is_ipv4() == address.is_ipv4(),
        ip => ip == **address,
    };
    let addresses: Vec<_> =
        interface.addresses.iter().filter(is_bound).take(ADDRESSES_MAX).copied().collect();
    if addresses.is_empty() {
        let message = format!("the interface has no address that {bound} stands for");
        return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, message));
    }
    Ok(Destination {
        hardware: interface.hardware,
        addresses,
        port: bound.port(),
        frame_bytes_max: (FRAME_BYTES - HEADROOM_BYTES) as i32,
    })
}

fn explain(name: &str, error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            format!("{error}; {}", explain_capabilities(effective_capabilities()))
        }
        Some(libc::EBUSY) => {
            format!("{error}: another program of XDP or another server has the interface")
        }
        Some(libc::ENOBUFS) => {
            format!("{error}: RLIMIT_MEMLOCK is too low (ulimit -l); each queue takes 5 MiB")
        }
        _ => error.to_string(),
    };
    io::Error::new(error.kind(), format!("xdp: {name}: {why}"))
}

/// The capabilities of this thread; `None` if they are unknown.
fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn explain_capabilities(effective: Option<u64>) -> String {
    const NEEDED: [(u32, &str); 3] = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW"), (39, "CAP_BPF")];
    let has = |bit: u32| effective.is_some_and(|effective| effective >> bit & 1 == 1);
    let missing: Vec<_> =
        NEEDED.iter().filter(|(bit, _)| !has(*bit)).map(|(_, name)| *name).collect();
    match missing.is_empty() {
        true => "the capabilities are those of a user namespace, or a security module or \
                 container forbids bpf(2)"
            .into(),
        false => format!("missing capabilities: {}", missing.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let all = 1 << 12 | 1 << 13 | 1 << 39;
        assert!(explain_capabilities(Some(all)).contains("user namespace"));
        let text = explain_capabilities(Some(1 << 13));
        assert_eq!(text, "missing capabilities: CAP_NET_ADMIN, CAP_BPF");
        let text = explain_capabilities(None);
        assert_eq!(text, "missing capabilities: CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF");
    }

    #[test]
    fn an_unknown_interface_is_named() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = Xdp::attach("no-such-card", &socket).err().unwrap();
        assert!(error.to_string().starts_with("xdp: no-such-card: "), "{error}");
    }
}
