//! Passes the items of streams to their callers, as fast as these read.
//!
//! Items go to the output of their connection. While a send of it is in flight, they wait:
//!
//! | overflow | the next items wait in | above `stream_bytes_max` |
//! |---|---|---|
//! | pause | the output | the handler pauses the stream, until the output is sent |
//! | drop the oldest | [`ItemQueues`] | the oldest are dropped |
//! | drop the newest | the output | the new one is dropped |
//! | close | the output | the connection closes |
//!
//! Messages of topics all wait in [`ItemQueues`].
//!
//! Native streams all pause with the first one of their connection: each would add an item.

use bytes::Bytes;
use ucall_engine::{Engine, Id};
use ucall_proto::CallNumber;

use super::ConnectionDriver;
use crate::caller::CallId;
use crate::connections::Entry;
use crate::context::WorkerContext;
use crate::handler::Handler;
use crate::item_queues::{ItemQueues, ItemSource};
use crate::overflow::Overflow;
use crate::send_queue::SendQueue;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Handles an item of a stream, whose value is in `self.text`.
    #[inline(never)]
    pub(super) fn handle_item(&mut self, call: CallId, overflow: Overflow) {
        self.context.dispatcher.end_child();
        let Some(entry) = self.connections.find(call.connection) else { return };
        let bytes_max = self.context.config.limits.stream_bytes_max;
        let is_full = entry.outgoing.is_full_of_items(bytes_max);
        match overflow {
            Overflow::DropOldest if entry.outgoing.is_sending() => {
                let item = Bytes::copy_from_slice(&self.text);
                let queues = entry.items.get_or_insert_default();
                queues.push_item(call.number, item, bytes_max, self.context.budget());
                return self.send_queue.request_poll();
            }
            Overflow::DropNewest if is_full => return,
            Overflow::Close if is_full => return self.close(call.connection),
            _ => {}
        }
        let (engine, context, send_queue) =
            (&mut self.engine, &mut self.context, &mut self.send_queue);
        write_item(engine, context, send_queue, entry, call.number, &self.text);
        if overflow == Overflow::Pause
            && entry.outgoing.is_full_of_items(bytes_max)
            && entry.items.get_or_insert_default().pause(call.number)
        {
            context.dispatcher.natives.set_slow(call.connection, true);
            context.dispatcher.handler.pause_stream(call);
        }
    }

    /// Writes an item that has waited.
    fn write_queued_item(&mut self, id: Id, number: CallNumber, value: &[u8]) {
        let Some(entry) = self.connections.find(id) else { return };
        let (engine, context, send_queue) =
            (&mut self.engine, &mut self.context, &mut self.send_queue);
        write_item(engine, context, send_queue, entry, number, value);
    }

    /// Writes what a call has sent and still waits, before its reply: notifications, and the items
    /// of a stream.
    pub(super) fn write_last_items(&mut self, call: CallId) {
        let Some(entry) = self.connections.find(call.connection) else { return };
        let Some(queues) = &mut entry.items else { return };
        let notifications = queues.take(ItemSource::NOTIFICATIONS, self.context.budget());
        let items = queues.take(ItemSource::Call(call.number), self.context.budget());
        for notification in notifications {
            self.write_before_reply(call.connection, notification);
        }
        for item in items {
            self.write_queued_item(call.connection, call.number, &item);
        }
    }

    /// A send has ended: sends items that wait, and resumes streams that have paused.
    #[inline(never)]
    pub(super) fn resume_items(&mut self, id: Id) {
        while let Some((source, item)) = self.next_item(id) {
            match source {
                ItemSource::Call(number) => self.write_queued_item(id, number, &item),
                ItemSource::Messages(_) => self.write_framed(id, item),
            }
        }
        let bytes_max = self.context.config.limits.stream_bytes_max;
        let Some(entry) = self.connections.find(id) else { return };
        let Some(queues) = &mut entry.items else { return };
        let is_full = entry.outgoing.is_full_of_items(bytes_max);
        let paused = if is_full { Vec::new() } else { queues.take_paused() };
        if queues.has_items() {
            self.send_queue.request_poll();
        } else if queues.is_unused() {
            entry.items = None;
        }
        if paused.is_empty() {
            return;
        }
        self.context.dispatcher.natives.set_slow(id, false);
        for number in paused {
            self.context.dispatcher.handler.resume_stream(CallId { connection: id, number });
        }
    }

    /// The next waiting item, unless a send is in flight.
    fn next_item(&mut self, id: Id) -> Option<(ItemSource, Bytes)> {
        let entry = self.connections.find(id).filter(|entry| !entry.outgoing.is_sending())?;
        entry
            .items
            .as_deref_mut()
            .and_then(|queues: &mut ItemQueues| queues.pop(self.context.budget()))
    }
}

/// Appends an item to the output of its connection.
fn write_item<E: Engine, H: Handler>(
    engine: &mut E,
    context: &mut WorkerContext<H>,
    send_queue: &mut SendQueue,
    entry: &mut Entry,
    number: CallNumber,
    value: &[u8],
) {
    let out = send_queue.output();
    let before = out.len();
    context.step(entry, out, |connection, environment| {
        connection.write_item(number, value, environment);
    });
    let written = out.len() - before;
    if written == 0 {
        return;
    }
    entry.outgoing.add_item_bytes(written);
    if let Some(bytes_max) = entry.outgoing.new_unsent_max(written) {
        engine.limit_unsent(entry.id(), bytes_max);
    }
    if send_queue.hold(entry) {
        send_queue.send_held(engine, entry, context.now);
    }
}
