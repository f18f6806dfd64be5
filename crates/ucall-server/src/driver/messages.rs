//! Sends the messages that the server starts.
//!
//! A turn appends its messages to the outputs of their connections, and sends these at its end.
//! While a send of a connection is under way, messages wait as [`super::items`] says for the items
//! of streams; each subscription is a source of its own, and so are the messages to the connection
//! alone.

use std::mem;

use bytes::Bytes;
use ucall_engine::{Engine, Id};
use ucall_proto::{DRAIN, MessageFraming};

use super::ConnectionDriver;
use crate::handler::Handler;
use crate::item_queues::Source;
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
                    self.write_message(Subscription { connection, number: 0, overflow }, &message);
                }
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
            self.write_message(subscription, message);
        }
        self.subscribers = subscribers;
    }

    /// Tells the clients over raw TCP and WebSocket that the server drains. Over HTTP replies do.
    #[cold]
    pub(crate) fn announce_drain(&mut self) {
        let message = ServerMessage::new("", DRAIN, None);
        for id in self.connections.ids() {
            let framing = self.connections.find(id).and_then(|entry| entry.proto.message_framing());
            match framing {
                Some(MessageFraming::Frame) => self.write_framed(id, message.frame()),
                Some(MessageFraming::Line) => self.write_framed(id, message.line()),
                None => {}
            }
        }
    }

    fn write_message(&mut self, subscription: Subscription, message: &ServerMessage) {
        let Subscription { connection, number, overflow } = subscription;
        let Some(entry) = self.connections.find(connection) else { return };
        let framed = match entry.proto.message_framing() {
            Some(MessageFraming::Frame) => message.frame(),
            Some(MessageFraming::Line) => message.line(),
            None => return,
        };
        if entry.outgoing.is_sending() {
            let bytes_max = self.context.config().limits.stream_bytes_max;
            let is_full = entry.outgoing.queued_item_bytes() >= bytes_max;
            match overflow {
                Overflow::Close if is_full => return self.close(connection),
                Overflow::Close => {}
                Overflow::DropOldest => {
                    let (source, budget) = (Source::Messages(number), self.context.budget());
                    let queues = entry.items.get_or_insert_default();
                    let dropped = queues.push(source, framed, bytes_max, budget);
                    self.send_queue.request_poll();
                    return self.count_dropped(dropped);
                }
                _ if is_full => return self.count_dropped(1),
                _ => {}
            }
        }
        self.write_framed(connection, framed);
    }

    /// Appends a framed message to the output of its connection.
    pub(super) fn write_framed(&mut self, id: Id, framed: Bytes) {
        let Some(entry) = self.connections.find(id) else { return };
        let before = entry.outgoing.queued().len();
        let is_long = if entry.proto.is_tls() {
            entry.proto.write_messages(&framed, self.send_queue.output());
            self.send_queue.hold(entry)
        } else {
            self.send_queue.hold_part(entry, framed)
        };
        entry.outgoing.add_item_bytes(entry.outgoing.queued().len() - before);
        if is_long {
            self.send_queue.send_held(&mut self.engine, entry, self.context.now());
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
            self.context.handler().connection_closed(connection);
        }
    }
}
