//! Sends the messages that the server starts.

use std::mem;

use ucall_engine::{Engine, Id};

use super::ConnectionDriver;
use crate::handler::Handler;
use crate::publisher::Push;
use crate::server_message::ServerMessage;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Sends the messages that have been queued for the connections of this worker.
    #[inline]
    pub(crate) fn send_messages(&mut self) {
        if self.publisher.has_pushes() {
            self.handle_pushes();
        }
    }

    #[inline(never)]
    fn handle_pushes(&mut self) {
        let mut pushes = mem::take(&mut self.pushes);
        self.publisher.take(&mut pushes);
        for push in pushes.drain(..) {
            match push {
                Push::Notify(connection, message) => self.send_message(connection, &message),
                Push::Publish(message) => self.publish(&message),
                Push::Update(connection) => self.update_subscriptions(connection),
            }
        }
        self.pushes = pushes;
    }

    fn publish(&mut self, message: &ServerMessage) {
        let Some(topic) = message.topic() else { return };
        let mut subscribers = mem::take(&mut self.subscribers);
        self.publisher.subscribers(topic, &mut subscribers);
        for subscription in subscribers.drain(..) {
            self.send_message(subscription.connection, message);
        }
        self.subscribers = subscribers;
    }

    fn send_message(&mut self, connection: Id, message: &ServerMessage) {
        let Some(entry) = self.connections.find(connection) else { return };
        if entry.outgoing.bytes() > 65_536 {
            return self.publisher.count_dropped(1);
        }
        if entry.proto.push(message.json(), self.send_queue.output()) {
            self.flush_and_apply(connection);
        }
    }

    /// Applies a change of the subscriptions of a connection, which may have closed before.
    fn update_subscriptions(&mut self, connection: Id) {
        if self.connections.find(connection).is_none() {
            self.detach(connection);
        }
    }

    /// Ends the subscriptions and the session of a closed connection.
    #[inline]
    pub(super) fn detach(&mut self, connection: Id) {
        if self.publisher.remove(connection) {
            self.context.handler().connection_closed(connection);
        }
    }
}
