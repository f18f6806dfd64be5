//! How replies leave: behind what is under way on their connection, and several together.

use std::io;
use std::mem;

use ucall_buffer::Payload;
use ucall_engine::{Engine, Id, SendState};
use ucall_proto::Wish;

use crate::dispatch::UNCOUNTED_BYTES;
use crate::{Handler, Worker};

/// Replies that wait for each other at most. Those of slow functions should not wait for many.
const OUTBOX_MAX: usize = 4;

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Puts the output behind what waits to be sent, and sends that.
    ///
    /// A send that enters the kernel by itself leaves the caches and branch predictors to it. So
    /// such sends wait for the end of the turn, or for some others, and are made together.
    #[inline]
    pub(crate) fn flush(&mut self, id: Id, wish: Wish) {
        let Some(entry) = self.connections.find(id) else { return self.out.clear() };
        let waits_already = !entry.queued.is_empty();
        if waits_already {
            self.out.append_to(&mut entry.queued);
        } else if !self.out.is_empty() {
            entry.queued = self.out.take();
        } else {
            return;
        }
        if entry.sending > 0 {
            // The send under way may be through and wait to be asked.
            self.asks |= !waits_already;
            self.office.count_output(entry);
        } else if !E::SENDS_AT_ONCE || wish != Wish::Receive || entry.queued.len() > UNCOUNTED_BYTES
        {
            self.send(id);
        } else if !waits_already {
            self.outbox.push(id);
            if self.outbox.len() == OUTBOX_MAX {
                self.send_outbox();
            }
        }
    }

    /// Sends the replies that were kept for the end of the turn.
    #[inline]
    pub(crate) fn send_outbox(&mut self) {
        if !self.outbox.is_empty() {
            self.send_together();
        }
    }

    fn send_together(&mut self) {
        let mut outbox = mem::take(&mut self.outbox);
        for id in outbox.drain(..) {
            self.send(id);
        }
        self.outbox = outbox;
    }

    /// Sends what waits on a connection on which no send is under way.
    #[inline]
    fn send(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
        let len = entry.queued.len();
        if len == 0 || entry.sending > 0 {
            return;
        }
        let payload = mem::take(&mut entry.queued);
        self.stats.bytes_sent += len as u64;
        let state = match entry.proto.wish() {
            Wish::Receive => self.engine.send_last(id, payload),
            _ => self.engine.send(id, payload),
        };
        match state {
            SendState::Done(payload) => self.out.give_back(payload),
            SendState::Pending => {
                entry.sending = len;
                (entry.taken_at, entry.taken) = (self.office.now, 0);
                if len > UNCOUNTED_BYTES {
                    self.office.count_output(entry);
                }
            }
        }
    }

    /// Takes back what was sent, and goes on with what waited for it.
    #[inline]
    pub(crate) fn sent(&mut self, id: Id, payload: Payload, result: io::Result<()>) {
        self.out.give_back(payload);
        let Some(entry) = self.connections.find(id) else { return };
        entry.sending = 0;
        if result.is_err() {
            return self.close(id);
        }
        let has_more = !entry.queued.is_empty();
        if !has_more && entry.held_bytes == 0 && entry.proto.wish() == Wish::Receive {
            return;
        }
        if has_more {
            self.send(id);
        }
        let Some(entry) = self.connections.find(id) else { return };
        if entry.held_bytes > 0 {
            self.office.count_output(entry);
        }
        if entry.proto.wish() != Wish::Receive {
            self.step(id, |connection, environment, out| connection.proceed(environment, out));
            self.settle(id);
        }
    }
}
