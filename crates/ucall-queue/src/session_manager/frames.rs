//! Handles the frames of a link: messages, acknowledgements and handshakes.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;

use super::{CONNECTED_AGAIN, LinkKey, Role, SessionManager};
use crate::accepted_names::AcceptedNames;
use crate::decoder::Frame;
use crate::event_queue::Event;
use crate::failure::Failure;
use crate::frame::{self, Header, Hello, Kind, Progress, ProtocolError};
use crate::identity::{Identity, Incarnation};
use crate::message::{self, Body, Incoming};
use crate::session::{Ending, Session};
use crate::shared::SharedMemory;

/// Refuses a new incarnation for now, because earlier messages were not taken.
const INBOX_FULL: &str = "busy: too much waits to be taken";
/// Refuses a new session while the server closes, if it may be started again.
const CLOSING: &str = "busy: the server is closing";
/// The same, if it will not.
const CLOSING_FOR_GOOD: &str = "closed: the server is closing";
/// Answers a client that has finished, which is no refusal to it.
const SESSION_OVER: &str = "closed: the session is over";
/// Refuses a link whose peer may not have the id that it claims.
const ID_IN_USE: &str = "busy: another communicator has this id just now";
/// The same, once the peer with this id has answered a ping: another attempt would fail, too.
const DUPLICATE_ID: &str = "another communicator has this id and is connected; give each an id of \
    its own, or close that one first";
const CERTIFICATE_MISMATCH: &str = "the id is that of a peer with another certificate";

impl SessionManager {
    pub(super) fn handle_frame(
        &mut self,
        key: LinkKey,
        frame: Frame,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        match frame {
            Frame::Data(header, body) => self.handle_message(key, &header, body),
            Frame::Control(header, body) => match header.kind {
                Kind::Hello => self.handle_hello(key, &Hello::read(&header, &body)?, now),
                Kind::Welcome => self.handle_welcome(key, &Hello::read(&header, &body)?, now),
                Kind::Refuse => self.handle_refuse(key, &body, now),
                Kind::Acknowledge => self.handle_acknowledge(key, &Progress::read(&header, &body)?),
                Kind::Ping => {
                    if let Some(link) = self.links.get_mut(&key) {
                        link.pong_due = Some(header.sequence);
                    }
                    self.mark_ready(key);
                    Ok(())
                }
                Kind::Pong => {
                    if let Some(link) = self.links.get_mut(&key) {
                        link.liveness.handle_pong(header.sequence);
                    }
                    Ok(())
                }
                Kind::Shared => self.handle_shared(key, header, &body),
                Kind::Release => {
                    self.shared_memory_of(key)?.release(header.sequence)?;
                    // A message may wait for the slot.
                    self.mark_ready(key);
                    Ok(())
                }
                Kind::Blocked => {
                    self.session_of(key)?.1.set_peer_blocked();
                    self.mark_ready(key);
                    Ok(())
                }
                Kind::Finish => self.handle_finish(key, now),
                Kind::Accepts => self.handle_accepts(key, &AcceptedNames::read(&header, &body)?),
                Kind::Rejected => self.handle_rejected(key, header.sequence, &body, now),
                Kind::Cancelled | Kind::Gap | Kind::End | Kind::Data => {
                    self.handle_skipped(key, &header, &body, now)
                }
            },
        }
    }

    pub(super) fn session_of(
        &mut self,
        key: LinkKey,
    ) -> Result<(u32, &mut Session), ProtocolError> {
        let index = self.links.get(&key).and_then(|link| link.session);
        let index = index.ok_or(ProtocolError::Unexpected)?;
        let session = self.session(index).ok_or(ProtocolError::Unexpected)?;
        Ok((index, session))
    }

    fn handle_message(
        &mut self,
        key: LinkKey,
        header: &Header,
        body: Body,
    ) -> Result<(), ProtocolError> {
        let (_, session) = self.session_of(key)?;
        if session.accept(header, 0)? {
            let weight = message::weight(header.length as usize, header.segments.into());
            let credit = session.count_message(header, weight);
            let peer = session.peer.ok_or(ProtocolError::Unexpected)?;
            self.arrived.push_back(Incoming {
                peer,
                credit,
                sequence: header.sequence,
                weight,
                encoding: header.encoding,
                redelivered: header.repeated,
                body,
            });
        }
        self.mark_ready(key);
        Ok(())
    }

    pub(super) fn shared_memory_of(
        &mut self,
        key: LinkKey,
    ) -> Result<&mut SharedMemory, ProtocolError> {
        let link = self.links.get_mut(&key).ok_or(ProtocolError::Unexpected)?;
        link.shared.as_mut().ok_or(ProtocolError::Unexpected)
    }

    /// Handles a message in shared memory.
    fn handle_shared(
        &mut self,
        key: LinkKey,
        header: Header,
        record: &Bytes,
    ) -> Result<(), ProtocolError> {
        let limit = self.options.message_bytes_max;
        let (length, body) = self.shared_memory_of(key)?.take(record, limit)?;
        self.handle_message(key, &Header { kind: Kind::Data, length, ..header }, body)
    }

