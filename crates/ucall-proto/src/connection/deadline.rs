//! What a connection waits for, and until when.
//!
//! After each step it follows from the other parts of the state:
//!
//! | reading | the input is | waits for |
//! |---|---|---|
//! | `Open` | empty | a handshake or a request; replies, if calls run |
//! | `Open` | of an incomplete request | the rest of its head or body |
//! | `Paused` | of requests that wait, or a body is to decode | replies to be complete or sent |
//! | `Discarding`, `Closed` | empty | replies, if calls run, else the end |
//!
//! Bytes have a destination other than the buffer only while a body is incomplete, and the input is
//! searched for requests to cancel only in `Paused`.

use std::mem;
use std::time::{Duration, Instant};

use super::{Destination, Environment, PlainConnection, Protocol, Reading};
use crate::Limits;

/// For a Pong that has arrived, but is not read yet. At least one turn reads between two sweeps.
const LAST_CHANCE: Duration = Duration::from_secs(1);

/// What the connection waits for from its peer, with a limit in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitState {
    Handshake,
    Request,
    Head,
    Body { total: Duration },
    Replies,
    End,
}

/// What a quiet connection is open for. The first ones give way to new connections first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EvictionClass {
    /// A request that may follow.
    Idle,
    /// A request that may follow, or a message of the server.
    WebSocket,
    /// Messages of the server, to which the peer has subscribed.
    Subscriber,
    /// A first request, which may be on its way: a new connection of which no byte was read. The
    /// layer above decides how long it is new.
    New,
}

impl PlainConnection {
    /// Updates the state that the connection waits in. Only a sweep computes the deadline from it.
    #[inline(always)]
    pub(super) fn update_wait_state<S>(&mut self, environment: &mut Environment<'_, S>) {
        let is_between_requests = || match &self.protocol {
            Protocol::Http(http) => http.body.is_none(),
            other => other.is_between_messages(),
        };
        if self.wait_state == WaitState::Request
            && is_between_requests()
            && self.input.is_empty()
            && matches!(self.reading, Reading::Open { .. })
            && self.exchanges.is_empty()
        {
            // Most requests arrive whole, and leave nothing to recount.
            (self.waiting_since, self.requests_at_wait) = (environment.now, self.requests);
        } else {
            self.enter_wait_state(environment);
        }
        debug_assert!(self.is_consistent(), "{:?}, {:?}", self.reading, self.wait_state);
    }

    /// Whether the parts of the state fit together, as they do after each step.
    fn is_consistent(&self) -> bool {
        match (self.reading, self.wait_state) {
            (Reading::Open { .. }, WaitState::End) => false,
            (Reading::Open { destination: Destination::Buffer, .. }, _)
            | (Reading::Open { .. }, WaitState::Body { .. }) => self.search.is_none(),
            (Reading::Paused { .. }, WaitState::Replies) => {
                !self.input.is_empty() || self.has_undecoded_stream()
            }
            (Reading::Discarding { .. } | Reading::Closed { .. }, it) => {
                let waits = matches!(it, WaitState::End | WaitState::Replies);
                waits && self.search.is_none() && self.input.is_empty()
            }
            _ => false,
        }
    }

    /// The moment at which [`Connection::handle_timeout`] is due.
    pub fn deadline(&self, limits: &Limits) -> Option<Instant> {
        let since = self.waiting_since;
        match self.wait_state {
            WaitState::Handshake => Some(since + limits.handshake_timeout),
            WaitState::Request => self.idle_end(limits),
            WaitState::Replies if self.waits_for_application() => self.idle_end(limits),
            WaitState::Head => Some(since + limits.head_timeout),
            WaitState::Body { total } => {
                Some((self.last_received_at + limits.body_timeout).min(since + total))
            }
            WaitState::Replies => self.comment_due(),
            WaitState::End => Some(since + limits.discard_timeout),
        }
    }

