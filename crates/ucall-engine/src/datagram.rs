//! The addresses of a datagram, and the control messages that carry them (Linux).
//!
//! A server that is bound to all addresses has to answer from the address that the client has
//! asked: a client ignores a reply from any other. The kernel reports that address with each
//! datagram (`IP_PKTINFO`, `IPV6_PKTINFO`), and takes it with the reply. It also reports how many
//! datagrams it has dropped because the socket's buffer was full (`SO_RXQ_OVFL`).

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
#[cfg(target_os = "linux")]
use std::net::{Ipv4Addr, Ipv6Addr};

/// Both ends of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatagramPath {
    /// The other end.
    pub peer: SocketAddr,
    /// Our end; `None` if the socket is bound to one address, or the system does not report it.
    pub local: Option<LocalAddress>,
}

/// The address of this machine that a datagram was sent to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocalAddress {
    /// The address.
    pub ip: IpAddr,
    /// The index of the interface that it belongs to; 0 unless the address is link-local.
    pub interface: u32,
}

/// Datagrams of a socket that were lost on this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramDrops {
    /// That arrived while the socket's buffer was full.
    pub received: u64,
    /// That the kernel did not take.
    pub sent: u64,
}

impl From<SocketAddr> for DatagramPath {
    fn from(peer: SocketAddr) -> Self {
        Self { peer, local: None }
    }
}

/// Has the kernel report the local address of datagrams, if the socket has several, and drops.
#[cfg(target_os = "linux")]
pub(crate) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    let address = socket.local_addr()?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL)?;
    match address.ip() {
        ip if !ip.is_unspecified() => Ok(()),
        IpAddr::V4(_) => set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO),
        IpAddr::V6(_) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    }
}

/// Other systems report neither.
#[cfg(not(target_os = "linux"))]
pub(crate) fn prepare(_: &UdpSocket) -> io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn set_option(socket: &UdpSocket, level: i32, name: i32) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let (on, len) = (1i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel reads `len` bytes of `on`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len) }
    {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Room for the control messages of one datagram.
#[cfg(target_os = "linux")]
pub(crate) const CONTROL_BYTES: usize = 64;

/// The length, level and type before the data of a control message.
#[cfg(target_os = "linux")]
const CONTROL_HEAD_BYTES: usize = size_of::<usize>() + 8;

/// What control messages have reported of a datagram.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Control {
    pub(crate) local: Option<LocalAddress>,
    /// Datagrams that were dropped since the socket was made.
    pub(crate) drops: Option<u32>,
}

#[cfg(target_os = "linux")]
impl Control {
    /// Reads control messages that the kernel has written into zeroed memory.
    pub(crate) fn read(mut bytes: &[u8]) -> Self {
        let mut control = Self::default();
        while let Some((level, kind, data, rest)) = split_message(bytes) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    control.local = ipv4_address(data).or(control.local);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    control.local = ipv6_address(data).or(control.local);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    control.drops = data.first_chunk().copied().map(u32::from_ne_bytes);
                }
                _ => {}
            }
            bytes = rest;
        }
        control
    }
}

/// The level, type and data of the first message, and the bytes after it.
#[cfg(target_os = "linux")]
fn split_message(bytes: &[u8]) -> Option<(i32, i32, &[u8], &[u8])> {
    let (len, rest) =
        bytes.split_first_chunk().map(|(it, rest)| (usize::from_ne_bytes(*it), rest))?;
    let (level, rest) =
        rest.split_first_chunk().map(|(it, rest)| (i32::from_ne_bytes(*it), rest))?;
    let kind = i32::from_ne_bytes(*rest.first_chunk()?);
    let data = bytes.get(CONTROL_HEAD_BYTES..len)?;
    let next = len.next_multiple_of(size_of::<usize>());
    Some((level, kind, data, bytes.get(next..).unwrap_or_default()))
}

/// Of `in_pktinfo`: the interface, the address to reply from, and the header's destination.
#[cfg(target_os = "linux")]
fn ipv4_address(data: &[u8]) -> Option<LocalAddress> {
    let octets: [u8; 4] = *data.get(4..)?.first_chunk()?;
    Some(LocalAddress { ip: Ipv4Addr::from(octets).into(), interface: 0 })
}

/// Of `in6_pktinfo`: the address and the interface. No reply can come from a multicast address.
#[cfg(target_os = "linux")]
fn ipv6_address(data: &[u8]) -> Option<LocalAddress> {
    let (octets, rest) = data.split_first_chunk::<16>()?;
    let ip = Ipv6Addr::from(*octets);
    let interface = u32::from_ne_bytes(*rest.first_chunk()?);
    let interface = if ip.is_unicast_link_local() { interface } else { 0 };
    (!ip.is_multicast()).then_some(LocalAddress { ip: ip.into(), interface })
}

/// Writes the control message that sets the local address; returns its length.
#[cfg(target_os = "linux")]
pub(crate) fn write_local(local: Option<LocalAddress>, control: &mut [u8; CONTROL_BYTES]) -> usize {
    let Some(LocalAddress { ip, interface }) = local else { return 0 };
    let interface = interface.to_ne_bytes();
    let (level, kind, data) = match ip {
        IpAddr::V4(ip) => {
            let mut data = [0; 20];
            data[4..8].copy_from_slice(&ip.octets());
            (libc::IPPROTO_IP, libc::IP_PKTINFO, (data, 12))
        }
        IpAddr::V6(ip) => {
            let mut data = [0; 20];
            data[..16].copy_from_slice(&ip.octets());
            data[16..].copy_from_slice(&interface);
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, (data, 20))
        }
    };
    let (data, data_len) = data;
    let len = CONTROL_HEAD_BYTES + data_len;
    const LEN_BYTES: usize = size_of::<usize>();
    *control = [0; CONTROL_BYTES];
    control[..LEN_BYTES].copy_from_slice(&len.to_ne_bytes());
    control[LEN_BYTES..LEN_BYTES + 4].copy_from_slice(&level.to_ne_bytes());
    control[LEN_BYTES + 4..CONTROL_HEAD_BYTES].copy_from_slice(&kind.to_ne_bytes());
    control[CONTROL_HEAD_BYTES..len].copy_from_slice(&data[..data_len]);
    len.next_multiple_of(LEN_BYTES)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_local_address_is_read_as_written() {
        for (ip, interface) in [("192.0.2.7", 0), ("2001:db8::7", 0), ("fe80::1", 3)] {
            let local = Some(LocalAddress { ip: ip.parse().unwrap(), interface });
            let mut control = [0xff; CONTROL_BYTES];
            let len = write_local(local, &mut control);
            assert_eq!(Control::read(&control[..len]), Control { local, drops: None }, "{ip}");
        }
        assert_eq!(write_local(None, &mut [0; CONTROL_BYTES]), 0);
    }

    #[test]
    fn truncated_control_messages_are_ignored() {
        let local = Some(LocalAddress { ip: IpAddr::V6(Ipv6Addr::LOCALHOST), interface: 0 });
        let mut control = [0; CONTROL_BYTES];
        let len = write_local(local, &mut control);
        for end in 0..len - 4 {
            assert_eq!(Control::read(&control[..end]), Control::default(), "{end} bytes");
        }
        assert_eq!(Control::read(&[0xff; CONTROL_BYTES]), Control::default());
    }
}
