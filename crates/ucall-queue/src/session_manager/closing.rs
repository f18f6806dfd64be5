//! The orderly end of sessions.
//!
//! Each side sends its messages and then its end, which is numbered and acknowledged as a message
//! is. The last frame may be lost with its link, so one side has to wait for an answer. That is the
//! client, because it can dial again:
//!
//! | event | the server | the client |
//! |---|---|---|
//! | both ends are received and acknowledged | waits for `Finish` | sends `Finish` |
//! | `Finish` arrives | answers it, and forgets the session | forgets the session |
//! | the link breaks before | waits, until `expire` | dials again with `has_finished` set |
//! | a finished client asks for an unknown session | answers that it is closed | |
//! | that answer arrives | | forgets the session |
//!
//! Messages that are acknowledged explicitly outlive an end of their receiver. If some are left,
//! either side answers the end with `Finish`, closes the link, and keeps the session as for a peer
//! that is gone. The side that has ended forgets the session. If it misses the answer, it gets the
//! same one on the next link.
//!
//! The end of a server is one for now, or for good. After one for now a client has the next session
//! from the moment at which the end arrives: what is put from then on waits there, and this session
//! ends beside it, before the next one gets a link. After one for good the client ends.
//!
//! So when a server forgets a session, its client knows the delivery of all its messages. If
//! nothing listens any more, a client that waits only for this answer ends without it.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::{Action, SessionManager};
use crate::event_queue::Event;
use crate::failure::Failure;
use crate::frame::{Header, Hello, Kind, ProtocolError};
use crate::identity::Identity;
use crate::link::Link;
use crate::link_key::LinkKey;
use crate::session::Ending;

impl SessionManager {
    /// Sends the queue of a session, then its end.
    pub(super) fn flush_session(&mut self, index: u32, now: Instant) {
        let (is_closing, is_final) = (self.is_closing, self.is_final);
        let outbox = self.outbox.clone();
        let Some(session) = self.session(index) else { return };
        if session.ending == Ending::Open {
            session.ending = Ending::Flushing;
            session.end_is_final = is_final;
            outbox.end(index);
        }
        if std::mem::take(&mut session.awaits_server) {
            session.disconnected_at = now;
        }
        let was_started = session.start_reported;
        let link = session.link;
        if is_closing && !was_started && !session.has_unsent(&outbox) {
            return self.end_session(index, Failure::Closed, now);
        }
        if let Some(key) = link {
            self.mark_ready(key);
        }
    }

    /// Answers the end of the peer, if it has arrived, with the rest of the queue and our own end.
    /// Messages that are acknowledged explicitly are instead kept for the peer's next incarnation.
    pub(super) fn answer_end(&mut self, index: u32, now: Instant) {
        let outbox = self.outbox.clone();
        let Some(session) = self.session(index).filter(|it| it.peer_has_ended()) else { return };
        if !session.keeps_for_next_incarnation(&outbox) {
            let is_new = session.ending == Ending::Open && !session.peer_has_ended_for_good();
            let peer = session.peer;
            if is_new && !self.is_server && !self.is_closing {
                self.succeed_session(index, peer, now);
            }
            self.flush_session(index, now);
            return self.send_finish_if_done(index);
        }
        if let Some(link) = self.acknowledge_last(index) {
            link.control.extend(Header::control(Kind::Finish, 0, 0).write());
            link.is_closing = true;
        }
    }

    /// Opens the next session of a client, while this one ends with its server.
    fn succeed_session(&mut self, index: u32, peer: Option<Identity>, now: Instant) {
        self.open_session(peer, Some(index), now);
        self.succeeded = Some(index);
        self.log_queue.info(|| "the server has closed, and may be started again".to_owned(), now);
    }

    /// The link of a session, marked as ready, after writing the acknowledgement that is due. The
    /// peer has to know that its end was received before it gets `Finish` or the link is closed.
    fn acknowledge_last(&mut self, index: u32) -> Option<&mut Link> {
        let window = self.window();
        let session = self.session(index)?;
        let (key, last) = (session.link?, session.take_acknowledgement(window));
        self.mark_ready(key);
        let link = self.links.get_mut(&key)?;
        if let Some(progress) = last {
            progress.write(&mut link.control);
        }
        Some(link)
    }

    /// Has a client that has finished send `Finish`, once on each link.
    pub(super) fn send_finish_if_done(&mut self, index: u32) {
        if self.is_server || !self.session(index).is_some_and(|it| it.is_closed()) {
            return;
        }
        if let Some(link) = self.acknowledge_last(index)
            && !std::mem::replace(&mut link.has_finished, true)
        {
            link.control.extend(Header::control(Kind::Finish, 0, 0).write());
        }
    }

