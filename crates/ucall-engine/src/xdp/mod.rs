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
mod setup;
mod umem;

use std::fmt;
use std::fs;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

pub use frame::DatagramFrame;
pub use queue::{XdpDatagram, XdpQueue};
pub use setup::hand_over;

use bpf::Place;
use interface::Interface;
use program::Destination;
use umem::{FRAME_BYTES, HEADROOM_BYTES};

/// The program compares a destination with each address. Others take the ordinary socket.
const ADDRESSES_MAX: usize = 64;
/// How long the kernel may keep a queue and its memory after the process that had them has ended:
/// milliseconds.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Before the path of the socket of `ucall-xdp-setup`, in place of an interface.
const SETUP_PREFIX: &str = "unix:";

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

/// The program on an interface, until it is dropped.
#[derive(Debug)]
pub struct XdpProgram {
    interface: Interface,
    /// Detaches the program when it is closed; `None` if another process has it.
    link: Option<OwnedFd>,
    sockets: OwnedFd,
    is_native: bool,
    /// Why the driver does not run it, as far as this process knows.
    why_generic: Option<String>,
}

/// The queues of an interface that one of several workers has: those whose number modulo `workers`
/// is `worker`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueShare {
    /// From 0.
    pub worker: u32,
    /// How many there are.
    pub workers: u32,
}

/// The queues of one worker, each with a socket.
pub struct Xdp {
    program: Arc<XdpProgram>,
    busy_poll: bool,
    /// The queues that another process still has.
    busy: Vec<u32>,
    /// Those that frames are received from.
    pub queues: Vec<XdpQueue>,
}

impl XdpProgram {
    /// Takes the datagrams to `address` that arrive at the interface with this name. They go on to
    /// the ordinary socket as long as their queue has none in [`Xdp`].
    ///
    /// # Errors
    /// The kernel's, with the names of capabilities that are missing.
    pub fn attach(name: &str, address: SocketAddr) -> io::Result<Self> {
        attach(name, address).map_err(|error| explain(name, &error))
    }

    /// The program that another process has attached to an interface. `sockets` is its map.
    ///
    /// # Errors
    /// There is no such interface.
    pub fn share(name: &str, sockets: OwnedFd, is_native: bool) -> io::Result<Self> {
        let interface = Interface::find(name).map_err(|error| explain(name, &error))?;
        Ok(Self { interface, link: None, sockets, is_native, why_generic: None })
    }

    /// Checks that each of several workers gets a queue.
    ///
    /// # Errors
    /// The interface has fewer queues.
    pub fn check_workers(&self, workers: u32) -> io::Result<()> {
        let Interface { name, queues, .. } = &self.interface;
        if *queues >= workers {
            return Ok(());
        }
        let queues = if *queues == 1 { "1 queue".into() } else { format!("{queues} queues") };
        let message =
            format!("xdp: {name}: it has {queues}, and each of {workers} workers needs one");
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }

    /// The interface.
    pub fn interface(&self) -> &str {
        &self.interface.name
    }

    /// How many queues the interface has.
    pub fn queues(&self) -> u32 {
        self.interface.queues
    }

    /// Whether the driver runs the program.
    pub fn is_native(&self) -> bool {
        self.is_native
    }

    /// Why the driver does not run it; `None` if it does, or another process knows.
    pub fn why_generic(&self) -> Option<&str> {
        self.why_generic.as_deref()
    }

    /// Its map of sockets, for [`XdpProgram::share`].
    pub fn sockets(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}

impl Xdp {
    /// Takes the datagrams for `socket` that arrive at the interface with this name, or at that of
    /// `ucall-xdp-setup`, if the name is `unix:` and the path of its socket.
    ///
    /// # Errors
    /// The kernel's, with the names of capabilities that are missing.
    pub fn attach(name: &str, socket: &UdpSocket, busy_poll: bool) -> io::Result<Self> {
        let (program, sockets) = match name.strip_prefix(SETUP_PREFIX) {
            Some(path) => setup::request(path, socket, busy_poll)?,
            None => (XdpProgram::attach(name, socket.local_addr()?)?, Vec::new()),
        };
        let mut xdp = Self::unbound(Arc::new(program), busy_poll, |_| true);
        let mut sockets = sockets.into_iter();
        xdp.bind(RELEASE_TIMEOUT, || sockets.next()).map_err(|error| xdp.explain(&error))?;
        Ok(xdp)
    }

    /// Takes a share of the queues. Those that another process still has are left to
    /// [`Xdp::bind_more`].
    ///
    /// # Errors
    /// As above.
    pub fn share(
        program: Arc<XdpProgram>,
        QueueShare { worker, workers }: QueueShare,
        busy_poll: bool,
    ) -> io::Result<Self> {
        let mut xdp = Self::unbound(program, busy_poll, |number| number % workers == worker);
        xdp.bind_more()?;
        Ok(xdp)
    }

