//! The length of pieces.
//!
//! A broker may not report the longest packet that it accepts. Then it drops a longer piece, or the
//! connection. So pieces get half as long when some of full length are lost before any has arrived
//! on a connection. If pieces of this length have arrived on an earlier connection, more losses in
//! a row are needed: a broker that is killed repeatedly, or a network that breaks, looks the same.
//!
//! Pieces get longer again after many of full length have arrived. One piece of twice the length
//! is tried, when other pieces follow it at once: by those the peer detects that it is missing,
//! and the link is made again. A failed trial costs no more, and doubles the wait for the next.
#![forbid(unsafe_code)]

/// A broker has a piece in memory twice for a moment. Together that stays below the 128 KiB at
/// which glibc returns memory to the system: with pieces of 64 KiB mosquitto took new pages for
/// each, and carried less than half as many bytes.
const PIECE_BYTES_MAX: usize = 48 * 1024;
pub(super) const PIECE_BYTES_MIN: usize = 1024;
/// Pieces of full length that arrive before the first trial.
const PIECES_BEFORE_TRIAL: u64 = 256;
/// Losses in a row that do not shorten pieces of a length that has arrived before.
const LOSSES_OF_KNOWN_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct PieceSizer {
    full: usize,
    /// The longest piece.
    max: usize,
    /// A piece of full length has arrived on this connection.
    is_confirmed: bool,
    /// The longest piece that has arrived on any connection, since pieces became shorter.
    known_good: usize,
    /// Links and connections lost in a row with long pieces in flight.
    losses: u32,
    /// Pieces of full length that have arrived since the length changed or a trial failed.
    arrived: u64,
    /// The number of arrivals before the next trial.
    trial_interval: u64,
    trial: Option<Trial>,
}

/// A longer piece that is in flight.
#[derive(Debug)]
struct Trial {
    link: u128,
    number: u64,
    bytes: usize,
}

impl Default for PieceSizer {
    fn default() -> Self {
        Self {
            full: PIECE_BYTES_MAX,
            max: PIECE_BYTES_MAX,
            is_confirmed: false,
            known_good: 0,
            losses: 0,
            arrived: 0,
            trial_interval: PIECES_BEFORE_TRIAL,
            trial: None,
        }
    }
}

impl PieceSizer {
    /// A connection has begun, perhaps to another broker.
    pub(super) fn begin(&mut self) {
        self.is_confirmed = false;
    }

