//! What carries the links of a session manager.
//!
//! A communicator has one transport, chosen when it starts: sockets of its own
//! (`socket_links.rs`), a connection to an MQTT broker (`mqtt_links.rs`) or the program
//! (`external_links.rs`).

use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Completion, Engine};

use super::external_link::ExternalLink;
use super::handle::LinkEvent;
use super::sockets::Sockets;
use crate::session_manager::{LinkKey, SessionManager};

/// What a transport works on.
pub(super) struct Context<E> {
    pub(super) manager: SessionManager,
    pub(super) sockets: Sockets<E>,
    /// The time of this turn.
    pub(super) now: Instant,
}

/// Carries links. A method without a body of its own is for what the transport does not have.
pub(super) trait Transport<E: Engine> {
    /// Sends the output of a link, which may have some.
    fn flush_link(&mut self, context: &mut Context<E>, key: LinkKey);

    /// Closes a link that the manager has forgotten; with `after_output`, after it is sent.
    fn close_link(&mut self, context: &mut Context<E>, key: LinkKey, after_output: bool);

    /// Sends the output of all links that has no call of its own.
    fn flush(&mut self, _context: &mut Context<E>) {}

    /// Begins a link at this time.
    fn dial_at(&mut self, _at: Instant) {}

    /// Handles a completion of the engine.
    fn handle_completion(&mut self, _context: &mut Context<E>, _completion: Completion) {}

    /// The program reports an event of a link that it carries.
    fn handle_link_event(
        &mut self,
        _context: &mut Context<E>,
        _link: &Arc<ExternalLink>,
        _event: LinkEvent,
    ) {
    }

    /// When [`Transport::handle_timeout`] is due.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Handles all deadlines that have passed.
    fn handle_timeout(&mut self, _context: &mut Context<E>) {}

    /// Gives up output that is not sent.
    fn abort(&mut self) {}

    /// Ends what the links share, after the last of them; `false` while that has output.
    fn drain(&mut self, _context: &mut Context<E>) -> bool {
        true
    }

    /// Dials and listens no more. A wait that this takes adds to `completions`.
    fn stop(&mut self, _context: &mut Context<E>, _completions: &mut Vec<Completion>) {}
}
