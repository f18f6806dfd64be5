//! One link through NATS, which the program carries.
#![forbid(unsafe_code)]

use super::{CLOSE, CREDIT, FlowControl, FlowLimits, HEADER_BYTES, PIECE, header, split_header};

static LIMITS: FlowLimits = FlowLimits { first: 16 << 10, link: 1 << 20, all: 16 << 20 };

/// What a received message means.
#[derive(PartialEq, Eq, Debug)]
pub enum TunnelEvent<'a> {
    /// The next bytes of the link.
    Piece(&'a [u8]),
    /// The other side has granted credit.
    Credit,
    /// The other side has ended the link.
    Closed,
    /// A piece is missing, or the peer breaks the rules: the link has ended.
    Lost,
    /// It changes nothing.
    Ignored,
}

/// Numbers the bytes of a link each way.
#[derive(Debug)]
pub struct ByteTunnel {
    flow: FlowControl,
    is_dialed: bool,
}

impl ByteTunnel {
    /// `is_dialed`: this side has opened the link, by its first piece.
    #[must_use]
    pub fn new(is_dialed: bool) -> Self {
        Self { flow: FlowControl::new(&LIMITS), is_dialed }
    }

    /// Whether a piece has arrived.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.flow.received() > 0
    }

    /// Handles a message of the other side.
    pub fn handle_message<'a>(&mut self, message: &'a [u8]) -> TunnelEvent<'a> {
        let Some((kind, number, bytes)) = split_header(message) else {
            return TunnelEvent::Ignored;
        };
        match kind {
            CREDIT if number < self.flow.sent() => TunnelEvent::Ignored,
            CREDIT => {
                self.flow.allow(number);
                TunnelEvent::Credit
            }
            PIECE if number == self.flow.received() && self.flow.is_granted(bytes.len() as u64) => {
                self.flow.count_received(bytes.len() as u64);
                TunnelEvent::Piece(bytes)
            }
            PIECE => TunnelEvent::Lost,
            _ => TunnelEvent::Closed,
        }
    }

    /// The next message: credit, if it is due and there is room for more input, else a piece of
    /// what `next` appends, up to a length.
    pub fn next_message(
        &mut self,
        piece_bytes_max: usize,
        links: usize,
        has_room: impl FnOnce() -> bool,
        next: impl FnOnce(usize, &mut Vec<u8>),
    ) -> Option<Vec<u8>> {
        // The first message of a link is a piece, which opens it.
        let is_open = self.flow.sent() > 0 || !self.is_dialed;
        if is_open
            && let Some(window) = self.flow.due(links)
            && has_room()
        {
            self.flow.grant(window);
            return Some(header(CREDIT, self.flow.received() + window).to_vec());
        }
        let room = usize::try_from(self.flow.room()).unwrap_or(usize::MAX);
        let bytes_max = piece_bytes_max.min(room);
        if bytes_max == 0 {
            return None;
        }
        let mut message = header(PIECE, self.flow.sent()).to_vec();
        next(bytes_max, &mut message);
        let count = message.len() - HEADER_BYTES;
        self.flow.count_sent(count as u64);
        (count > 0).then_some(message)
    }

    /// The message that ends a link.
    #[must_use]
    pub fn close_message() -> [u8; HEADER_BYTES] {
        header(CLOSE, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u64, bytes: &[u8]) -> Vec<u8> {
        [&header(PIECE, number), bytes].concat()
    }

    /// The lengths of all pieces that may be sent now.
    fn send(tunnel: &mut ByteTunnel, piece_bytes_max: usize) -> Vec<usize> {
        let mut lengths = Vec::new();
        let fill = |count: usize, output: &mut Vec<u8>| output.resize(output.len() + count, 0);
        while lengths.len() < 100
            && let Some(message) = tunnel.next_message(piece_bytes_max, 1, || false, fill)
        {
            lengths.push(message.len() - HEADER_BYTES);
        }
        lengths
    }

    #[test]
    fn credit_bounds_the_bytes_in_the_broker() {
        let mut tunnel = ByteTunnel::new(true);
        let total = |lengths: Vec<usize>| lengths.iter().sum::<usize>();
        let lengths = send(&mut tunnel, 1000);
        assert!(lengths.iter().all(|length| *length <= 1000));
        assert_eq!(total(lengths), 16 << 10);
        assert_eq!(tunnel.handle_message(&header(CREDIT, 20_000)), TunnelEvent::Credit);
        assert_eq!(total(send(&mut tunnel, 1000)), 20_000 - (16 << 10));
        // Older than what was sent since.
        assert_eq!(tunnel.handle_message(&header(CREDIT, 19_999)), TunnelEvent::Ignored);
        assert_eq!(total(send(&mut tunnel, 1000)), 0);
    }

    #[test]
    fn a_piece_that_is_missing_repeated_or_too_long_ends_the_link() {
        let body = vec![0; 16 << 10];
        let mut tunnel = ByteTunnel::new(false);
        assert_eq!(tunnel.handle_message(&piece(0, &body)), TunnelEvent::Piece(&body));
        // It has granted no more.
        let next = piece(body.len() as u64, b"x");
        assert_eq!(tunnel.handle_message(&next), TunnelEvent::Lost);
        for number in [0, 2] {
            let mut tunnel = ByteTunnel::new(false);
            assert_eq!(tunnel.handle_message(&piece(0, b"x")), TunnelEvent::Piece(b"x"));
            assert_eq!(tunnel.handle_message(&piece(number, b"x")), TunnelEvent::Lost);
        }
        let mut tunnel = ByteTunnel::new(false);
        assert_eq!(tunnel.handle_message(&piece(0, &vec![0; body.len() + 1])), TunnelEvent::Lost);
        assert_eq!(tunnel.handle_message(&ByteTunnel::close_message()), TunnelEvent::Closed);
        assert_eq!(tunnel.handle_message(b"\0\0"), TunnelEvent::Ignored);
    }

    #[test]
    fn a_link_starts_with_a_piece_and_continues_with_credit() {
        let mut dialed = ByteTunnel::new(true);
        let mut next = |links| {
            let fill = |_: usize, output: &mut Vec<u8>| output.push(b'x');
            dialed.next_message(1000, links, || true, fill)
        };
        assert_eq!(next(1), Some(piece(0, b"x")));
        assert_eq!(next(1), Some(header(CREDIT, 1 << 20).to_vec()));
        assert_eq!(next(1), Some(piece(1, b"x")));
        let mut accepted = ByteTunnel::new(false);
        let nothing = |_: usize, _: &mut Vec<u8>| {};
        assert_eq!(accepted.next_message(1000, 1, || false, nothing), None);
        assert_eq!(accepted.next_message(1000, 100_000, || true, nothing), None);
        assert_eq!(accepted.handle_message(&piece(0, &[0; 4096])), TunnelEvent::Piece(&[0; 4096]));
        let due = accepted.next_message(1000, 100_000, || true, nothing);
        assert_eq!(due, Some(header(CREDIT, 4096 + (16 << 10)).to_vec()));
        assert!(accepted.has_received());
    }
}
