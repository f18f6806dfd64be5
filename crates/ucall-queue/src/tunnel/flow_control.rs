//! How much each side of a link has sent, and may send.
#![forbid(unsafe_code)]

/// In pieces or in bytes.
#[derive(Debug)]
pub(crate) struct FlowLimits {
    /// In flight before the first credit, and always allowed.
    pub(crate) first: u64,
    /// In flight on one link.
    pub(crate) link: u64,
    /// In flight on all links of a server, which share one connection.
    pub(crate) all: u64,
}

impl FlowLimits {
    /// What may be in flight on each of this many links.
    fn window(&self, links: usize) -> u64 {
        (self.all / (links as u64).max(1)).clamp(self.first, self.link)
    }
}

/// The flow control of one link.
#[derive(Debug)]
pub(crate) struct FlowControl {
    limits: &'static FlowLimits,
    sent: u64,
    /// The number that what is sent stays below.
    allowed: u64,
    received: u64,
    /// The number that what is received stays below, as advertised.
    granted: u64,
}

impl FlowControl {
    pub(crate) fn new(limits: &'static FlowLimits) -> Self {
        Self { limits, sent: 0, allowed: limits.first, received: 0, granted: limits.first }
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// How much may be sent.
    pub(crate) fn room(&self) -> u64 {
        self.allowed.saturating_sub(self.sent)
    }

    pub(crate) fn count_sent(&mut self, count: u64) {
        self.sent += count;
    }

    /// The other side grants credit; an older one changes nothing.
    pub(crate) fn allow(&mut self, limit: u64) {
        self.allowed = self.allowed.max(limit);
    }

    /// Whether so much may be received.
    pub(crate) fn is_granted(&self, count: u64) -> bool {
        count <= self.granted - self.received
    }

    pub(crate) fn count_received(&mut self, count: u64) {
        self.received += count;
    }

    /// The credit that is due: what is in flight may be this much more, and the other side knows
    /// of less than three quarters of that.
    pub(crate) fn due(&self, links: usize) -> Option<u64> {
        let window = self.limits.window(links);
        let limit = self.received + window;
        (limit >= self.granted + (window / 4).max(1)).then_some(window)
    }

    /// The credit was advertised.
    pub(crate) fn grant(&mut self, window: u64) {
        self.granted = self.received + window;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LIMITS: FlowLimits = FlowLimits { first: 2, link: 32, all: 512 };

    #[test]
    fn links_share_what_may_be_in_flight() {
        let windows = [0, 1, 16, 17, 512, 100_000].map(|links| LIMITS.window(links));
        assert_eq!(windows, [32, 32, 32, 30, 2, 2]);
    }

    #[test]
    fn credit_is_due_after_a_quarter_of_the_window() {
        let mut flow = FlowControl::new(&LIMITS);
        assert_eq!(flow.due(1), Some(32));
        flow.grant(32);
        for _ in 0..7 {
            flow.count_received(1);
            assert_eq!(flow.due(1), None);
        }
        flow.count_received(1);
        assert_eq!(flow.due(1), Some(32));
        assert!(flow.is_granted(24) && !flow.is_granted(25));
        // Many links have little each, and lose none of what was granted.
        assert_eq!(flow.due(1000), None);
    }

    #[test]
    fn an_older_credit_takes_nothing_back() {
        let mut flow = FlowControl::new(&LIMITS);
        assert_eq!(flow.room(), 2);
        flow.allow(10);
        flow.allow(5);
        flow.count_sent(4);
        assert_eq!((flow.room(), flow.sent()), (6, 4));
    }
}
