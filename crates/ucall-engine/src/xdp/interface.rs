//! Attributes of a network interface, as the system reports them.

use std::ffi::{CStr, CString};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

const ETHTOOL_GCHANNELS: u32 = 0x3c;
const SIOCETHTOOL: u32 = 0x8946;
const ETHERNET: u16 = 1;

#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) hardware: [u8; 6],
    pub(super) mtu: usize,
    pub(super) queues: u32,
    pub(super) addresses: Vec<IpAddr>,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    max: [u32; 4],
    receive: u32,
    send: u32,
    other: u32,
    combined: u32,
}

impl Interface {
    pub(super) fn find(interface: &str) -> io::Result<Self> {
        // ioctl(2) takes any socket.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let (socket, name) = (socket.as_fd(), CString::new(interface)?);
        // SAFETY: the name ends with a NUL.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error());
        }
        let mut request = request(&name);
        ioctl(socket, libc::SIOCGIFHWADDR as u32, &mut request)?;
        // SAFETY: the kernel has written an address.
        let found = unsafe { request.ifr_ifru.ifru_hwaddr };
        if found.sa_family != ETHERNET {
            return Err(io::Error::other("expected an Ethernet interface"));
        }
        let hardware = std::array::from_fn(|index| found.sa_data[index] as u8);
        ioctl(socket, libc::SIOCGIFMTU as u32, &mut request)?;
        // SAFETY: the kernel has written a number.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu } as usize;
        let (queues, addresses) = (queues(socket, &name), addresses(&name)?);
        Ok(Self { name: interface.into(), index, hardware, mtu, queues, addresses })
    }
}

fn request(name: &CStr) -> libc::ifreq {
    // SAFETY: zeros are a valid value of this plain structure.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    request
}

fn ioctl(socket: BorrowedFd<'_>, number: u32, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: the kernel reads and writes the structure, and what it refers to.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number as _, &raw mut *request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The receive queues; 1 if the driver does not report them.
fn queues(socket: BorrowedFd<'_>, name: &CStr) -> u32 {
    let mut channels = Channels { command: ETHTOOL_GCHANNELS, ..Channels::default() };
    let mut request = request(name);
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    match ioctl(socket, SIOCETHTOOL, &mut request) {
        Ok(()) => (channels.receive + channels.combined).max(1),
        Err(_) => 1,
    }
}

fn addresses(name: &CStr) -> io::Result<Vec<IpAddr>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the system sets the list.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut found, mut next) = (Vec::new(), list);
    // SAFETY: the list consists of valid entries, whose last one has no successor.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry has a name.
        if unsafe { CStr::from_ptr(entry.ifa_name) } == name {
            // SAFETY: an address is of the kind that its family says.
            found.extend(unsafe { address(entry.ifa_addr) });
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list is of getifaddrs, and is not used any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// # Safety
/// The address is null, or of the kind that its family says.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as our caller says.
    unsafe {
        match i32::from(address.as_ref()?.sa_family) {
            libc::AF_INET => {
                let found = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(found.sin_addr.s_addr.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let found = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(found.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}
