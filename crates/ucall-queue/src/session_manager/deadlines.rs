//! Deadlines: of handshakes, silent links and absent peers.
//!
//! | without a link for `expire` | then |
//! |---|---|
//! | a session of a server or of a side that closes | ends; a peer that returns begins another |
//! | a session of a client | fails its messages, and another takes its place |
//! | the next one, while a session ends with its server | waits until that has ended |
//! | the session that took its place | keeps its messages until the server is back |
//!
//! So a program learns of each outage once, and a put message that has not failed still arrives.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::closing::not_acknowledged;
use super::{LinkKey, SessionManager};
use crate::event_queue::Event;
use crate::failure::Failure;
use crate::frame::{Header, Kind};
use crate::link::Role;
use crate::session::Ending;

/// A link that is silent for this many times `keepalive` is closed.
const SILENT_KEEPALIVES: u32 = 3;

impl SessionManager {
    /// When [`SessionManager::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_idle = self.links.is_empty() && self.sessions.iter().all(Option::is_none);
        (!is_idle || !self.pool.is_empty()).then_some(self.sweep_at)
    }

    /// Whether [`SessionManager::handle_timeout`] is due.
    pub fn timeout_is_due(&self, now: Instant) -> bool {
        now >= self.sweep_at
    }

    /// Records that a link is alive whose bytes are not handed in yet.
    pub fn note_received(&mut self, key: LinkKey, now: Instant) {
        if let Some(link) = self.links.get_mut(&key) {
            link.received_at = now;
        }
    }

    /// Handles all deadlines, if a sweep is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.timeout_is_due(now) {
            return;
        }
        let (keepalive, expire) = (self.options.keepalive, self.options.expire);
        let nearest = keepalive.min(expire).min(self.options.handshake);
        self.sweep_at = now + (nearest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        self.pool.release_idle();
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.sweep_link(key, now);
        }
        for index in 0..self.sessions.len() {
            let Some(Some(session)) = self.sessions.get(index) else { continue };
            if session.link.is_none()
                && !session.awaits_server
                && self.succeeded.is_none_or(|ending| ending == index as u32)
                && now >= session.disconnected_at + expire
            {
                self.expire_session(index as u32, now);
            }
        }
    }

    /// Fails all messages for a peer that was gone for too long. A client begins another session,
    /// unless it is closing or its server was.
    fn expire_session(&mut self, index: u32, now: Instant) {
        let Some(Some(session)) = self.sessions.get(index as usize) else { return };
        let (peer, is_open) = (session.peer, session.ending == Ending::Open);
        let failure = self.last_dial_error.clone().map_or(Failure::Expired, Failure::Unreachable);
        if session.start_reported || session.has_unsent(&self.outbox) {
            let name = peer.map_or_else(|| "the server".to_owned(), |peer| format!("peer {peer}"));
            let lost = match session.count_unacknowledged(&self.outbox) {
                0 => "its session has ended".to_owned(),
                count => not_acknowledged(count),
            };
            let line = || format!("{name} was gone for longer than expire_s: {lost}");
            self.push_event(Event::Expired(peer, failure.to_string()), now);
            self.log_queue.warn(line, now);
        }
        match self.is_server || self.is_closing || !is_open {
            true => self.remove_session(index, failure, now),
            false => self.renew_session(index, &failure, now),
        }
    }

    /// Has a new session take the place of a client's, whose messages fail. Messages that are put
    /// from now on wait for the server.
    fn renew_session(&mut self, before: u32, failure: &Failure, now: Instant) {
        let position = self.sessions.get_mut(before as usize);
        let Some(mut old) = position.and_then(Option::take) else { return };
        let index = self.open_session(old.peer, Some(before), now);
        if index != before {
            self.outbox.remove(before);
        }
        if let Some(session) = self.session(index) {
            session.awaits_server = true;
        }
        // A message that another thread put before this session was opened fails as well.
        old.close(failure);
        self.has_progress = true;
        if let Some(peer) = old.peer.filter(|_| old.start_reported) {
            self.push_event(Event::Ended(peer), now);
        }
        // Their handshakes are those of the old session.
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.close_link(key, false, now);
        }
    }

    fn sweep_link(&mut self, key: LinkKey, now: Instant) {
        let keepalive = self.options.keepalive;
        let Some(link) = self.links.get_mut(&key) else { return };
        let is_late = !link.is_open && now >= link.opened + self.options.handshake;
        let is_dialed = link.role == Role::Dialed;
        if is_late || now >= link.received_at + keepalive * SILENT_KEEPALIVES {
            if is_late && is_dialed {
                self.set_dial_error("there was no answer within handshake_s", now);
            }
            self.set_close_reason(key, "the peer was silent for three times keepalive_s");
            self.close_link(key, false, now);
        } else if link.is_open && now >= link.sent_at + keepalive {
            // A peer that sends a long message is not asked for a pong.
            let is_silent = now >= link.received_at + keepalive;
            let kind = if is_silent { Kind::Ping } else { Kind::Pong };
            link.control.extend(Header::control(kind, 0, 0).write());
            // The next is due after another `keepalive`.
            link.sent_at = now;
            self.mark_ready(key);
        }
    }
}