    /// Handles a number without a message: cancelled, dropped, or the end.
    fn handle_skipped(
        &mut self,
        key: LinkKey,
        header: &Header,
        body: &Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (index, session) = self.session_of(key)?;
        session.accept(header, frame::read_u64(body, 0))?;
        self.mark_ready(key);
        if header.kind == Kind::End {
            self.answer_end(index, now);
        }
        Ok(())
    }

    fn handle_acknowledge(
        &mut self,
        key: LinkKey,
        progress: &Progress,
    ) -> Result<(), ProtocolError> {
        let outbox = self.outbox.clone();
        let (index, session) = self.session_of(key)?;
        self.has_progress |= session.progress(progress, &outbox)?;
        // The window may have room for the next batch.
        self.mark_ready(key);
        self.send_finish_if_done(index);
        Ok(())
    }

    /// Handles the names that the peer accepts.
    fn handle_accepts(
        &mut self,
        key: LinkKey,
        accepted: &AcceptedNames,
    ) -> Result<(), ProtocolError> {
        let outbox = self.outbox.clone();
        let (index, session) = self.session_of(key)?;
        session.awaits_names = false;
        outbox.set_accepted(index, Arc::new(accepted.clone()));
        // Messages may have failed, and others waited.
        self.has_progress = true;
        self.mark_ready(key);
        Ok(())
    }

    /// Handles the report that the peer's program could not read a message of ours.
    fn handle_rejected(
        &mut self,
        key: LinkKey,
        sequence: u64,
        reason: &Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let reason = frame::read_reason(reason);
        let (_, session) = self.session_of(key)?;
        let peer = session.peer.ok_or(ProtocolError::Unexpected)?;
        self.has_progress |= session.handle_rejected(sequence, &reason)?;
        self.log_queue.warn(|| format!("peer {peer} cannot read a message: {reason}"), now);
        Ok(())
    }

    /// Handles the handshake of a peer that made the link.
    fn handle_hello(
        &mut self,
        key: LinkKey,
        hello: &Hello,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let role = self.links.get(&key).map(|link| link.role);
        if !self.is_server || role != Some(Role::Accepted) {
            return Err(ProtocolError::Unexpected);
        }
        match self.choose_session(key, hello, now) {
            Ok(index) => self.join(key, index, hello, Some(Kind::Welcome), now),
            Err(reason) => {
                if reason != SESSION_OVER && reason != CLOSING {
                    let line = || format!("peer {} is refused: {reason}", hello.identity);
                    self.log_queue.warn(line, now);
                    let event = Event::Refused(Some(hello.identity), reason.to_owned());
                    self.push_event(event, now);
                }
                self.refuse(key, reason);
                Ok(())
            }
        }
    }

