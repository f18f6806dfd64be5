//! The networks that limits apply to.
//!
//! A host with IPv6 has at least a network of 64 bits, with more addresses than any table holds
//! (RFC 7608, RFC 6177), so all of them are one.

use std::net::{IpAddr, Ipv6Addr};

use ucall_engine::Peer;

/// The prefix of an IPv6 address that names its network.
const NETWORK_MASK: u128 = !0 << 64;

/// An address of IPv4 or a network of IPv6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct PeerNetwork(IpAddr);

impl PeerNetwork {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK).into(),
            address => address,
        })
    }

    /// That of a peer; `None` over a Unix socket, and for a peer that is not known.
    pub(crate) fn of(peer: Option<Peer>) -> Option<Self> {
        match peer {
            Some(Peer::Address(address)) => Some(Self::new(address.ip())),
            _ => None,
        }
    }
}

impl std::fmt::Display for PeerNetwork {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => write!(out, "{address}"),
            IpAddr::V6(network) => write!(out, "{network}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> PeerNetwork {
        PeerNetwork::new(address.parse().unwrap())
    }

    #[test]
    fn a_network_of_ipv6_is_one() {
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.1"));
        assert_ne!(network("::ffff:192.0.2.1"), network("::ffff:192.0.2.2"));
        assert_eq!(network("2001:db8::1").to_string(), "2001:db8::/64");
    }
}
