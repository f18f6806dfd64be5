//! What a connection waits for, and until when.

use std::mem;
use std::time::{Duration, Instant};

use super::{Closing, Environment, PlainConnection, Protocol};
use crate::Limits;

/// What the connection waits for from its peer, with a limit in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Awaits {
    Handshake,
    Request,
    Head,
    Body { total: Duration },
    Replies,
    End,
}

impl PlainConnection {
    /// Notes what is waited for from now on. The deadline that follows from it is counted only when
    /// a sweep asks, which is seldom.
    #[inline(always)]
    pub(super) fn note_awaits<S>(&mut self, environment: &mut Environment<'_, S>) {
        if self.awaits == Awaits::Request && self.is_between_requests() {
            // Between requests that come whole there is nothing to count.
            (self.awaits_since, self.awaits_behind) = (environment.now, self.requests);
        } else {
            self.begin_to_await(environment);
        }
    }

    #[inline]
    fn is_between_requests(&self) -> bool {
        let is_between = match &self.protocol {
            Protocol::Http(http) => http.is_between_requests(),
            Protocol::Raw(_) | Protocol::Unknown => true,
        };
        is_between
            && self.input.is_empty()
            && !self.paused
            && self.closing == Closing::Open
            && self.exchanges.is_empty()
    }

    /// The moment at which [`Connection::expire`] is due.
    pub fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let since = self.awaits_since;
        match self.awaits {
            Awaits::Handshake => Some(since + limits.handshake_timeout),
            Awaits::Request => {
                let end = since + limits.idle_timeout;
                Some(limits.lifetime.map_or(end, |lifetime| end.min(self.accepted_at + lifetime)))
            }
            Awaits::Head => Some(since + limits.head_timeout),
            Awaits::Body { total } => {
                Some((self.heard_at + limits.body_timeout).min(since + total))
            }
            Awaits::Replies => None,
            Awaits::End => Some(since + limits.discard_timeout),
        }
    }

    /// Whether the peer has ended its side, and waits for replies alone. So nothing more comes that
    /// would tell that it has left.
    pub fn only_answers(&self) -> bool {
        self.ended_by_peer && !self.exchanges.is_empty()
    }

    #[inline(never)]
    fn begin_to_await<S>(&mut self, environment: &mut Environment<'_, S>) {
        let awaits = self.now_awaits(environment.limits);
        self.count_held(awaits, environment);
        // A peer that sends without a pause has always begun another request.
        let is_other = mem::discriminant(&awaits) != mem::discriminant(&self.awaits)
            || self.requests != self.awaits_behind;
        if is_other || awaits == Awaits::Request {
            (self.awaits_since, self.awaits_behind) = (environment.now, self.requests);
        }
        (self.awaits, self.heard_at) = (awaits, environment.now);
    }

    fn now_awaits(&self, limits: &Limits) -> Awaits {
        if self.paused {
            return Awaits::Replies;
        }
        let awaits = if self.closing != Closing::Open {
            Awaits::End
        } else if self.awaits == Awaits::Handshake && self.session.is_none() {
            Awaits::Handshake
        } else {
            match &self.protocol {
                Protocol::Http(http) => http.awaits(self.input.is_empty(), limits),
                _ if self.input.is_empty() => Awaits::Request,
                Protocol::Raw(_) => Awaits::Body { total: body_time(self.input.len(), limits) },
                Protocol::Unknown => Awaits::Head,
            }
        };
        match awaits {
            // A request that has begun is held to its limits behind calls that wait, too.
            Awaits::Request | Awaits::End if !self.exchanges.is_empty() => Awaits::Replies,
            awaits => awaits,
        }
    }
}

/// How long so many bytes of a body, all or those that came, may take: at 1 KiB a second.
pub(super) fn body_time(bytes: usize, limits: &Limits) -> Duration {
    limits.body_timeout + Duration::from_secs((bytes >> 10) as u64)
}
