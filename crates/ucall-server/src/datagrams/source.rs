//! The senders that limits apply to.
//!
//! Datagrams with a cookie are another source than those without one, because anybody can send the
//! latter from any address.

use std::net::IpAddr;

use crate::network::PeerNetwork;

/// A network, validated or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Source {
    network: PeerNetwork,
    pub(super) has_cookie: bool,
}

impl Source {
    pub(super) fn new(address: IpAddr, has_cookie: bool) -> Self {
        Self { network: PeerNetwork::new(address), has_cookie }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_makes_another_source() {
        let address = "192.0.2.1".parse().unwrap();
        assert_ne!(Source::new(address, true), Source::new(address, false));
    }
}
