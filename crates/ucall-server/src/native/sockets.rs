//! The sockets of native procedures, on the engine of their worker.

use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ucall_buffer::Payload;
use ucall_engine::{
    Engine, Id, Readiness, SendState, SockAddr, begin_connect, finish_connect, too_many_descriptors,
};
use ucall_proto::{MemoryBudget, Reservation};

use crate::metrics::CallMetrics;

const WRITABLE: Readiness = Readiness { readable: false, writable: true };

/// What a worker does for a handler at the end of a turn.
pub trait NativeContext {
    /// Begins to connect a stream socket. [`NativeHandler::connected`] with the returned id
    /// follows, unless [`NativeContext::close`] comes first.
    ///
    /// [`NativeHandler::connected`]: super::NativeHandler::connected
    ///
    /// # Errors
    /// The system's; or there are too many connections and sockets, which
    /// [`is_shortage`](ucall_engine::is_shortage) is true for.
    fn connect(&mut self, address: &SockAddr) -> io::Result<Id>;

    /// Sends `bytes` and leaves an empty buffer. Returns `false`, and leaves the bytes, while a
    /// send on the socket is in flight.
    fn send(&mut self, socket: Id, bytes: &mut Vec<u8>) -> bool;

    /// Whether a send on the socket is in flight, which a close would cut.
    fn is_sending(&self, socket: Id) -> bool;

    /// Stops or resumes receiving on a socket.
    fn set_paused(&mut self, socket: Id, is_paused: bool);

    /// Closes a socket, or ends an attempt to connect one.
    fn close(&mut self, socket: Id);

    /// Changes a reservation of the worker's memory. Returns `false` if its limit is exceeded by
    /// this one or others.
    fn reserve(&mut self, reservation: &mut Reservation, bytes: usize) -> bool;

    /// The metrics of the worker, if the server has metrics.
    fn metrics(&self) -> Option<&Arc<CallMetrics>>;

    /// Logs a warning.
    fn warn(&mut self, line: String);
}

/// What bounds the handlers of a worker.
pub(crate) struct NativeLimits {
    /// Bytes of all memory that the worker holds.
    pub(crate) held_bytes_max: usize,
    /// Sockets of all handlers.
    pub(crate) sockets_max: usize,
}

/// The sockets of all handlers of a worker.
#[derive(Debug, Default)]
pub(crate) struct NativeSockets {
    sockets: HashMap<Id, NativeSocket, FixedState>,
    warnings: Vec<String>,
    needs_poll: bool,
}

#[derive(Debug)]
struct NativeSocket {
    module: usize,
    state: SocketState,
}

#[derive(Debug)]
enum SocketState {
    Connecting(OwnedFd),
    Idle,
    Sending,
}

impl NativeSockets {
    /// What the handler of a module uses.
    pub(super) fn context<'a, E: Engine>(
        &'a mut self,
        module: usize,
        engine: &'a mut E,
        budget: &'a MemoryBudget,
        limits: &'a NativeLimits,
        metrics: Option<&'a Arc<CallMetrics>>,
    ) -> impl NativeContext + 'a {
        EngineContext { sockets: self, module, engine, budget, limits, metrics }
    }

    /// The number of sockets, and of attempts to connect one.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        mem::take(&mut self.warnings)
    }

    pub(super) fn take_poll(&mut self) -> bool {
        mem::take(&mut self.needs_poll)
    }

    pub(super) fn module_of(&self, socket: Id) -> Option<usize> {
        self.sockets.get(&socket).map(|socket| socket.module)
    }

    pub(super) fn remove(&mut self, socket: Id) {
        self.sockets.remove(&socket);
    }

    /// A send has ended. Returns the module of the socket.
    pub(super) fn sent(&mut self, socket: Id) -> Option<usize> {
        let socket = self.sockets.get_mut(&socket)?;
        socket.state = SocketState::Idle;
        Some(socket.module)
    }

    /// Ends an attempt to connect, of a module that is returned.
    pub(super) fn finish_connect(
        &mut self,
        attempt: Id,
        engine: &mut impl Engine,
    ) -> Option<(usize, io::Result<Id>)> {
        let NativeSocket { module, state } = self.sockets.remove(&attempt)?;
        engine.close(attempt);
        let SocketState::Connecting(socket) = state else { return None };
        let adopted = finish_connect(socket).and_then(|socket| engine.adopt(socket));
        if let Ok(id) = adopted {
            self.sockets.insert(id, NativeSocket { module, state: SocketState::Idle });
        }
        Some((module, adopted))
    }
}

struct EngineContext<'a, E> {
    sockets: &'a mut NativeSockets,
    module: usize,
    engine: &'a mut E,
    budget: &'a MemoryBudget,
    limits: &'a NativeLimits,
    metrics: Option<&'a Arc<CallMetrics>>,
}

impl<E: Engine> NativeContext for EngineContext<'_, E> {
    fn connect(&mut self, address: &SockAddr) -> io::Result<Id> {
        if self.sockets.len() >= self.limits.sockets_max {
            return Err(too_many_descriptors());
        }
        let socket = begin_connect(address)?;
        let attempt = self.engine.watch(socket.as_fd(), WRITABLE)?;
        let state = SocketState::Connecting(socket);
        self.sockets.sockets.insert(attempt, NativeSocket { module: self.module, state });
        Ok(attempt)
    }

    fn send(&mut self, socket: Id, bytes: &mut Vec<u8>) -> bool {
        let Some(entry) = self.sockets.sockets.get_mut(&socket) else { return false };
        if !matches!(entry.state, SocketState::Idle) {
            self.sockets.needs_poll = true;
            return false;
        }
        let mut payload = Payload::default();
        mem::swap(payload.head_mut(), bytes);
        match self.engine.send_last(socket, payload) {
            SendState::Done(mut sent) => {
                sent.clear_retaining_capacity();
                mem::swap(sent.head_mut(), bytes);
            }
            SendState::Pending => entry.state = SocketState::Sending,
        }
        true
    }

    fn is_sending(&self, socket: Id) -> bool {
        let found = self.sockets.sockets.get(&socket);
        found.is_some_and(|it| matches!(it.state, SocketState::Sending))
    }

    fn set_paused(&mut self, socket: Id, is_paused: bool) {
        match is_paused {
            true => self.engine.pause(socket),
            false => self.engine.resume(socket),
        }
    }

    fn close(&mut self, socket: Id) {
        // The engine must not watch a descriptor that is closed.
        self.engine.close(socket);
        self.sockets.remove(socket);
    }

    fn reserve(&mut self, reservation: &mut Reservation, bytes: usize) -> bool {
        reservation.resize(bytes, self.budget);
        bytes == 0 || self.budget.bytes() <= self.limits.held_bytes_max
    }

    fn metrics(&self) -> Option<&Arc<CallMetrics>> {
        self.metrics
    }

    fn warn(&mut self, line: String) {
        self.sockets.warnings.push(line);
    }
}
