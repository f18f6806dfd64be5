//! How sessions end in order.
//!
//! Each side sends what it has, and then its end, which is numbered and acknowledged as messages
//! are. Whatever is said last may be lost with its link, so one side has to wait for an answer, and
//! that is the client, because it can ask again:
//!
//! | | the server | the client |
//! |---|---|---|
//! | knows that both ends have come | waits: the client may not know yet | says `Finish` |
//! | hears `Finish` | answers it, and forgets the session | forgets the session |
//! | loses the link before | waits, until `expire` | dials again, and says that it has finished |
//! | is asked by who has finished for a session that there is not | answers that it is closed | |
//! | hears that | | forgets the session |
//!
//! Messages that are acknowledged explicitly outlive an end of the side that got them. Where some
//! are left, either side answers the end with `Finish` and closes the link, and keeps the session
//! as it does for a peer that is gone; the one that has ended forgets the session. If it does not
//! hear that, it connects again, or is connected to, and gets the same answer.
//!
//! So a server that forgets a session knows that its client knows all that became of what it put.
//! Where nobody listens any more, a client that waits for nothing but this goes without.
#![forbid(unsafe_code)]

use std::time::Instant;

use super::{Action, SessionManager};
use crate::event_queue::Event;
use crate::failure::Failure;
use crate::frame::{Header, Hello, Kind, ProtocolError};
use crate::link_key::LinkKey;
use crate::session::Ending;

impl SessionManager {
    /// Sends what a session has, then its end.
    pub(super) fn flush_session(&mut self, index: u32, now: Instant) {
        let is_closing = self.is_closing;
        let outbox = self.outbox.clone();
        let Some(session) = self.session(index) else { return };
        if session.ending == Ending::Open {
            session.ending = Ending::Flushing;
            outbox.end(index);
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

    /// Answers the end of the other side, if that has come: with what is left and our own end; or,
    /// where it has left messages that are acknowledged explicitly, by keeping them for another
    /// life of it.
    pub(super) fn answer_end(&mut self, index: u32, now: Instant) {
        let (outbox, window) = (self.outbox.clone(), self.window());
        let Some(session) = self.session(index).filter(|it| it.peer_has_ended()) else { return };
        if !session.keeps_for_another_life(&outbox) {
            self.flush_session(index, now);
            return self.send_finish_if_done(index);
        }
        let Some(key) = session.link else { return };
        let last = session.take_acknowledgement(window);
        let Some(link) = self.links.get_mut(&key) else { return };
        // The other side has to know before that its end has come.
        if let Some(progress) = last {
            progress.write(&mut link.control);
        }
        link.control.extend(Header::control(Kind::Finish, 0, 0).write());
        link.is_closing = true;
        self.mark_ready(key);
    }

    /// Has a client say that it knows all, once on each link.
    pub(super) fn send_finish_if_done(&mut self, index: u32) {
        let (is_server, window) = (self.is_server, self.window());
        let Some(session) = self.session(index).filter(|it| !is_server && it.is_closed()) else {
            return;
        };
        let Some(key) = session.link else { return };
        let last = session.take_acknowledgement(window);
        let Some(link) = self.links.get_mut(&key) else { return };
        // The server has to know before that its end has come.
        if let Some(progress) = last {
            progress.write(&mut link.control);
        }
        if !std::mem::replace(&mut link.has_finished, true) {
            link.control.extend(Header::control(Kind::Finish, 0, 0).write());
        }
        self.mark_ready(key);
    }

    /// The other side knows all, and so does this one.
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

    /// Whether a client that has finished asks for a session that there is not any more.
    pub(super) fn is_finished_session(&self, hello: &Hello) -> bool {
        let index = self.by_peer.get(&hello.identity);
        let session = index.and_then(|&index| self.sessions.get(index as usize)?.as_ref());
        let is_known = session.is_some_and(|session| {
            session.peer_incarnation.constant_time_eq(hello.incarnation)
                && session.incarnation.constant_time_eq(hello.known_incarnation)
        });
        hello.has_finished && !is_known
    }

    /// Whether nothing of ours is to be told to anybody but that it was the last.
    pub(super) fn is_flushed(&mut self, index: u32) -> bool {
        let (is_closing, outbox) = (self.is_closing, self.outbox.clone());
        self.session(index).is_some_and(|session| {
            (is_closing || session.peer_has_ended()) && !session.has_unsent(&outbox)
        })
    }

    /// Why nothing more comes when all is in order.
    pub(super) fn closing_failure(&self) -> Failure {
        if self.is_closing { Failure::Closed } else { Failure::PeerClosed }
    }

    pub(super) fn end_session(&mut self, index: u32, failure: Failure, now: Instant) {
        let position = self.sessions.get_mut(index as usize);
        let Some(mut session) = position.and_then(Option::take) else { return };
        // What is due to be acknowledged still goes out.
        if let Some(key) = session.link {
            let window = self.window();
            let last = session.take_acknowledgement(window);
            if let Some(link) = self.links.get_mut(&key) {
                if let Some(progress) = last {
                    progress.write(&mut link.control);
                }
                link.session = None;
                link.is_closing = true;
            }
            self.mark_ready(key);
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
            for key in self.links.keys().copied().collect::<Vec<_>>() {
                if Some(key) != session.link {
                    self.close_link(key, false, now);
                }
            }
            self.outbox.close(failure.clone());
            self.close_inbox(failure);
        }
        self.check_closed();
    }

    /// After a close, once no session is left, no message will come, and nobody has a word to say
    /// to those who have not told who they are.
    pub(super) fn check_closed(&mut self) {
        if self.is_closing && self.sessions.iter().all(Option::is_none) {
            for key in std::mem::take(&mut self.unidentified) {
                self.links.remove(&key);
                self.actions.push_back(Action::Close(key, false));
            }
            self.close_inbox(Failure::Closed);
        }
    }

    /// Closes the inbox after the messages that were received before.
    fn close_inbox(&mut self, failure: Failure) {
        self.inbox.push(&mut self.arrived);
        self.inbox.close(failure);
        self.has_progress = true;
    }
}
