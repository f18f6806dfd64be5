//! Connections to NATS brokers, which other code has made and subscribed.
//!
//! They are connections of the worker like those of its clients. Only their begin and their end
//! differ: they arrive in a message, and the drop of a guard reports their end to that code.

use ucall_engine::{Engine, Id, Peer};
use ucall_proto::Connection;

use super::ConnectionDriver;
use crate::broker_socket::BrokerSocket;
use crate::caller::Transport;
use crate::handler::Handler;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Serves the calls that come through a broker. While the worker drains it takes none.
    #[cold]
    pub(crate) fn attach_broker(&mut self, broker: BrokerSocket, is_draining: bool) {
        if is_draining {
            return;
        }
        let BrokerSocket { socket, mut received, options, guard } = broker;
        let id = match self.engine.adopt(socket) {
            Ok(id) => id,
            Err(error) => {
                let line = format!("cannot serve the calls of a broker: {error}");
                return self.context.handler().warn(&line);
            }
        };
        let now = self.context.now();
        let connection = Connection::to_broker(now, &self.context.config().limits, options);
        self.connections.insert(id, connection, now);
        self.stats.connections = self.connections.len() as u64;
        if let Some(entry) = self.connections.find(id) {
            // A caller's address is not known: that of the broker says nothing of it.
            entry.caller.peer = Some(Peer::Unknown);
            entry.caller.transport = Transport::Nats;
        }
        self.brokers.push((id, guard));
        self.step(id, |connection, environment, out| {
            connection.receive(&mut received, environment, out);
        });
        self.flush_and_apply(id);
    }

    /// Ends all subscriptions. Messages that are on their way are served.
    #[cold]
    pub(crate) fn unsubscribe_from_brokers(&mut self) {
        let ids: Vec<Id> = self.brokers.iter().map(|(id, _)| *id).collect();
        for id in ids {
            self.step(id, |connection, _, out| connection.unsubscribe(out));
            self.flush_and_apply(id);
        }
    }

    /// Reports the end of a connection, if it was one to a broker.
    #[inline]
    pub(super) fn broker_closed(&mut self, id: Id) {
        self.brokers.retain(|(broker, _)| *broker != id);
    }
}
