//! One link through a broker: numbered pieces each way, and credit for them.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ucall_buffer::Payload;

use super::piece_sizer::PIECE_BYTES_MIN;
use crate::session_manager::{LinkKey, SessionManager};
use crate::tunnel::{CLOSE, CREDIT, FlowControl, FlowLimits, PIECE, header, split_header};

/// In pieces. Brokers queue 1,000 messages or more for one client.
static LIMITS: FlowLimits = FlowLimits { first: 2, link: 32, all: 512 };

/// The header of a publication's payload: a byte for its kind, and 64 bits, little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PieceHeader {
    /// The next piece of the link follows; its number, from 0.
    Piece(u64),
    /// The number of pieces that have arrived, and the number that may be in flight after them.
    Credit(u64, u64),
    /// The link has ended.
    Close,
    /// The link has ended, because a piece is missing.
    Lost,
    /// The client is gone, and so are all its links. The broker publishes this for it.
    ClientGone,
}

const LOST: u8 = 3;
const CLIENT_GONE: u8 = 4;
/// The lower bits of a credit that hold its window.
const WINDOW_BITS: u32 = 16;

impl PieceHeader {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (kind, number, _) = split_header(bytes)?;
        Some(match kind {
            PIECE => Self::Piece(number),
            CREDIT => Self::Credit(number >> WINDOW_BITS, number & ((1 << WINDOW_BITS) - 1)),
            CLOSE => Self::Close,
            LOST => Self::Lost,
            CLIENT_GONE => Self::ClientGone,
            _ => return None,
        })
    }

    pub(super) fn write(self, output: &mut Vec<u8>) {
        let (kind, number) = match self {
            Self::Piece(number) => (PIECE, number),
            Self::Credit(received, window) => (CREDIT, received << WINDOW_BITS | window),
            Self::Close => (CLOSE, 0),
            Self::Lost => (LOST, 0),
            Self::ClientGone => (CLIENT_GONE, 0),
        };
        output.extend(header(kind, number));
    }
}

#[derive(Debug)]
pub(super) struct TunnelLink {
    pub(super) key: LinkKey,
    /// In pieces.
    flow: FlowControl,
    /// It is on the list of links that may have output.
    pub(super) is_queued: bool,
    /// The manager has closed it, and its output is given up at this time.
    pub(super) ends_at: Option<Instant>,
    /// Since when there is output and no credit.
    pub(super) stalled_since: Option<Instant>,
    /// Its deadline, as in the broker's `due`.
    pub(super) due: Option<Instant>,
    /// The lengths of pieces that are not confirmed, the last one last.
    pending: VecDeque<usize>,
    /// Output of the manager that is not sent.
    waiting: VecDeque<Bytes>,
    waiting_bytes: usize,
}

impl TunnelLink {
    pub(super) fn new(key: LinkKey) -> Self {
        Self {
            key,
            flow: FlowControl::new(&LIMITS),
            is_queued: false,
            ends_at: None,
            stalled_since: None,
            due: None,
            pending: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Pieces that were received.
    pub(super) fn received(&self) -> u64 {
        self.flow.received()
    }

    /// Whether a piece that may be too long is not confirmed.
    pub(super) fn has_long_in_flight(&self) -> bool {
        self.pending.iter().any(|bytes| *bytes > PIECE_BYTES_MIN)
    }

    /// Whether there is credit for this number of pieces.
    pub(super) fn has_credit_for(&self, pieces: u64) -> bool {
        self.flow.room() >= pieces
    }

    /// The number of the next piece.
    pub(super) fn next_number(&self) -> u64 {
        self.flow.sent()
    }

    /// When it is closed: because the time for its last output is over, or because the peer has
    /// not confirmed any piece.
    pub(super) fn deadline(&self, keepalive: Duration) -> Option<Instant> {
        let stalled_until = self.stalled_since.map(|since| since + keepalive);
        [self.ends_at, stalled_until].into_iter().flatten().min()
    }

    /// Handles credit; returns the number of pieces of full length that it confirms.
    pub(super) fn credit(&mut self, received: u64, window: u64, full_bytes: usize) -> u64 {
        if received > self.flow.sent() {
            return 0;
        }
        let confirmed = (self.pending.len() as u64).saturating_sub(self.flow.sent() - received);
        let is_full = |bytes: &usize| *bytes == full_bytes;
        let full = self.pending.drain(..confirmed as usize).filter(is_full).count() as u64;
        self.flow.allow(received + window);
        self.stalled_since = self.stalled_since.filter(|_| !self.has_credit_for(1));
        full
    }

    /// Counts a received piece; returns the credit that is due on one of this many links.
    pub(super) fn count_piece(&mut self, links: usize) -> Option<PieceHeader> {
        self.flow.count_received(1);
        let window = self.flow.due(links)?;
        self.flow.grant(window);
        Some(PieceHeader::Credit(self.flow.received(), window))
    }

    /// Polls the manager until `wanted` bytes wait; returns the number that do.
    pub(super) fn fill(
        &mut self,
        wanted: usize,
        manager: &mut SessionManager,
        now: Instant,
    ) -> usize {
        while self.waiting_bytes < wanted {
            let mut payload = Payload::new();
            manager.poll_output(self.key, &mut payload, now);
            if payload.is_empty() {
                break;
            }
            self.waiting_bytes += payload.len();
            self.waiting.extend(payload.drain());
        }
        self.waiting_bytes
    }

    /// Moves a piece of `count` bytes to the end of `output`.
    pub(super) fn take(&mut self, count: usize, output: &mut Payload) {
        self.flow.count_sent(1);
        self.pending.push_back(count);
        self.waiting_bytes -= count;
        let mut left = count;
        while left > 0 {
            let Some(mut first) = self.waiting.pop_front() else { break };
            let part = first.split_to(first.len().min(left));
            left -= part.len();
            output.push(part);
            if !first.is_empty() {
                self.waiting.push_front(first);
            }
        }
    }
}