    /// The broker accepts pieces up to this length.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.max = bytes.clamp(1, PIECE_BYTES_MAX);
        self.full = self.full.min(self.max);
    }

    /// Bytes of a piece of full length.
    pub(super) fn full(&self) -> usize {
        self.full
    }

    /// The unsent bytes that a link should have for its next piece.
    pub(super) fn wanted(&self) -> usize {
        if self.is_trial_due() { self.longer() + 1 } else { self.full }
    }

    /// The length of the next piece of a link, by its number, the bytes that wait, and whether
    /// another piece may follow at once.
    pub(super) fn next(
        &mut self,
        (link, number): (u128, u64),
        waiting: usize,
        may_follow: bool,
    ) -> usize {
        let bytes = self.longer();
        if !self.is_trial_due() || !may_follow || waiting <= bytes {
            return waiting.min(self.full);
        }
        self.trial = Some(Trial { link, number, bytes });
        bytes
    }

    /// Pieces of a link have arrived: their number in all, and the new ones of full length.
    pub(super) fn arrived(&mut self, link: u128, received: u64, full: u64) {
        self.arrived += full;
        if full > 0 {
            (self.is_confirmed, self.losses) = (true, 0);
            self.known_good = self.known_good.max(self.full);
        }
        let has_arrived = |trial: &mut Trial| trial.link == link && received > trial.number;
        if let Some(trial) = self.trial.take_if(has_arrived) {
            (self.full, self.arrived) = (trial.bytes.min(self.max), 0);
            (self.known_good, self.trial_interval) = (self.full, PIECES_BEFORE_TRIAL);
        }
    }

    /// A link has lost pieces, perhaps because they were too long.
    pub(super) fn lost(&mut self, link: u128, had_long: bool) {
        if self.trial.take_if(|trial| trial.link == link).is_some() {
            self.postpone_trial();
        } else if had_long && !self.is_confirmed {
            self.count_loss(0);
        }
    }

    /// The connection is lost, perhaps because pieces were too long.
    pub(super) fn disconnected(&mut self, had_long: bool) {
        if self.trial.take().is_some() {
            return self.postpone_trial();
        }
        // A single loss may be chance.
        if had_long && !self.is_confirmed {
            self.count_loss(1);
        }
    }

    /// Counts a loss with long pieces in flight; more than `allowed` in a row make pieces shorter.
    fn count_loss(&mut self, allowed: u32) {
        self.losses += 1;
        let is_known_good = self.full <= self.known_good;
        if self.losses > if is_known_good { LOSSES_OF_KNOWN_MAX } else { allowed } {
            self.shorten();
        }
    }

    /// A link has ended.
    pub(super) fn forget(&mut self, link: u128) {
        self.trial.take_if(|trial| trial.link == link);
    }

    fn is_trial_due(&self) -> bool {
        let may_grow = self.is_confirmed && self.arrived >= self.trial_interval;
        may_grow && self.trial.is_none() && self.full < self.max
    }

    fn longer(&self) -> usize {
        (self.full * 2).min(self.max)
    }

    fn postpone_trial(&mut self) {
        self.arrived = 0;
        self.trial_interval = self.trial_interval.saturating_mul(2);
    }

    /// Pieces of this length do not arrive.
    fn shorten(&mut self) {
        (self.losses, self.arrived, self.known_good) = (0, 0, 0);
        self.full = (self.full / 2).max(PIECE_BYTES_MIN.min(self.full));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that always has output, through a broker that accepts `takes` bytes.
    struct SimulatedLink {
        sizer: PieceSizer,
        takes: usize,
        link: u128,
        sent: u64,
        lost: u32,
    }

    impl SimulatedLink {
        fn new(takes: usize) -> Self {
            let mut sizer = PieceSizer::default();
            sizer.begin();
            Self { sizer, takes, link: 0, sent: 0, lost: 0 }
        }

        fn send(&mut self, pieces: u64) {
            for _ in 0..pieces {
                let waiting = self.sizer.wanted();
                let bytes = self.sizer.next((self.link, self.sent), waiting, true);
                self.sent += 1;
                if bytes <= self.takes {
                    let full = u64::from(bytes == self.sizer.full());
                    self.sizer.arrived(self.link, self.sent, full);
                } else {
                    self.sizer.lost(self.link, true);
                    self.sizer.forget(self.link);
                    (self.link, self.sent) = (self.link + 1, 0);
                    self.lost += 1;
                }
            }
        }
    }

    #[test]
    fn pieces_grow_back_to_the_size_a_broker_accepts() {
        let mut simulated = SimulatedLink::new(1000);
        simulated.sizer.limit(usize::MAX);
        simulated.send(10_000);
        // A kilobyte is the least: this broker accepts no piece.
        assert_eq!((simulated.sizer.full(), simulated.lost), (PIECE_BYTES_MIN, 10_000));
        simulated.takes = usize::MAX;
        simulated.send(256 + 1);
        assert_eq!(simulated.sizer.full(), 2 * PIECE_BYTES_MIN);
        simulated.send(6 * 257);
        assert_eq!((simulated.sizer.full(), simulated.lost), (PIECE_BYTES_MAX, 10_000));
    }

    #[test]
    fn pieces_stay_long_when_the_broker_is_killed_repeatedly() {
        let mut simulated = SimulatedLink::new(PIECE_BYTES_MAX);
        simulated.send(1);
        for _ in 0..100 {
            for _ in 0..LOSSES_OF_KNOWN_MAX {
                simulated.sizer.disconnected(true);
                simulated.sizer.begin();
            }
            // Some arrive.
            simulated.send(1);
        }
        assert_eq!(simulated.sizer.full(), PIECE_BYTES_MAX);
        simulated.sizer.begin();
        // A broker that drops such pieces for good gets shorter ones in the end, of which none has
        // arrived before.
        for _ in 0..=LOSSES_OF_KNOWN_MAX {
            simulated.sizer.disconnected(true);
            simulated.sizer.begin();
        }
        assert_eq!(simulated.sizer.full(), PIECE_BYTES_MAX / 2);
        for _ in 0..2 {
            simulated.sizer.disconnected(true);
            simulated.sizer.begin();
        }
        assert_eq!(simulated.sizer.full(), PIECE_BYTES_MAX / 4);
    }

    #[test]
    fn a_lost_connection_postpones_only_the_current_trial() {
        let mut simulated = SimulatedLink::new(usize::MAX);
        (simulated.sizer.full, simulated.sizer.known_good) = (PIECE_BYTES_MAX / 4, 0);
        simulated.send(257);
        simulated.sizer.disconnected(false);
        let mut trial_interval = simulated.sizer.trial_interval;
        assert_eq!(
            (simulated.sizer.full(), trial_interval),
            (PIECE_BYTES_MAX / 2, PIECES_BEFORE_TRIAL)
        );
        // In flight, and lost with the connection.
        simulated.sizer.begin();
        simulated.send(256);
        let bytes = simulated.sizer.wanted();
        simulated.sizer.next((simulated.link, simulated.sent), bytes, true);
        simulated.sizer.disconnected(true);
        assert_eq!(simulated.sizer.trial_interval, 2 * trial_interval);
        simulated.sizer.begin();
        simulated.send(2 * 256 + 1);
        trial_interval = simulated.sizer.trial_interval;
        assert_eq!(
            (simulated.sizer.full(), trial_interval),
            (PIECE_BYTES_MAX, PIECES_BEFORE_TRIAL)
        );
    }

    #[test]
    fn failed_trials_become_rare() {
        let mut simulated = SimulatedLink::new(10_000);
        simulated.send(1_000_000);
        assert_eq!(simulated.sizer.full(), 6 * 1024);
        assert!((4..16).contains(&simulated.lost), "{}", simulated.lost);
    }

    #[test]
    fn no_trial_exceeds_the_limit_of_the_broker() {
        let mut simulated = SimulatedLink::new(20_000);
        simulated.sizer.limit(20_000);
        simulated.send(10_000);
        assert_eq!((simulated.sizer.full(), simulated.lost), (20_000, 0));
    }

    #[test]
    fn a_trial_waits_for_credit_for_the_next_piece() {
        let mut simulated = SimulatedLink::new(10_000);
        simulated.send(3 + 256);
        let full = simulated.sizer.full();
        assert_eq!(simulated.sizer.next((9, 0), 2 * full + 1, false), full);
        assert_eq!(simulated.sizer.next((9, 0), 2 * full, true), full);
        assert_eq!(simulated.sizer.next((9, 0), 2 * full + 1, true), 2 * full);
        // One trial at a time. A connection that is lost meanwhile delays the next.
        assert_eq!(simulated.sizer.next((8, 0), 2 * full + 1, true), full);
        simulated.sizer.disconnected(true);
        simulated.sizer.begin();
        simulated.send(257);
        assert_eq!((simulated.sizer.full(), simulated.lost), (full, 3));
    }
}
