//! The topics of a broker, and the names of its links.

use super::Broker;

impl Broker {
    /// The part of the topic for the other side.
    pub(super) fn peer_side(&self) -> &'static str {
        if self.is_server { "down" } else { "up" }
    }

    /// The topic of a server's announcement.
    pub(super) fn announcement_topic(&self) -> String {
        format!("{}/server", self.login.topic)
    }

    /// Names a link of this connection.
    pub(super) fn name(&self, number: u64) -> u128 {
        u128::from(self.connection) << 64 | u128::from(number)
    }

    pub(super) fn topic(&self, side: &str, name: u128) -> String {
        format!("{}/{side}/{name:032x}", self.login.topic)
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Broker({:?}, {} links)", self.state, self.links.len())
    }
}
