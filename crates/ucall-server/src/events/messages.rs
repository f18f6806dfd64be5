//! Sends the messages that the server starts.
//!
//! A turn appends its messages to the outputs of their connections, and sends these at its end.
//! While a send of a connection is in flight, messages wait in its
//! [`ItemQueues`](crate::item_queues::ItemQueues), where each subscription is a source of its own,
//! and so are the messages to the connection alone. A message that waits is reserved once for all
//! of its receivers.

use std::mem;

use bytes::Bytes;
use ucall_engine::{Engine, Id};
use ucall_proto::DRAIN;

use super::ConnectionDriver;
use super::active_connection::ActiveConnection;
use crate::handler::Handler;
use crate::item_queues::Overflowed;
use crate::overflow::Overflow;
use crate::publisher::Push;
use crate::server_message::ServerMessage;
use crate::topics::Subscription;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Sends messages that have been queued for the connections of this worker.
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
                Push::Notify(connection, message) => {
                    let overflow = Overflow::DropOldest;
                    let receiver = Subscription { connection, number: 0, overflow };
                    self.write_message(receiver, &message, &mut None);
                }
                Push::Publish(message) => self.publish(&message),
                Push::Update(connection) => self.update_subscriptions(connection),
            }
        }
        self.pushes = pushes;
    }

    fn publish(&mut self, message: &ServerMessage) {
        let Some(topic) = message.topic() else { return };
        if self.publisher.has_listeners() {
            self.context.dispatcher.handler.published(message);
        }
        let mut subscribers = mem::take(&mut self.subscribers);
        self.publisher.subscribers(topic, &mut subscribers);
        let mut waiting = None;
        for subscription in subscribers.drain(..) {
            self.write_message(subscription, message, &mut waiting);
        }
        self.subscribers = subscribers;
    }

    /// Sends `$/drain` to the clients over raw TCP and WebSocket. Over HTTP replies announce it.
    #[cold]
    pub(crate) fn announce_drain(&mut self) {
        let message = ServerMessage::new("", DRAIN, None);
        for id in self.connections.ids() {
            if let Some(mut active) = self.find(id)
                && let Some(framing) = active.entry.proto.message_framing()
            {
                active.write_framed(message.framed(framing));
            }
        }
    }

    /// Sends a message, or has it wait as `waiting`, which all receivers share.
    fn write_message(
        &mut self,
        receiver: Subscription,
        message: &ServerMessage,
        waiting: &mut Option<ServerMessage>,
    ) {
        let Subscription { connection, number, overflow } = receiver;
        let Some(mut active) = self.find(connection) else { return };
        let Some(framing) = active.entry.proto.message_framing() else { return };
        if !active.entry.outgoing.is_sending() {
            return active.write_framed(message.framed(framing));
        }
        let ActiveConnection { entry, context, .. } = active;
        let waiting = waiting.get_or_insert_with(|| message.reserved(context.budget()));
        let (framed, limits) = (waiting.framed(framing), &context.config.limits);
        let queues = entry.items.get_or_insert_default();
        match queues.push_message(number, overflow, framed, limits) {
            Ok(dropped) => {
                self.send_queue.request_poll();
                self.count_dropped(dropped);
            }
            Err(Overflowed) => self.close(connection),
        }
    }

    #[inline]
    fn count_dropped(&self, count: u64) {
        if count > 0 {
            self.publisher.count_dropped(count);
        }
    }

    /// Applies a change of the subscriptions of a connection, which may have closed before.
    fn update_subscriptions(&mut self, connection: Id) {
        let awaits_messages = self.publisher.has_subscriptions(connection);
        match self.connections.find(connection) {
            Some(entry) => entry.proto.set_awaits_messages(awaits_messages),
            None => self.detach(connection),
        }
    }

    /// Ends the subscriptions and the session of a closed connection.
    #[inline]
    pub(super) fn detach(&mut self, connection: Id) {
        if self.publisher.remove(connection) {
            self.context.dispatcher.handler.connection_closed(connection);
        }
    }
}

impl<E: Engine, H: Handler> ActiveConnection<'_, E, H> {
    /// Appends a framed message to the output of the connection.
    pub(super) fn write_framed(&mut self, framed: Bytes) {
        let before = self.entry.outgoing.queued().len();
        let is_long = self.send_queue.enqueue_message(self.entry, framed);
        self.entry.outgoing.add_item_bytes(self.entry.outgoing.queued().len() - before);
        if is_long {
            self.send_queue.send_queued(self.engine, self.entry, self.context.now);
        }
    }
}
