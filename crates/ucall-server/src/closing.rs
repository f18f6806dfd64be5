//! How a connection ends: our side first, with a goodbye, or at once. Its place may let others in.

use std::io;
use std::mem;
use std::time::Instant;

use ucall_engine::{Engine, Id, SendState};

use crate::{Handler, Worker};

impl<E: Engine, H: Handler> Worker<E, H> {
    /// The end of a worker that was told to stop: what was written last goes out, then whoever is
    /// still there is closed like one that has nothing under way.
    ///
    /// # Errors
    /// The engine's.
    pub fn end(&mut self) -> io::Result<()> {
        self.turn_now()?;
        for id in self.connections.ids() {
            self.dismiss(id);
        }
        self.turn_now()
    }

    /// A turn that does not wait.
    #[cold]
    #[inline(never)]
    fn turn_now(&mut self) -> io::Result<()> {
        self.turn(Some(Instant::now())).map(drop)
    }

    /// Ends our side and throws away what the peer still sends, until it ends its own.
    #[inline(never)]
    pub(crate) fn finish(&mut self, id: Id) {
        let Some(entry) = self.connections.find(id) else { return };
        if !entry.finished {
            entry.finished = true;
            self.engine.shutdown(id);
        }
        self.keep_receiving(id);
    }

    /// Closes a connection on which nothing is under way. Under TLS the peer is told, if that goes
    /// out at once: it then knows that nobody else has cut the stream.
    #[inline(never)]
    pub(crate) fn dismiss(&mut self, id: Id) {
        self.out.clear();
        if let Some(entry) = self.connections.find(id)
            && entry.queued_bytes() == 0
        {
            entry.proto.say_goodbye(self.out.head_mut());
            let goodbye = self.out.take();
            self.stats.bytes_sent += goodbye.len() as u64;
            // What does not go out at once is cancelled by the close.
            if let SendState::Done(payload) = self.engine.send(id, goodbye) {
                self.out.give_back(payload);
            }
        }
        self.close(id);
    }

    #[inline(never)]
    pub(crate) fn close(&mut self, id: Id) {
        self.out.clear();
        self.engine.close(id);
        let Some(mut entry) = self.connections.remove(id) else { return };
        self.starved.remove(&mut entry);
        self.stats.connections = self.connections.len() as u64;
        if entry.proto.has_deferred() {
            self.office.handler.cancel(id);
        }
        if !self.is_crowded() {
            self.resume_accepting();
        }
    }

    pub(crate) fn resume_accepting(&mut self) {
        if self.drain.is_none() && mem::take(&mut self.accept_paused) {
            for &listener in &self.listeners {
                self.engine.resume(listener);
            }
        }
    }
}
