//! How long pieces are.
//!
//! What a broker takes it may tell, or not: then a piece that is too long is lost without a word,
//! or the connection with it. So pieces of full length that are lost before one has arrived on a
//! connection become shorter, by half. Where pieces as long have come before, on an earlier
//! connection, it takes more of those in a row: a broker that is killed again and again, or a
//! network that breaks, looks the same, and is no reason to send a broker shorter pieces.
//!
//! They become longer again with care. Once many of full length have come, a single one of twice
//! that is tried, when others can follow it at once: by those the other side sees that it is
//! missing, and the link is made anew. That is all a trial costs which fails, and each that does
//! puts the next one off for twice as long.
#![forbid(unsafe_code)]

/// A broker holds a piece twice for a moment. Together that stays below the 128 KiB at which glibc
/// gives memory back to the system: with pieces of 64 KiB mosquitto took its pages anew for each,
/// and carried less than half as much.
const PIECE_BYTES_MAX: usize = 48 * 1024;
pub(super) const PIECE_BYTES_MIN: usize = 1024;
/// Pieces of full length that come before a longer one is tried for the first time.
const PIECES_BEFORE_TRIAL: u64 = 256;
/// Links or connections lost in a row that pieces of a length outlive which have come before.
const LOSSES_OF_KNOWN_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct Lengths {
    full: usize,
    /// No piece is longer.
    most: usize,
    /// A piece of full length has arrived on this connection.
    is_proven: bool,
    /// The longest that has arrived on any connection, since pieces became shorter.
    known: usize,
    /// Links and connections lost with long pieces under way, and none proven.
    losses: u32,
    /// Pieces of full length that have come since that changed, or a trial failed.
    arrived: u64,
    /// So many have to, before the next trial.
    patience: u64,
    trial: Option<Trial>,
}

/// A longer piece that is under way.
#[derive(Debug)]
struct Trial {
    link: u128,
    number: u64,
    bytes: usize,
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            full: PIECE_BYTES_MAX,
            most: PIECE_BYTES_MAX,
            is_proven: false,
            known: 0,
            losses: 0,
            arrived: 0,
            patience: PIECES_BEFORE_TRIAL,
            trial: None,
        }
    }
}

impl Lengths {
    /// A connection has begun, to a broker that may be another one than before.
    pub(super) fn begin(&mut self) {
        self.is_proven = false;
    }