    fn unbound(program: Arc<XdpProgram>, busy_poll: bool, has: impl Fn(u32) -> bool) -> Self {
        let busy = (0..program.interface.queues).filter(|number| has(*number)).collect();
        Self { program, busy_poll, busy, queues: Vec::new() }
    }

    /// Binds the queues that another process had; returns how many.
    ///
    /// # Errors
    /// As above.
    pub fn bind_more(&mut self) -> io::Result<usize> {
        self.bind(Duration::ZERO, || None).map_err(|error| self.explain(&error))
    }

    /// `made` returns sockets that a privileged process has made. A queue that stays busy for
    /// `timeout` is an error; with a timeout of zero it is left for later.
    fn bind(
        &mut self,
        timeout: Duration,
        mut made: impl FnMut() -> Option<OwnedFd>,
    ) -> io::Result<usize> {
        let (before, interface) = (self.queues.len(), &self.program.interface);
        for number in mem::take(&mut self.busy) {
            let socket = match made() {
                Some(socket) => socket,
                None => queue::socket(self.busy_poll)?,
            };
            match XdpQueue::bind(socket, interface, number, timeout) {
                Ok(queue) => {
                    bpf::set_socket(self.program.sockets.as_fd(), number, queue.as_fd())?;
                    self.queues.push(queue);
                }
                Err(error) if timeout.is_zero() && is_busy(&error) => self.busy.push(number),
                Err(error) => return Err(error),
            }
        }
        Ok(self.queues.len() - before)
    }

    fn explain(&self, error: &io::Error) -> io::Error {
        explain(&self.program.interface.name, error)
    }

    /// Whether another process still has some of the queues.
    pub fn has_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// The interface.
    pub fn program(&self) -> &XdpProgram {
        &self.program
    }

    /// How the first queue gets its frames.
    pub fn mode(&self) -> XdpMode {
        match self.queues.first() {
            Some(queue) if queue.is_zero_copy() => XdpMode::ZeroCopy,
            _ if self.program.is_native => XdpMode::Native,
            _ => XdpMode::Generic,
        }
    }
}

fn attach(name: &str, address: SocketAddr) -> io::Result<XdpProgram> {
    let interface = Interface::find(name)?;
    let sockets = bpf::create_map(interface.queues)?;
    let destination = destination(&interface, address)?;
    let program = program::load(sockets.as_fd(), &destination, program::PASS)?;
    let attach = |place| {
        retry_until_released(RELEASE_TIMEOUT, || {
            bpf::attach(program.as_fd(), interface.index, place)
        })
    };
    let (link, why_generic) = match attach(Place::Driver) {
        Ok(link) => (link, None),
        Err(error) if is_busy(&error) => return Err(error),
        Err(error) => (attach(Place::Generic)?, Some(format!("not native: {error}"))),
    };
    let (link, is_native) = (Some(link), why_generic.is_none());
    Ok(XdpProgram { interface, link, sockets, is_native, why_generic })
}

/// What a socket that is bound to `bound` receives at the interface.
fn destination(interface: &Interface, bound: SocketAddr) -> io::Result<Destination> {
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

/// Tries again while the kernel has not cleaned up after a socket that is closed: it frees a queue
/// and locked memory later.
fn retry_until_released<T>(
    timeout: Duration,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let deadline = Instant::now() + timeout;
    loop {
        match attempt() {
            Err(error) if may_be_released(&error) && Instant::now() < deadline => {
                thread::sleep(RETRY_INTERVAL);
            }
            ended => return ended,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

fn may_be_released(error: &io::Error) -> bool {
    is_busy(error) || error.raw_os_error() == Some(libc::ENOBUFS)
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
    fn the_program_takes_the_first_64_addresses() {
        let mut interface = Interface {
            name: "eth0".into(),
            index: 1,
            hardware: [0; 6],
            mtu: 1500,
            queues: 1,
            addresses: vec![IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])],
        };
        interface.addresses.extend((1..=65).map(|number| IpAddr::from([192, 0, 2, number])));
        let of = |bound: &str| destination(&interface, bound.parse().unwrap());
        let addresses = of("0.0.0.0:80").unwrap().addresses;
        assert_eq!(addresses, interface.addresses[1..65]);
        // A server that is bound to one of the others has that one.
        assert_eq!(of("192.0.2.65:80").unwrap().addresses, interface.addresses[65..]);
        assert_eq!(of("[::]:80").unwrap().addresses, interface.addresses[..1]);
        assert!(of("192.0.2.66:80").is_err());
    }

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
        let error = Xdp::attach("no-such-card", &socket, false).err().unwrap();
        assert!(error.to_string().starts_with("xdp: no-such-card: "), "{error}");
    }
}