    /// The session to resume or a new one, or why the link is refused.
    fn choose_session(
        &mut self,
        key: LinkKey,
        hello: &Hello,
        now: Instant,
    ) -> Result<u32, &'static str> {
        if hello.identity == self.identity {
            return Err("the id is the server's own");
        }
        if self.is_finished_session(hello) {
            return Err(SESSION_OVER);
        }
        let is_full = self.inbox_is_full();
        if let Some(&index) = self.by_peer.get(&hello.identity) {
            let certificate_name =
                self.links.get(&key).and_then(|link| link.certificate_name.clone());
            let session = self.session(index).ok_or("busy: try again")?;
            if session.certificate_name != certificate_name {
                return Err(CERTIFICATE_MISMATCH);
            }
            let is_same = session.peer_incarnation.constant_time_eq(hello.incarnation);
            if !is_same && is_full {
                return Err(INBOX_FULL);
            }
            match session.link {
                // The peer has lost a link that is open here.
                Some(old) if is_same => {
                    self.set_close_reason(old, CONNECTED_AGAIN);
                    self.close_link(old, false, now);
                }
                Some(other) => return Err(self.reject_duplicate(other, hello.incarnation)),
                None => {}
            }
            // Another incarnation of a peer that had ended begins a new session, unless the server
            // is closing: then it gets the rest of the old one, and the end.
            let is_stale = self.session(index).is_some_and(|it| it.ending != Ending::Open);
            if is_same || !is_stale || self.is_closing {
                return Ok(index);
            }
            self.end_session(index, Failure::PeerClosed, now);
        }
        if self.is_closing {
            return Err(if self.is_final { CLOSING_FOR_GOOD } else { CLOSING });
        }
        if is_full {
            return Err(INBOX_FULL);
        }
        if self.by_peer.len() >= self.options.peers_max {
            return Err("busy: too many peers");
        }
        let index = self.open_session(Some(hello.identity), None, now);
        let certificate_name = self.links.get(&key).and_then(|link| link.certificate_name.clone());
        if let Some(session) = self.session(index) {
            session.certificate_name = certificate_name;
        }
        Ok(index)
    }

    /// Why another communicator with the id of this link's peer is refused. The peer may be gone
    /// without notice, so it gets a ping, and the other communicator retries meanwhile. If the peer
    /// answers, two communicators have one id. A peer that is about to end is waited for.
    fn reject_duplicate(&mut self, other: LinkKey, new_incarnation: Incarnation) -> &'static str {
        let session = self.session_of(other);
        let is_open =
            session.is_ok_and(|(_, it)| it.ending == Ending::Open && !it.peer_has_ended());
        let Some(link) = self.links.get_mut(&other) else { return ID_IN_USE };
        if link.liveness.is_answered_since(new_incarnation) {
            return if is_open { DUPLICATE_ID } else { ID_IN_USE };
        }
        if let Some(number) = link.liveness.ping(new_incarnation) {
            link.control.extend(Header::control(Kind::Ping, number, 0).write());
            self.mark_ready(other);
        }
        ID_IN_USE
    }

    /// Handles the handshake of the peer of a link that we made.
    fn handle_welcome(
        &mut self,
        key: LinkKey,
        hello: &Hello,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let role = self.links.get(&key).map(|link| link.role);
        if role != Some(Role::Dialed) || hello.identity == self.identity {
            return Err(ProtocolError::Unexpected);
        }
        let is_full = self.inbox_is_full();
        let (index, session) = self.session_of(key)?;
        if is_full && session.peer_incarnation != hello.incarnation {
            // Closes the link. The client retries later.
            return Err(ProtocolError::WindowExceeded);
        }
        if session.peer != Some(hello.identity) {
            session.peer = Some(hello.identity);
            session.delivery.set_peer(hello.identity);
            self.outbox.set_peer(index, hello.identity);
            self.by_peer.clear();
            self.by_peer.insert(hello.identity, index);
        }
        self.backoff.reset();
        self.last_dial_error = None;
        self.join(key, index, hello, None, now)
    }

    /// Joins a link and a session, and sends the `answer` if there is one.
    fn join(
        &mut self,
        key: LinkKey,
        index: u32,
        hello: &Hello,
        answer: Option<Kind>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (identity, limit, window) =
            (self.identity, self.options.message_bytes_max, self.window());
        let outbox = self.outbox.clone();
        let (Some(Some(session)), Some(link)) =
            (self.sessions.get_mut(index as usize), self.links.get_mut(&key))
        else {
            return Err(ProtocolError::Unexpected);
        };
        session.resume(hello, &outbox)?;
        if let Some(kind) = answer {
            let mut hello = session.hello(identity, limit, window);
            hello.sharing = link.sharing();
            hello.write(kind, &mut link.control);
        }
        if hello.takes_names {
            self.announced.write(&mut link.control);
        }
        if let Some(shared) = &mut link.shared {
            shared.set_peer_sharing(hello.sharing);
        }
        link.session = Some(index);
        link.is_open = true;
        link.decoder.handshake_done();
        session.link = Some(key);
        session.awaits_server = false;
        let was_started = std::mem::replace(&mut session.start_reported, true);
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.unidentified.remove(&key);
        self.report_connected(hello.identity, was_started, now);
        self.has_progress = true;
        self.mark_ready(key);
        self.answer_end(index, now);
        Ok(())
    }

    fn report_connected(&mut self, peer: Identity, is_resumed: bool, now: Instant) {
        let line = || match is_resumed {
            true => format!("the connection with peer {peer} is resumed"),
            false => format!("the session with peer {peer} has started"),
        };
        self.log_queue.info(line, now);
        let event = if is_resumed { Event::Resumed(peer) } else { Event::Started(peer) };
        self.push_event(event, now);
    }

    /// Sends a refusal, and closes the link after it.
    pub fn refuse(&mut self, key: LinkKey, reason: &str) {
        if let Some(link) = self.links.get_mut(&key) {
            frame::write_reason(Kind::Refuse, 0, reason, &mut link.control);
            link.is_closing = true;
        }
        self.mark_ready(key);
    }

    /// Handles a refusal, which is for now or final.
    fn handle_refuse(
        &mut self,
        key: LinkKey,
        reason: &Bytes,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (index, _) = self.session_of(key)?;
        let is_flushed = self.is_flushed(index);
        let outbox = self.outbox.clone();
        let keeps = self.session(index).is_some_and(|it| it.keeps_for_next_incarnation(&outbox));
        let reason = frame::read_reason(reason);
        let peer = self.session(index).and_then(|session| session.peer);
        if self.replace_dial_error(&reason) && reason != SESSION_OVER && reason != CLOSING {
            self.log_queue.warn(|| format!("the server refuses this side: {reason}"), now);
            self.push_event(Event::Refused(peer, reason.clone()), now);
        }
        self.close_link(key, false, now);
        // A server that is closing may be restarted.
        let is_for_now = reason.starts_with("busy") || keeps && reason.starts_with("closed");
        if !is_for_now {
            let failure =
                if is_flushed { self.closing_failure() } else { Failure::Refused(reason) };
            self.end_session(index, failure, now);
        }
        Ok(())
    }
}
