//! Passes the items of streams to their callers, as fast as these read.
//!
//! Items go to the output of their connection. While a send of it is in flight, they wait:
//!
//! | overflow | the next items wait in | above `stream_bytes_max` |
//! |---|---|---|
//! | pause | the output | the handler pauses the stream, until that send has ended |
//! | drop the oldest | [`ItemQueues`] | the oldest are dropped |
//! | drop the newest | the output | the new one is dropped |
//! | close | the output | the connection closes |
//!
//! Messages of topics all wait in [`ItemQueues`]. What a call of MCP sends has the limit of these.
//!
//! Native streams all pause with the first one of their connection: each would add an item.

use bytes::Bytes;
use ucall_engine::Engine;
use ucall_proto::CallNumber;

use super::ConnectionDriver;
use super::active_connection::{ActiveConnection, Advanced};
use crate::caller::CallId;
use crate::handler::Handler;
use crate::item_queues::ItemSource;
use crate::overflow::Overflow;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Handles an item of a stream, whose value is in `self.text`.
    #[inline(never)]
    pub(super) fn handle_item(&mut self, call: CallId, overflow: Overflow) {
        self.context.dispatcher.end_child();
        let text = std::mem::take(&mut self.text);
        if let Some(mut active) = self.find(call.connection) {
            let advanced = active.handle_item(call.number, overflow, &text);
            self.finish(call.connection, advanced);
        }
        self.text = text;
    }
}

impl<E: Engine, H: Handler> ActiveConnection<'_, E, H> {
    fn handle_item(&mut self, number: CallNumber, overflow: Overflow, value: &[u8]) -> Advanced {
        let bytes_max = self.context.config.limits.stream_bytes_max;
        match overflow {
            Overflow::DropOldest if self.entry.outgoing.is_sending() => {
                let call = CallId { connection: self.entry.id(), number };
                // Those of MCP are messages of the server, too.
                let bytes_max = match self.context.dispatcher.mcp_calls.contains(call) {
                    true => self.context.config.limits.waiting_message_bytes_max,
                    false => bytes_max,
                };
                let queues = self.entry.items.get_or_insert_default();
                let item = Bytes::copy_from_slice(value);
                queues.push_item(number, item, bytes_max, self.context.budget());
                self.send_queue.request_poll();
            }
            Overflow::DropNewest if self.is_full_of_items() => {}
            Overflow::Close if self.is_full_of_items() => return Advanced::Ends,
            _ => {
                self.write_item(number, value);
                if overflow == Overflow::Pause && self.is_full_of_items() {
                    self.pause_stream(number);
                }
            }
        }
        Advanced::Waits
    }

    /// Whether as many items wait for the end of a send as may.
    fn is_full_of_items(&self) -> bool {
        let bytes_max = self.context.config.limits.stream_bytes_max;
        self.entry.outgoing.is_full_of_items(bytes_max)
    }

    fn write_item(&mut self, number: CallNumber, value: &[u8]) {
        let before = self.send_queue.output().len();
        self.step(|connection, environment| {
            connection.write_item(number, value, environment);
        });
        let written = self.send_queue.output().len() - before;
        if written == 0 {
            return;
        }
        self.entry.outgoing.add_item_bytes(written);
        if let Some(bytes_max) = self.entry.outgoing.new_unsent_max(written) {
            self.engine.limit_unsent(self.entry.id(), bytes_max);
        }
        if self.send_queue.enqueue(self.entry) {
            self.send_queue.send_queued(self.engine, self.entry, self.context.now);
        }
    }

    #[cold]
    fn pause_stream(&mut self, number: CallNumber) {
        if self.entry.items.get_or_insert_default().pause(number) {
            let connection = self.entry.id();
            self.context.dispatcher.natives.set_slow(connection, true);
            self.context.dispatcher.handler.pause_stream(CallId { connection, number });
        }
    }

    /// Writes what a call has sent and still waits, before its reply: notifications, and the items
    /// of a stream.
    pub(super) fn write_last_items(&mut self, number: CallNumber) {
        let Some(queues) = &mut self.entry.items else { return };
        let notifications = queues.take(ItemSource::NOTIFICATIONS, self.context.budget());
        let items = queues.take(ItemSource::Call(number), self.context.budget());
        for notification in notifications {
            self.send_queue.enqueue_message(self.entry, notification);
        }
        for item in items {
            self.write_item(number, &item);
        }
    }

    /// A send has ended: sends items that wait, and resumes streams that have paused.
    #[inline(never)]
    pub(super) fn resume_items(&mut self) {
        while let Some((source, item)) = self.next_item() {
            match source {
                ItemSource::Call(number) => self.write_item(number, &item),
                ItemSource::Messages(_) => self.write_framed(item),
            }
        }
        let (connection, is_full) = (self.entry.id(), self.is_full_of_items());
        let Some(queues) = &mut self.entry.items else { return };
        let paused = if is_full { Vec::new() } else { queues.take_paused() };
        if queues.has_items() {
            self.send_queue.request_poll();
        } else if queues.is_unused() {
            self.entry.items = None;
        }
        if paused.is_empty() {
            return;
        }
        self.context.dispatcher.natives.set_slow(connection, false);
        for number in paused {
            self.context.dispatcher.handler.resume_stream(CallId { connection, number });
        }
    }

    /// The next waiting item, unless a send is in flight.
    fn next_item(&mut self) -> Option<(ItemSource, Bytes)> {
        match self.entry.outgoing.is_sending() {
            true => None,
            false => self.entry.items.as_deref_mut()?.pop(self.context.budget()),
        }
    }
}
