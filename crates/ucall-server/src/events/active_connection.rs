//! Advances a connection: runs its steps, sends what they write, and does what it asks for next.
//!
//! An event is a step of the protocol and then the loop of [`ActiveConnection::advance`], which
//! sends the output and applies the [`NextAction`]:
//!
//! | next action | and all output is | what the loop does |
//! |---|---|---|
//! | `Receive` | | has the engine receive, and ends |
//! | `Fill` | | has the engine fill the connection's target, and ends |
//! | `Pause` | | if the client asks for shared memory, answers that and goes on |
//! | `Pause` | sent | resumes the connection; goes on if that changes anything |
//! | `Pause` | not sent | has the engine receive nothing, and ends |
//! | `DiscardInput` | sent | shuts down our side, has the engine receive, and ends |
//! | `Close` | sent | ends; the driver closes the connection |
//! | `DiscardInput`, `Close` | not sent | ends; the end of the send is the next event |

use ucall_buffer::{SharedMemory, Target};
use ucall_engine::Engine;
use ucall_engine::shared::{Side, SlotMemory};
use ucall_proto::{Connection, Environment, NextAction, server_preamble};

use crate::connections::Entry;
use crate::context::WorkerContext;
use crate::dispatch::Dispatch;
use crate::handler::Handler;
use crate::memory_waiters::MemoryWaiters;
use crate::send_queue::{Flushed, SendQueue};

/// What is left to do for the driver, which has all connections, after one has advanced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Advanced {
    /// The connection waits for its next event.
    Waits,
    /// The same, and [`SendQueue::send_batch`] is due.
    BatchIsFull,
    /// The connection is over.
    Ends,
}

/// One connection, and the parts of its worker that advance it.
pub(super) struct ActiveConnection<'a, E: Engine, H: Handler> {
    pub(super) entry: &'a mut Entry,
    pub(super) engine: &'a mut E,
    pub(super) context: &'a mut WorkerContext<H>,
    pub(super) send_queue: &'a mut SendQueue,
    pub(super) waiters: &'a mut MemoryWaiters,
}

impl<E: Engine, H: Handler> ActiveConnection<'_, E, H> {
    /// Passes an event to a connection, and advances it.
    pub(super) fn handle(
        &mut self,
        event: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>),
    ) -> Advanced {
        self.step(event);
        self.advance()
    }

    /// Goes on with the requests of a connection that had to wait.
    pub(super) fn resume(&mut self) -> Advanced {
        self.handle(|connection, environment| connection.resume(environment))
    }

    /// Passes the end of the peer's side of the stream to a connection.
    pub(super) fn end(&mut self) -> Advanced {
        if self.entry.proto.is_half_closed() && self.engine.has_peer_left(self.entry.id()) {
            return Advanced::Ends;
        }
        let advanced = self.handle(|connection, environment| connection.handle_eof(environment));
        if advanced != Advanced::Ends && self.entry.proto.is_half_closed() {
            self.engine.check(self.entry.id());
        }
        advanced
    }

    /// A send has ended, after which output or an action of its connection waits.
    #[inline(never)]
    pub(super) fn send_next(&mut self) -> Advanced {
        self.send_queue.send_next(self.engine, self.entry, self.context.now);
        // Items that wait precede the end of the connection.
        let next_action = self.entry.proto.next_action();
        self.resume_items();
        if next_action != NextAction::Receive {
            return self.resume();
        }
        self.context.update_load();
        Advanced::Waits
    }

    /// Has the engine notice whether the peer has left, and the connection whether bytes of its
    /// target have arrived.
    pub(super) fn check_progress(&mut self) {
        self.engine.check(self.entry.id());
        if self.entry.proto.is_filling()
            && self.entry.set_filled(self.engine.filled_bytes(self.entry.id()))
        {
            self.step(|connection, environment| connection.handle_progress(environment));
        }
    }

    /// Runs a step, whose output is sent by [`ActiveConnection::advance`].
    pub(super) fn step<T>(
        &mut self,
        step: impl FnOnce(&mut Connection, &mut Environment<'_, Dispatch<'_, H>>) -> T,
    ) -> T {
        self.context.step(self.entry, self.send_queue.output(), step)
    }

    /// Sends the output of a connection, and does what it asks for, until it waits for an event.
    ///
    /// A pass that is not the last has answered requests of the connection's input, which does not
    /// grow meanwhile.
    #[inline(never)]
    pub(super) fn advance(&mut self) -> Advanced {
        loop {
            if let Some(attachments) = self.context.take_attachments() {
                self.send_queue.attach(attachments);
            }
            let flushed = self.send_queue.flush(self.engine, self.entry, self.context.now);
            self.context.update_load();
            let is_sent = self.entry.outgoing.bytes() == 0;
            match self.entry.proto.next_action() {
                NextAction::Receive => {
                    self.resume_receiving();
                    return match flushed {
                        Flushed::BatchIsFull => Advanced::BatchIsFull,
                        _ => Advanced::Waits,
                    };
                }
                NextAction::Fill => {
                    if let Some(target) =
                        self.step(|connection, environment| connection.poll_target(environment))
                    {
                        return self.fill(target);
                    }
                }
                NextAction::Pause if self.entry.proto.asks_for_shared_memory().is_some() => {
                    self.share_memory();
                }
                NextAction::Pause if is_sent => {
                    self.step(|connection, environment| connection.resume(environment));
                    if self.send_queue.output_is_empty()
                        && self.entry.proto.next_action() == NextAction::Pause
                    {
                        return self.wait_for_room();
                    }
                }
                NextAction::Pause => {
                    self.send_queue.request_poll();
                    return self.wait_for_room();
                }
                NextAction::DiscardInput if is_sent => {
                    if self.entry.shut_down() {
                        self.engine.shutdown(self.entry.id());
                    }
                    self.resume_receiving();
                    return Advanced::Waits;
                }
                NextAction::Close if is_sent => return Advanced::Ends,
                NextAction::DiscardInput | NextAction::Close => {
                    self.send_queue.request_poll();
                    return Advanced::Waits;
                }
            }
        }
    }
}

