//! The turn of a communicator's thread.

use std::io;

use ucall_engine::{Completion, Engine, Mailbox};

use super::handle::Command;
use super::transport::{Context, Transport};
use crate::session_manager::Action;

/// A session manager, and the transport that carries its links.
pub(super) struct Driver<E> {
    context: Context<E>,
    transport: Box<dyn Transport<E>>,
    mailbox: Mailbox<Command>,
    completions: Vec<Completion>,
    commands: Vec<Command>,
}

impl<E: Engine> Driver<E> {
    pub(super) fn new(
        context: Context<E>,
        transport: Box<dyn Transport<E>>,
        mailbox: Mailbox<Command>,
    ) -> Self {
        Self { context, transport, mailbox, completions: Vec::new(), commands: Vec::new() }
    }

    /// Runs turns until all sessions are over.
    pub(super) fn run(&mut self) {
        loop {
            self.context.now = self.context.sockets.engine.clock().now();
            self.run_actions();
            self.flush();
            self.run_actions();
            // Links that were closed may have a last output.
            self.transport.flush(&mut self.context);
            self.context.manager.finish_turn();
            if self.context.manager.is_closed() && self.transport.drain(&mut self.context) {
                self.stop();
                if self.context.sockets.open.is_empty() {
                    break;
                }
            }
            if self.wait().is_err() {
                // The engine has failed, and no link can be carried.
                self.context.manager.abort(self.context.now);
                self.context.manager.finish_turn();
                break;
            }
            self.mailbox.clear_sleeping();
            self.context.now = self.context.sockets.engine.clock().now();
            self.run_commands();
            self.handle_completions();
            self.handle_timeouts();
        }
        self.stop();
    }

    /// Frees the address, and reports that all is over.
    fn stop(&mut self) {
        if self.context.manager.notifier.is_finished() {
            return;
        }
        self.transport.stop(&mut self.context, &mut self.completions);
        self.context.manager.log_queue.finish();
        self.context.manager.notifier.finish();
    }

    fn wait(&mut self) -> io::Result<()> {
        let Context { manager, sockets, now } = &mut self.context;
        let deadlines =
            [manager.poll_timeout(), sockets.poll_timeout(), self.transport.poll_timeout()];
        let may_sleep = self.mailbox.prepare_to_sleep();
        let deadline = match may_sleep && !manager.has_ready() {
            true => deadlines.into_iter().flatten().min(),
            false => Some(*now),
        };
        sockets.engine.wait(deadline, &mut self.completions)
    }

    fn run_commands(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        self.mailbox.take(&mut commands);
        let context = &mut self.context;
        for command in commands.drain(..) {
            match command {
                Command::Close => context.manager.close(context.now),
                Command::CloseForGood => context.manager.close_for_good(context.now),
                Command::Abort => {
                    context.manager.abort(context.now);
                    self.transport.abort();
                }
                Command::Taken(index) => context.manager.handle_taken(index),
                Command::Announce(names) => context.manager.announce(names),
                Command::Link(link, event) => {
                    self.transport.handle_link_event(context, &link, event);
                }
            }
        }
        self.commands = commands;
    }

    fn flush(&mut self) {
        while let Some(key) = self.context.manager.poll_ready() {
            self.transport.flush_link(&mut self.context, key);
        }
        self.transport.flush(&mut self.context);
    }

    fn run_actions(&mut self) {
        while let Some(action) = self.context.manager.poll_action() {
            match action {
                Action::Dial(delay) => self.transport.dial_at(self.context.now + delay),
                Action::Close(key, after_output) => {
                    self.transport.close_link(&mut self.context, key, after_output);
                }
            }
        }
    }

    fn handle_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.transport.handle_completion(&mut self.context, completion);
        }
        self.completions = completions;
    }

    fn handle_timeouts(&mut self) {
        let now = self.context.now;
        if self.context.manager.timeout_is_due(now) {
            self.sweep_sockets();
            self.context.manager.handle_timeout(now);
        }
        self.transport.handle_timeout(&mut self.context);
        self.context.sockets.close_expired(now);
    }

    /// Reports bytes in targets that are not full yet, so that a slow peer counts as alive, and
    /// checks for sockets whose end the engine has not reported.
    fn sweep_sockets(&mut self) {
        let Context { manager, sockets, now } = &mut self.context;
        for (&id, socket) in &mut sockets.open {
            let filled_bytes = sockets.engine.filled_bytes(id);
            if std::mem::replace(&mut socket.filled_bytes, filled_bytes) < filled_bytes
                && let Some(key) = socket.key
            {
                manager.note_received(key, *now);
            }
            sockets.engine.check(id);
        }
    }
}
