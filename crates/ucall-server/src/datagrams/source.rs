//! The senders that limits apply to.
//!
//! A host with IPv6 has at least a network of 64 bits, with more addresses than any table holds
//! (RFC 7608, RFC 6177), so all of them are one source. Datagrams with a cookie are another source
//! than those without one, because anybody can send the latter from any address.

use std::net::{IpAddr, Ipv6Addr};

/// The prefix of an IPv6 address that names its network.
const NETWORK_MASK: u128 = !0 << 64;

/// An address of IPv4 or a network of IPv6, validated or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Source {
    network: IpAddr,
    pub(super) has_cookie: bool,
}

impl Source {
    pub(super) fn new(address: IpAddr, has_cookie: bool) -> Self {
        let network = match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK_MASK).into(),
            address => address,
        };
        Self { network, has_cookie }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(address: &str) -> Source {
        Source::new(address.parse().unwrap(), false)
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:ffff:ffff:ffff"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("192.0.2.1"), source("::ffff:192.0.2.1"));
        assert_ne!(source("::ffff:192.0.2.1"), source("::ffff:192.0.2.2"));
    }

    #[test]
    fn a_cookie_makes_another_source() {
        let address = "192.0.2.1".parse().unwrap();
        assert_ne!(Source::new(address, true), Source::new(address, false));
    }
}