    /// Handles `Finish`: both sides know that both have ended.
    pub(super) fn handle_finish(
        &mut self,
        key: LinkKey,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (index, session) = self.session_of(key)?;
        if !session.our_end_is_known() {
            return Err(ProtocolError::Unexpected);
        }
        self.end_session(index, self.closing_failure(), now);
        if self.is_server
            && let Some(link) = self.links.get_mut(&key)
        {
            link.control.extend(Header::control(Kind::Finish, 0, 0).write());
        }
        Ok(())
    }

    /// Whether a client that has finished asks for a session that does not exist any more.
    pub(super) fn is_finished_session(&self, hello: &Hello) -> bool {
        let index = self.by_peer.get(&hello.identity);
        let session = index.and_then(|&index| self.sessions.get(index as usize)?.as_ref());
        let is_known = session.is_some_and(|session| {
            session.peer_incarnation.constant_time_eq(hello.incarnation)
                && session.incarnation.constant_time_eq(hello.known_incarnation)
        });
        hello.has_finished && !is_known
    }

    /// Whether the session ends and all our messages are acknowledged.
    pub(super) fn is_flushed(&mut self, index: u32) -> bool {
        let (is_closing, outbox) = (self.is_closing, self.outbox.clone());
        self.session(index).is_some_and(|session| {
            (is_closing || session.peer_has_ended()) && !session.has_unsent(&outbox)
        })
    }

    /// The reason of an orderly end.
    pub(super) fn closing_failure(&self) -> Failure {
        if self.is_closing { Failure::Closed } else { Failure::PeerClosed }
    }

    /// Ends a session, and logs how many messages fail with it.
    pub(super) fn end_session(&mut self, index: u32, failure: Failure, now: Instant) {
        let outbox = self.outbox.clone();
        let count = self.session(index).map_or(0, |it| it.count_unacknowledged(&outbox));
        self.log_unacknowledged(count, &failure, now);
        self.remove_session(index, failure, now);
    }

    pub(super) fn log_unacknowledged(&self, count: usize, failure: &Failure, now: Instant) {
        if count > 0 {
            self.log_queue.warn(|| format!("{failure}: {}", not_acknowledged(count)), now);
        }
    }

    pub(super) fn remove_session(&mut self, index: u32, failure: Failure, now: Instant) {
        if let Some(link) = self.acknowledge_last(index) {
            link.session = None;
            link.is_closing = true;
        }
        let position = self.sessions.get_mut(index as usize);
        let Some(mut session) = position.and_then(Option::take) else { return };
        if session.link.is_some() {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
        if self.succeeded.take_if(|ending| *ending == index).is_some() {
            // The next one begins to wait now.
            self.sessions.iter_mut().flatten().for_each(|next| next.disconnected_at = now);
        }
        let is_last = self.sessions.iter().all(Option::is_none);
        if !self.is_server && is_last {
            // Before its queue is removed, so that `put` fails for this reason and no other.
            self.outbox.close(session.peer, failure.clone());
        }
        session.close(&failure);
        self.outbox.remove(index);
        if let Some(peer) = session.peer.filter(|peer| self.by_peer.get(peer) == Some(&index)) {
            self.by_peer.remove(&peer);
        }
        self.has_progress = true;
        if let Some(peer) = session.peer.filter(|_| session.start_reported) {
            self.push_event(Event::Ended(peer), now);
        }
        if !self.is_server {
            // Those that have begun to connect. Another session of this client keeps its own.
            let links = self.links.iter().filter(|(key, link)| {
                Some(**key) != session.link && (is_last || link.session == Some(index))
            });
            for key in links.map(|(key, _)| *key).collect::<Vec<_>>() {
                self.close_link(key, false, now);
            }
            if is_last {
                self.close_inbox(session.peer, failure);
            }
        }
        self.check_closed();
    }

    /// Closes the inbox and all links without a handshake, after a close, once no session is left.
    pub(super) fn check_closed(&mut self) {
        if self.is_closing && self.sessions.iter().all(Option::is_none) {
            for key in std::mem::take(&mut self.unidentified) {
                self.links.remove(&key);
                self.actions.push_back(Action::Close(key, false));
            }
            self.close_inbox(None, Failure::Closed);
        }
    }

    /// Closes the inbox after the messages that were received before.
    fn close_inbox(&mut self, peer: Option<Identity>, failure: Failure) {
        self.inbox.push(&mut self.arrived);
        self.inbox.close(peer, failure);
        self.has_progress = true;
    }
}

/// Says how many messages of ours have failed.
pub(super) fn not_acknowledged(count: usize) -> String {
    match count {
        1 => "1 message was not acknowledged".to_owned(),
        _ => format!("{count} messages were not acknowledged"),
    }
}