    fn idle_end(&self, limits: &Limits) -> Option<Instant> {
        let idle_end = self.idle_time(limits).map(|time| self.waiting_since + time);
        let end = limits.lifetime.map(|lifetime| self.accepted_at + lifetime);
        idle_end.into_iter().chain(end).min()
    }

    /// When a quiet connection gives way to a new one, and since when it has been quiet; `None`
    /// while it has a request or a call in flight.
    pub fn evictable_since(&self) -> Option<(EvictionClass, Instant)> {
        let class = match self.protocol {
            _ if self.awaits_messages => EvictionClass::Subscriber,
            Protocol::WebSocket(_) => EvictionClass::WebSocket,
            _ => EvictionClass::Idle,
        };
        Some((class, self.quiet_since()?))
    }

    /// Sets whether the peer waits for messages of the server, so that it is not idle without a
    /// call.
    pub(super) fn set_awaits_messages(&mut self, awaits_messages: bool) {
        self.awaits_messages = awaits_messages;
    }

    /// Since when the connection has had no message and no call in flight; `None` while it has. An
    /// open WebSocket is then quiet but not idle, because its peer may wait for messages of the
    /// server.
    pub fn quiet_since(&self) -> Option<Instant> {
        let is_quiet = matches!(self.wait_state, WaitState::Handshake | WaitState::Request)
            && (self.exchanges.is_empty() || self.is_mounted_websocket());
        is_quiet.then_some(self.waiting_since)
    }

    /// Whether the next bytes belong to a handshake.
    #[inline]
    pub fn is_handshaking(&self) -> bool {
        self.wait_state == WaitState::Handshake
    }

    /// How long the peer may be idle; `None` if it waits for messages of the server.
    fn idle_time(&self, limits: &Limits) -> Option<Duration> {
        match &self.protocol {
            Protocol::WebSocket(socket) if socket.is_silent(limits) => Some(LAST_CHANCE),
            Protocol::WebSocket(_) => Some(limits.ping_interval),
            _ => (!self.awaits_messages).then_some(limits.idle_timeout),
        }
    }

    /// Whether the peer has shut down its side and only waits for replies. Then no arrival reports
    /// that the peer has left.
    pub fn is_half_closed(&self) -> bool {
        self.reading.is_ended() && !self.exchanges.is_empty()
    }

    #[inline(never)]
    fn enter_wait_state<S>(&mut self, environment: &mut Environment<'_, S>) {
        let wait_state = self.current_wait_state(environment.limits);
        self.recount_held_bytes(wait_state, environment);
        // A peer that sends without a pause has always begun another request.
        let is_other = mem::discriminant(&wait_state) != mem::discriminant(&self.wait_state)
            || self.requests != self.requests_at_wait;
        let is_idle = wait_state == WaitState::Request || self.waits_for_application();
        if is_other || is_idle {
            (self.waiting_since, self.requests_at_wait) = (environment.now, self.requests);
        }
        (self.wait_state, self.last_received_at) = (wait_state, environment.now);
    }

    fn current_wait_state(&self, limits: &Limits) -> WaitState {
        if self.reading.is_paused() {
            return WaitState::Replies;
        }
        let wait_state = if !self.reading.takes_requests() {
            WaitState::End
        } else if self.wait_state == WaitState::Handshake && self.session.is_none() {
            WaitState::Handshake
        } else {
            match &self.protocol {
                Protocol::Http(http) => http.body.wait_state(self.input.is_empty(), limits),
                Protocol::WebSocket(socket) => socket.wait_state(self.input.len(), limits),
                Protocol::Raw(raw) if raw.frame_bytes > 0 || !self.input.is_empty() => {
                    let bytes = raw.frame_bytes.max(self.input.len());
                    WaitState::Body { total: body_time(bytes, limits) }
                }
                _ if self.input.is_empty() => WaitState::Request,
                _ => WaitState::Head,
            }
        };
        match wait_state {
            // A peer that waits for a reply answers pings.
            WaitState::Request if self.is_websocket() => WaitState::Request,
            // The limits of an incomplete request also apply while earlier calls are deferred.
            WaitState::Request | WaitState::End if !self.exchanges.is_empty() => WaitState::Replies,
            wait_state => wait_state,
        }
    }
}

