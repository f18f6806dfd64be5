//! Passes the events of sockets that are no connections to native procedures.

use ucall_engine::{Arrival, Engine, Id};

use super::ConnectionDriver;
use crate::handler::Handler;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Receives bytes of a socket that is no connection.
    #[inline(never)]
    pub(super) fn receive_native(&mut self, arrival: Arrival) {
        let id = arrival.socket;
        let natives = &mut self.context.dispatcher.natives;
        if natives.owns(id) && !natives.received(id, self.engine.receive(arrival)) {
            self.engine.close(id);
        }
    }

    /// Handles the end of a send on a socket that is no connection.
    pub(super) fn native_sent(&mut self, id: Id) {
        self.context.dispatcher.natives.sent(id);
    }

    /// Handles the readiness of a socket that connects.
    pub(crate) fn native_ready(&mut self, watch: Id) {
        self.context.dispatcher.natives.ready(watch, &mut self.engine);
    }
}