    /// The broker takes pieces of so many bytes.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.most = bytes.clamp(1, PIECE_BYTES_MAX);
        self.full = self.full.min(self.most);
    }

    /// Bytes of a piece of full length.
    pub(super) fn full(&self) -> usize {
        self.full
    }

    /// How much a link should have to send, so that what comes next can be of the length it should.
    pub(super) fn wanted(&self) -> usize {
        if self.is_trial_due() { self.longer() + 1 } else { self.full }
    }

    /// The length of the next piece of a link, which has this number, where so many bytes wait and
    /// another may follow at once or not.
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

    /// So many pieces of a link have come in all, and just now so many of full length.
    pub(super) fn arrived(&mut self, link: u128, received: u64, full: u64) {
        self.arrived += full;
        if full > 0 {
            (self.is_proven, self.losses) = (true, 0);
            self.known = self.known.max(self.full);
        }
        let has_come = |trial: &mut Trial| trial.link == link && received > trial.number;
        if let Some(trial) = self.trial.take_if(has_come) {
            (self.full, self.arrived) = (trial.bytes.min(self.most), 0);
            (self.known, self.patience) = (self.full, PIECES_BEFORE_TRIAL);
        }
    }

    /// A link has lost pieces, perhaps because they were too long.
    pub(super) fn lost(&mut self, link: u128, had_long: bool) {
        if self.trial.take_if(|trial| trial.link == link).is_some() {
            self.put_off();
        } else if had_long && !self.is_proven {
            self.count_loss(0);
        }
    }

    /// The connection is lost, perhaps because pieces were too long.
    pub(super) fn disconnected(&mut self, had_long: bool) {
        if self.trial.take().is_some() {
            return self.put_off();
        }
        // One may be chance.
        if had_long && !self.is_proven {
            self.count_loss(1);
        }
    }

    /// Counts what was lost with long pieces under way; more in a row than `allowed` make them
    /// shorter.
    fn count_loss(&mut self, allowed: u32) {
        self.losses += 1;
        let is_known = self.full <= self.known;
        if self.losses > if is_known { LOSSES_OF_KNOWN_MAX } else { allowed } {
            self.shorten();
        }
    }

    /// A link is over.
    pub(super) fn forget(&mut self, link: u128) {
        self.trial.take_if(|trial| trial.link == link);
    }

    fn is_trial_due(&self) -> bool {
        let has_proof = self.is_proven && self.arrived >= self.patience;
        has_proof && self.trial.is_none() && self.full < self.most
    }

    fn longer(&self) -> usize {
        (self.full * 2).min(self.most)
    }

    fn put_off(&mut self) {
        self.arrived = 0;
        self.patience = self.patience.saturating_mul(2);
    }

    /// Pieces of this length do not come through.
    fn shorten(&mut self) {
        (self.losses, self.arrived, self.known) = (0, 0, 0);
        self.full = (self.full / 2).max(PIECE_BYTES_MIN.min(self.full));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that always has something to send, through a broker that takes `takes` bytes.
    struct Talk {
        lengths: Lengths,
        takes: usize,
        link: u128,
        sent: u64,
        lost: u32,
    }

    impl Talk {
        fn new(takes: usize) -> Self {
            let mut lengths = Lengths::default();
            lengths.begin();
            Self { lengths, takes, link: 0, sent: 0, lost: 0 }
        }

        fn send(&mut self, pieces: u64) {
            for _ in 0..pieces {
                let waiting = self.lengths.wanted();
                let bytes = self.lengths.next((self.link, self.sent), waiting, true);
                self.sent += 1;
                if bytes <= self.takes {
                    let full = u64::from(bytes == self.lengths.full());
                    self.lengths.arrived(self.link, self.sent, full);
                } else {
                    self.lengths.lost(self.link, true);
                    self.lengths.forget(self.link);
                    (self.link, self.sent) = (self.link + 1, 0);
                    self.lost += 1;
                }
            }
        }
    }

    #[test]
    fn pieces_grow_back_to_what_a_broker_takes() {
        let mut talk = Talk::new(1000);
        talk.lengths.limit(usize::MAX);
        talk.send(10_000);
        // A kilobyte is the least: this broker takes nothing.
        assert_eq!((talk.lengths.full(), talk.lost), (PIECE_BYTES_MIN, 10_000));
        talk.takes = usize::MAX;
        talk.send(256 + 1);
        assert_eq!(talk.lengths.full(), 2 * PIECE_BYTES_MIN);
        talk.send(6 * 257);
        assert_eq!((talk.lengths.full(), talk.lost), (PIECE_BYTES_MAX, 10_000));
    }

    #[test]
    fn a_broker_that_is_killed_again_and_again_gets_long_pieces() {
        let mut talk = Talk::new(PIECE_BYTES_MAX);
        talk.send(1);
        for _ in 0..100 {
            for _ in 0..LOSSES_OF_KNOWN_MAX {
                talk.lengths.disconnected(true);
                talk.lengths.begin();
            }
            // Now and then one comes.
            talk.send(1);
        }
        assert_eq!(talk.lengths.full(), PIECE_BYTES_MAX);
        talk.lengths.begin();
        // One that takes no such pieces any more, and says nothing, is believed in the end; shorter
        // ones are unknown then.
        for _ in 0..=LOSSES_OF_KNOWN_MAX {
            talk.lengths.disconnected(true);
            talk.lengths.begin();
        }
        assert_eq!(talk.lengths.full(), PIECE_BYTES_MAX / 2);
        for _ in 0..2 {
            talk.lengths.disconnected(true);
            talk.lengths.begin();
        }
        assert_eq!(talk.lengths.full(), PIECE_BYTES_MAX / 4);
    }

    #[test]
    fn a_connection_that_breaks_during_a_trial_puts_off_only_that_one() {
        let mut talk = Talk::new(usize::MAX);
        (talk.lengths.full, talk.lengths.known) = (PIECE_BYTES_MAX / 4, 0);
        talk.send(257);
        talk.lengths.disconnected(false);
        let mut patience = talk.lengths.patience;
        assert_eq!((talk.lengths.full(), patience), (PIECE_BYTES_MAX / 2, PIECES_BEFORE_TRIAL));
        // Under way, and lost with the connection.
        talk.lengths.begin();
        talk.send(256);
        let bytes = talk.lengths.wanted();
        talk.lengths.next((talk.link, talk.sent), bytes, true);
        talk.lengths.disconnected(true);
        assert_eq!(talk.lengths.patience, 2 * patience);
        talk.lengths.begin();
        talk.send(2 * 256 + 1);
        patience = talk.lengths.patience;
        assert_eq!((talk.lengths.full(), patience), (PIECE_BYTES_MAX, PIECES_BEFORE_TRIAL));
    }

    #[test]
    fn trials_that_fail_become_rare() {
        let mut talk = Talk::new(10_000);
        talk.send(1_000_000);
        assert_eq!(talk.lengths.full(), 6 * 1024);
        assert!((4..16).contains(&talk.lost), "{}", talk.lost);
    }

    #[test]
    fn nothing_is_tried_that_a_broker_has_ruled_out() {
        let mut talk = Talk::new(20_000);
        talk.lengths.limit(20_000);
        talk.send(10_000);
        assert_eq!((talk.lengths.full(), talk.lost), (20_000, 0));
    }

    #[test]
    fn a_trial_waits_until_others_can_follow() {
        let mut talk = Talk::new(10_000);
        talk.send(3 + 256);
        let full = talk.lengths.full();
        assert_eq!(talk.lengths.next((9, 0), 2 * full + 1, false), full);
        assert_eq!(talk.lengths.next((9, 0), 2 * full, true), full);
        assert_eq!(talk.lengths.next((9, 0), 2 * full + 1, true), 2 * full);
        // One at a time; a connection that is lost meanwhile puts the next one off.
        assert_eq!(talk.lengths.next((8, 0), 2 * full + 1, true), full);
        talk.lengths.disconnected(true);
        talk.lengths.begin();
        talk.send(257);
        assert_eq!((talk.lengths.full(), talk.lost), (full, 3));
    }
}