impl Protocol {
    /// Whether no message is being received of a protocol other than HTTP.
    #[inline(never)]
    fn is_between_messages(&self) -> bool {
        match self {
            Self::WebSocket(socket) => socket.is_between_messages(),
            _ => true,
        }
    }
}

/// The time limit for a body of `bytes`: the timeout, and one second for each KiB.
pub(super) fn body_time(bytes: usize, limits: &Limits) -> Duration {
    limits.body_timeout + Duration::from_secs((bytes >> 10) as u64)
}

#[cfg(test)]
mod tests {
    use super::super::exchange::{ExchangeReply, ReplyPart};
    use super::super::http::Http;
    use super::super::http_framing::HttpFraming;
    use super::super::raw::Raw;
    use super::super::reading::tests::state;
    use super::super::websocket::WebSocket;
    use super::*;

    /// What a connection waits for in each state of reading: without calls, and while calls run.
    /// `+` is with input, and `-` is not reached.
    const TABLE: &str = "
        connection  open                 paus             d0           shut
        handshake   handshake/-          -/-              end/-        end/-
        unknown     request/-            -/-              end/-        end/-
        unknown+    head/-               -/-              -/-          -/-
        raw         request/replies      -/-              end/replies  end/replies
        raw+        body/body            replies/replies  -/-          -/-
        http        request/replies      -/-              end/replies  end/replies
        http+       head/head            replies/replies  -/-          -/-
        websocket   request/request      -/-              end/replies  end/replies
        websocket+  body/body            replies/replies  -/-          -/-
    ";

    fn connection(name: &str, reading: &str, has_calls: bool) -> PlainConnection {
        let mut connection = PlainConnection::new(Instant::now(), &Limits::default());
        connection.reading = state(reading);
        connection.protocol = match name.trim_end_matches('+') {
            "raw" => Protocol::Raw(Raw::default()),
            "http" => Protocol::Http(Http::default()),
            "websocket" => Protocol::WebSocket(WebSocket::default()),
            _ => Protocol::Unknown,
        };
        if name == "handshake" {
            connection.wait_state = WaitState::Handshake;
        }
        if name.ends_with('+') {
            connection.input.push(b' ');
        }
        if has_calls {
            let part =
                ReplyPart::Waiting { item: 0, id: b"1".to_vec(), token: None, is_reporting: false };
            connection.exchanges.push(1, HttpFraming::default(), ExchangeReply::Single(part));
        }
        connection
    }

    #[test]
    fn what_a_connection_waits_for_follows_from_its_state() {
        let limits = Limits::default();
        let mut lines = TABLE.trim().lines().map(str::split_whitespace);
        let readings: Vec<&str> = lines.next().expect("a head").skip(1).collect();
        for mut row in lines {
            let name = row.next().expect("a connection");
            for (reading, cell) in readings.iter().zip(row) {
                let (without, with) = cell.split_once('/').expect("two states");
                for (expected, has_calls) in [(without, false), (with, true)] {
                    let mut connection = connection(name, reading, has_calls);
                    connection.wait_state = connection.current_wait_state(&limits);
                    let found = format!("{:?}", connection.wait_state).to_lowercase();
                    let context = format!("{name} {reading} {has_calls}");
                    if expected == "-" {
                        continue;
                    }
                    assert!(found.starts_with(expected), "{context}: {found}");
                    assert!(connection.is_consistent(), "{context}");
                    connection.search = Some(Box::default());
                    assert_eq!(connection.is_consistent(), *reading == "paus", "{context}");
                }
            }
        }
    }
}
