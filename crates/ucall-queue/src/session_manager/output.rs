//! Output: the links that may have some, and what they send.
#![forbid(unsafe_code)]

use std::time::Instant;

use ucall_buffer::Payload;

use super::{LinkKey, SessionManager};
use crate::frame::{self, Header, Kind};

/// An output takes no further batch at this many bytes.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// An output takes no further batch at this many parts, which is about what a system call takes.
const OUTPUT_PARTS_MAX: usize = 60;

impl SessionManager {
    /// The next link that may have output.
    pub fn poll_ready(&mut self) -> Option<LinkKey> {
        self.poll_outbox();
        self.release_slots();
        while let Some(key) = self.ready.pop_front() {
            if let Some(link) = self.links.get_mut(&key) {
                link.is_queued = false;
                return Some(key);
            }
        }
        None
    }

    /// Whether [`SessionManager::poll_ready`] has a link, apart from new messages in the outbox.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Writes the next output of a link. The link may have more once that is sent.
    pub fn poll_output(&mut self, key: LinkKey, output: &mut Payload, now: Instant) {
        // A peer whose message is acknowledged may expect that it can be taken.
        self.deliver();
        let window = self.window();
        let Some(link) = self.links.get_mut(&key) else { return };
        if !link.control.is_empty() {
            output.extend(&link.control);
            link.control.clear();
        }
        if let Some(shared) = &mut link.shared {
            shared.write_releases(output);
        }
        if let Some(number) = link.pong_due.take() {
            output.extend(&Header::control(Kind::Pong, number, 0).write());
        }
        let session = link.session.filter(|_| link.is_open && !link.is_closing);
        let session = session.and_then(|index| self.sessions.get_mut(index as usize)?.as_mut());
        let mut is_due = false;
        if let Some(session) = session {
            let progress = session.take_acknowledgement(window);
            let mut written = Vec::new();
            for (sequence, reason) in session.take_rejected() {
                frame::write_reason(Kind::Rejected, sequence, &reason, &mut written);
            }
            progress.inspect(|progress| progress.write(&mut written));
            output.extend(&written);
            let mut parts = 0;
            link.begin_output();
            while output.len() < OUTPUT_BYTES_MAX && parts < OUTPUT_PARTS_MAX {
                let Some(batch) = link.next_batch(session, &self.outbox) else { break };
                parts += batch.len();
                for part in batch {
                    output.push(part);
                }
            }
            if session.wants_room(&self.outbox) {
                output.extend(&Header::control(Kind::Blocked, 0, 0).write());
            }
            is_due = session.acknowledgement_is_due();
        }
        if !output.is_empty() {
            link.sent_at = now;
        }
        if link.is_copying() {
            self.continuing.push(key);
        }
        if link.is_closing {
            self.close_link(key, true, now);
        } else if is_due {
            self.mark_ready(key);
        }
    }

    pub(super) fn mark_ready(&mut self, key: LinkKey) {
        if let Some(link) = self.links.get_mut(&key)
            && !std::mem::replace(&mut link.is_queued, true)
        {
            self.ready.push_back(key);
        }
    }

    /// Marks a link as ready, after its last output was sent.
    pub fn handle_output_sent(&mut self, key: LinkKey) {
        self.mark_ready(key);
    }

    fn poll_outbox(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        self.outbox.take_changed(&mut changed);
        for index in changed.drain(..) {
            let session = self.sessions.get(index as usize).and_then(Option::as_ref);
            if let Some(key) = session.and_then(|session| session.link) {
                self.mark_ready(key);
            }
        }
        self.changed = changed;
    }

    /// Releases slots of shared memory without views.
    fn release_slots(&mut self) {
        for (key, slot) in self.returned.take() {
            if let Ok(shared) = self.shared_memory_of(key) {
                shared.release_later(slot);
                self.mark_ready(key);
            }
        }
    }

    /// Marks the link of a session as ready, after messages of it were taken or acknowledged.
    pub fn handle_taken(&mut self, index: u32) {
        if let Some(key) = self.session(index).and_then(|session| session.link) {
            self.mark_ready(key);
        }
    }
}