/// What the loop does with the engine.
impl<E: Engine, H: Handler> ActiveConnection<'_, E, H> {
    fn fill(&mut self, target: Target) -> Advanced {
        self.entry.set_filled(0);
        self.resume_receiving();
        self.engine.receive_into(self.entry.id(), target);
        Advanced::Waits
    }

    /// Answers a client that asks for shared memory. Nothing was sent to it before.
    #[cold]
    fn share_memory(&mut self) {
        let config = &self.context.config;
        let (ours, is_trusted) = (config.shared_bytes_max as u64, config.trusts_shared_memory);
        let theirs = self.entry.proto.asks_for_shared_memory().unwrap_or_default();
        let answered = match ours.min(theirs) {
            1.. if SlotMemory::has_room() => {
                self.engine.share_memory(self.entry.id(), &server_preamble(ours)).ok()
            }
            _ => None,
        };
        let was_sent = answered.is_some();
        let memory = answered.flatten().map(|channel| {
            let sent_max = ours.min(theirs);
            let memory = SlotMemory::new(channel, sent_max, ours, Side::Server, is_trusted);
            Box::new(memory) as Box<dyn SharedMemory>
        });
        self.step(|connection, environment| {
            connection.share_memory(memory, was_sent, environment);
        });
    }

    /// Has a connection wait for the end of its send, of its calls, for memory, or for the next
    /// turn.
    fn wait_for_room(&mut self) -> Advanced {
        if self.entry.proto.is_waiting_for_memory() {
            self.waiters.add(self.entry.id(), self.entry.proto.reserved_bytes());
        } else if self.entry.proto.is_decoding() {
            self.waiters.add_decoding(self.entry.id());
        }
        self.pause_receiving();
        Advanced::Waits
    }

    #[inline(never)]
    pub(super) fn pause_receiving(&mut self) {
        if self.entry.set_paused(true) {
            self.engine.pause(self.entry.id());
        }
    }

    #[inline]
    fn resume_receiving(&mut self) {
        if self.entry.set_paused(false) {
            self.engine.resume(self.entry.id());
        }
    }
}
