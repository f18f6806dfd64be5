//! How replies leave: behind what is under way on their connection, and several together.

use std::mem;

use ucall_buffer::Payload;
use ucall_engine::{Engine, Id, SendState};
use ucall_proto::{MemoryBudget, Wish};

use crate::{Handler, Worker};

/// Replies that wait for each other at most. Those of slow functions should not wait for many.
const OUTBOX_MAX: usize = 4;

impl<E: Engine, H: Handler> Worker<E, H> {
    /// Puts the output behind what waits to be sent, and sends that unless a send is under way.
    #[inline]
    pub(crate) fn flush(&mut self, id: Id, wish: Wish) {
        let Some(entry) = self.connections.find(id) else { return self.out.clear() };
        let waits_already = !entry.queued.is_empty();
        if waits_already {
            self.out.append_to(&mut entry.queued);
        } else if !self.out.is_empty() {
            self.out.hand_to(&mut entry.queued);
        } else {
            return;
        }
        if entry.sending > 0 {
            // The send under way may be through and wait to be asked.
            self.asks |= !waits_already;
            self.office.reserve_output(entry);
        } else if !E::SENDS_AT_ONCE
            || wish != Wish::Receive
            || entry.queued.len() > MemoryBudget::UNRESERVED_BYTES
        {
            self.send(id);
        } else if !waits_already {
            self.put_aside(id);
        }
    }

    /// Has a reply sent with some others, or at the end of the turn.
    ///
    /// A send that enters the kernel by itself leaves the caches and branch predictors to it. So
    /// such sends are made together.
    #[inline(always)]
    pub(crate) fn put_aside(&mut self, id: Id) {
        self.outbox.push(id);
        if self.outbox.len() == OUTBOX_MAX {
            self.send_together();
        }
    }

    /// Sends the replies that were kept for the end of the turn.
    #[inline]
    pub(crate) fn send_outbox(&mut self) {
        if !self.outbox.is_empty() {
            self.send_together();
        }
    }

    #[inline(never)]
    fn send_together(&mut self) {
        self.send_all();
    }

    /// The same, where most replies leave: a call would be one more return that the processor
    /// does not expect behind a system call.
    #[inline(always)]
    pub(crate) fn send_all(&mut self) {
        let mut next = 0;
        while let Some(&id) = self.outbox.get(next) {
            self.send(id);
            next += 1;
        }
        self.outbox.clear();
    }

    /// Sends what waits on a connection, unless a send is under way.
    #[inline(always)]
    fn send(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
        let len = entry.queued.len();
        if len == 0 || entry.sending > 0 {
            return;
        }
        let payload = mem::take(&mut entry.queued);
        self.stats.bytes_sent += len as u64;
        let is_last = E::SENDS_AT_ONCE || entry.proto.wish() == Wish::Receive;
        let state = match is_last {
            true => self.engine.send_last(id, payload),
            false => self.engine.send(id, payload),
        };
        match state {
            SendState::Done(payload) => self.out.give_back(payload),
            SendState::Pending => {
                entry.begin_sending(len, self.office.now);
                if len > MemoryBudget::UNRESERVED_BYTES {
                    self.office.reserve_output(entry);
                }
            }
        }
    }

    /// Takes back what was sent, and goes on with what waited for it.
    #[inline(always)]
    pub(crate) fn sent(&mut self, id: Id, payload: Payload) {
        self.out.give_back(payload);
        let Some(entry) = self.connections.find(id) else { return };
        entry.sending = 0;
        let has_more = !entry.queued.is_empty();
        if has_more || entry.reserved.bytes() > 0 || entry.proto.wish() != Wish::Receive {
            self.go_on_sending(id);
        }
    }

    /// Takes back what could not be sent.
    #[cold]
    pub(crate) fn send_failed(&mut self, id: Id, payload: Payload) {
        self.out.give_back(payload);
        self.close(id);
    }

    /// Sends what waited for a send that is through, and proceeds with a connection that did.
    #[inline(never)]
    fn go_on_sending(&mut self, id: Id) {
        self.send(id);
        let Some(entry) = self.connections.find(id) else { return };
        if entry.reserved.bytes() > 0 {
            self.office.reserve_output(entry);
        }
        if entry.proto.wish() != Wish::Receive {
            self.step(id, |connection, environment, out| connection.proceed(environment, out));
            self.settle(id);
        }
    }
}
