//! The headers of a UDP datagram in an Ethernet frame: RFC 768, RFC 791 and RFC 8200.
//!
//! A frame whose headers are not whole, or whose checksums are wrong, is no datagram. A sender on
//! the same machine leaves the UDP checksum to a network card that is not there: such a checksum
//! covers the pseudo header only, and is accepted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
const IPV4_TYPE: [u8; 2] = [0x08, 0x00];
const IPV6_TYPE: [u8; 2] = [0x86, 0xdd];
/// UDP in the fields "protocol" and "next header".
const UDP: u8 = 17;
/// The default of RFC 1700 for both versions.
const HOPS: u8 = 64;

/// A datagram in a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatagramFrame {
    /// The sender. A link-local address has no scope yet.
    pub peer: SocketAddr,
    /// The destination.
    pub local: IpAddr,
    /// Where the frame has the datagram's bytes.
    pub payload: Range<usize>,
}

impl DatagramFrame {
    /// Finds the datagram in a frame.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, packet) = frame.split_at_checked(ETHERNET_BYTES)?;
        match *ethernet.last_chunk()? {
            IPV4_TYPE => parse_ipv4(packet),
            IPV6_TYPE => parse_ipv6(packet),
            _ => None,
        }
    }

    /// Turns the frame of a request into that of its reply; returns its length. `None` if the reply
    /// does not fit into `frame`, or into a packet of `mtu` bytes.
    pub fn write_reply(&self, frame: &mut [u8], reply: &[u8], mtu: usize) -> Option<usize> {
        let payload = self.payload.start;
        let len = payload + reply.len();
        if len > frame.len() || len - ETHERNET_BYTES > mtu {
            return None;
        }
        frame.get_mut(payload..len)?.copy_from_slice(reply);
        let (ethernet, packet) = frame.get_mut(..len)?.split_at_mut(ETHERNET_BYTES);
        let (destination, source) = ethernet.split_at_mut(6);
        destination.swap_with_slice(source.get_mut(..6)?);
        match self.local {
            IpAddr::V4(_) => write_ipv4(packet),
            IpAddr::V6(_) => write_ipv6(packet),
        }?;
        Some(len)
    }
}

fn parse_ipv4(packet: &[u8]) -> Option<DatagramFrame> {
    let header: &[u8; IPV4_BYTES] = packet.first_chunk()?;
    let is_whole = header[0] == 0x45 && header[6] & 0x3f == 0 && header[7] == 0;
    if !is_whole || header[9] != UDP || fold(sum(header)) != u16::MAX {
        return None;
    }
    let packet = packet.get(..be16(header, 2)?.into())?;
    let source = Ipv4Addr::from(*header[12..].first_chunk()?);
    let local = Ipv4Addr::from(*header[16..].first_chunk()?);
    let is_valid = !source.is_unspecified()
        && !source.is_multicast()
        && !source.is_broadcast()
        && !source.is_loopback();
    let segment = packet.get(IPV4_BYTES..)?;
    let (port, len) = parse_udp(segment, &header[12..], true).filter(|_| is_valid)?;
    let start = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
    let peer = SocketAddr::new(source.into(), port);
    Some(DatagramFrame { peer, local: local.into(), payload: start..start + len })
}

fn parse_ipv6(packet: &[u8]) -> Option<DatagramFrame> {
    let header: &[u8; IPV6_BYTES] = packet.first_chunk()?;
    if header[0] >> 4 != 6 || header[6] != UDP {
        return None;
    }
    let segment = packet.get(IPV6_BYTES..)?.get(..be16(header, 4)?.into())?;
    let source = Ipv6Addr::from(*header[8..].first_chunk::<16>()?);
    let local = Ipv6Addr::from(*header[24..].first_chunk::<16>()?);
    let is_valid = !source.is_unspecified() && !source.is_multicast() && !source.is_loopback();
    let (port, len) = parse_udp(segment, &header[8..], false).filter(|_| is_valid)?;
    let start = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
    let peer = SocketAddrV6::new(source, port, 0, 0).into();
    Some(DatagramFrame { peer, local: local.into(), payload: start..start + len })
}

/// The source port and the length of the payload. `addresses` are those of the packet.
fn parse_udp(segment: &[u8], addresses: &[u8], may_lack_sum: bool) -> Option<(u16, usize)> {
    let (port, len) = (be16(segment, 0)?, usize::from(be16(segment, 4)?));
    let payload_len = len.checked_sub(UDP_BYTES)?;
    let segment = segment.get(..len)?;
    let pseudo = pseudo_header(addresses, len);
    let is_right = match be16(segment, 6)? {
        // RFC 8200, section 8.1: over IPv6 the checksum is not optional.
        0 => may_lack_sum,
        checksum => fold(pseudo + sum(segment)) == u16::MAX || checksum == fold(pseudo),
    };
    (is_right && port != 0).then_some((port, payload_len))
}

/// Exchanges the addresses and ports of a packet, and completes the headers of IPv4 and UDP.
fn write_ipv4(packet: &mut [u8]) -> Option<()> {
    let len = u16::try_from(packet.len()).ok()?;
    let (header, segment) = packet.split_first_chunk_mut::<IPV4_BYTES>()?;
    header[1] = 0;
    header[2..4].copy_from_slice(&len.to_be_bytes());
    // No fragment follows, so the packet needs no identification (RFC 6864).
    header[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
    header[8] = HOPS;
    header[10..12].fill(0);
    let (source, destination) = header[12..].split_at_mut(4);
    source.swap_with_slice(destination);
    let checksum = !fold(sum(header));
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    write_udp(segment, &header[12..])
}

fn write_ipv6(packet: &mut [u8]) -> Option<()> {
    let (header, segment) = packet.split_first_chunk_mut::<IPV6_BYTES>()?;
    let len = u16::try_from(segment.len()).ok()?;
    header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[7] = HOPS;
    let (source, destination) = header[8..].split_at_mut(16);
    source.swap_with_slice(destination);
    write_udp(segment, &header[8..])
}

fn write_udp(segment: &mut [u8], addresses: &[u8]) -> Option<()> {
    let len = u16::try_from(segment.len()).ok()?;
    let (header, _) = segment.split_first_chunk_mut::<UDP_BYTES>()?;
    let (source, destination) = header.split_at_mut(2);
    source.swap_with_slice(destination.get_mut(..2)?);
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6..].fill(0);
    let checksum = match !fold(pseudo_header(addresses, len.into()) + sum(segment)) {
        // Zero means that there is none.
        0 => u16::MAX,
        checksum => checksum,
    };
    segment.get_mut(6..8)?.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}

/// The sum of the addresses, the length and the protocol, which the UDP checksum covers, too.
fn pseudo_header(addresses: &[u8], udp_len: usize) -> u64 {
    sum(addresses) + udp_len as u64 + u64::from(UDP)
}

/// A number that [`fold`] turns into the sum of all words of 16 bits, the last one filled up with
/// zeros. Words of 32 bits have the same sum, because carries are added anyway (RFC 1071, 2 (C)).
fn sum(bytes: &[u8]) -> u64 {
    let halves = |bytes: [u8; 8]| {
        let number = u64::from_be_bytes(bytes);
        (number >> 32) + (number & u64::from(u32::MAX))
    };
    let (chunks, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    chunks.iter().fold(halves(last), |sum, chunk| sum + halves(*chunk))
}

/// Adds the carries to the lower 16 bits.
fn fold(mut sum: u64) -> u16 {
    while sum > u64::from(u16::MAX) {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_be_bytes(*it))
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
