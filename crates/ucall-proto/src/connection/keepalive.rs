//! Pings and the lifetime of WebSockets.
//!
//! | the peer was silent for `ping_interval` | then |
//! |---|---|
//! | after fewer than `unanswered_pings_max` Pings | a Ping |
//! | after as many | code 1008 |
//! | likewise, and its Pongs are not read for want of room in an application | code 1013 |
//!
//! The peer is silent until its next byte, or until its application takes one that waits.

use super::websocket::SERVER_CLOSES;
use super::{Environment, NextAction, PlainConnection, Protocol};
use crate::rpc::Service;
use crate::websocket::{CloseCode, Opcode, write_frame};

/// The reason if an application takes nothing of what waits for it.
const NO_RECEIVER: &str = "the application receives no messages";

impl PlainConnection {
    /// The peer was silent for `ping_interval`: sends a Ping, or closes after too many. At the end
    /// of its `lifetime` the connection closes.
    #[cold]
    pub(super) fn ping_or_close<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let limits = environment.limits;
        if limits.lifetime.is_some_and(|lifetime| environment.now >= self.accepted_at + lifetime) {
            return match self.is_mounted_websocket() {
                true => self.close_websocket(CloseCode::GOING_AWAY, SERVER_CLOSES, environment),
                false => self.go_away(environment.out),
            };
        }
        let Protocol::WebSocket(socket) = &mut self.protocol else { return };
        if socket.is_silent(limits) {
            let reads_pongs = self.paused_action() == NextAction::Receive;
            return match self.reading.is_paused() && !reads_pongs {
                true => self.close_websocket(CloseCode::TRY_AGAIN_LATER, NO_RECEIVER, environment),
                false => self.close_silent(environment),
            };
        }
        socket.pings += 1;
        if !socket.is_silent(limits) {
            write_frame(environment.out, Opcode::Ping, b"");
        }
    }

    fn close_silent<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let pings = environment.limits.unanswered_pings_max;
        let reason = format!("expected a reply to {pings} pings (max_unanswered_pings)");
        self.close_websocket(CloseCode::POLICY_VIOLATION, &reason, environment);
    }
}
