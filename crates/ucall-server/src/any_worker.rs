//! The interface of a worker, whatever its engine.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{Id, Listener, Waker};

use crate::counters::Counters;
use crate::handler::{Handler, Turn};
use crate::mailbox::Mailbox;
use crate::publisher::Publisher;

/// A [`Worker`](crate::Worker) on any engine.
pub trait AnyWorker<H: Handler> {
    /// Serves the connections of a listening socket.
    fn listen(&mut self, listener: Listener) -> io::Result<()>;

    /// Answers the calls in the datagrams of a bound socket. Clients get no messages and no items
    /// of streams over it.
    ///
    /// # Errors
    /// The engine's; or the worker has TLS, which datagrams cannot have.
    fn listen_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id>;

    /// Ends a turn, with `signalled` set, whenever `descriptor` is readable. It must stay open
    /// until the worker is dropped.
    fn watch_signals(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Ends a turn, with `ready` set, whenever `descriptor` is readable. It belongs to an event
    /// loop that shares this worker's wait, and must stay open until the worker is dropped or
    /// watches another.
    fn watch_loop(&mut self, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Stops watching the event loop.
    fn unwatch_loop(&mut self);

    /// Takes one turn: waits for completions until `deadline`, and handles all of them.
    fn turn(&mut self, deadline: Option<Instant>) -> io::Result<Turn>;

    /// Takes turns up to the first that [`Handler::ends_turns`]. A loop outside costs a call and
    /// its return in each turn, which the processor mispredicts after a system call.
    fn turns(&mut self) -> io::Result<Turn>;

    /// Shuts down a worker after its last turn: sends the output that is left, then closes all
    /// connections.
    ///
    /// # Errors
    /// The engine's.
    fn shut_down(&mut self) -> io::Result<()>;

    /// Submits what the last turn has started, because other code runs before the next one. `true`
    /// if a turn is due that the engine's descriptor does not report.
    fn submit(&mut self) -> io::Result<bool>;

    /// Prepares for other code to wait on the engine's descriptor: until the next turn, a message
    /// makes it readable. `false` if there is a message already, and a turn is due.
    fn prepare_to_wait(&mut self) -> bool;

    /// When the next turn is due, even without events.
    fn deadline(&self) -> Option<Instant>;

    /// The engine's descriptor, which is readable when a turn is due; -1 for a fake engine.
    fn descriptor(&self) -> RawFd;

    /// A handle that ends the wait of a turn from another thread.
    fn waker(&self) -> Waker;

    /// Through which other threads send messages to the worker.
    fn mailbox(&self) -> Mailbox;

    /// Through which any thread sends messages to the worker's connections.
    fn publisher(&self) -> Arc<Publisher>;

    /// The page of counters, which any thread may read.
    fn counters(&self) -> Arc<Counters>;

    /// Publishes the worker's counters on that page from now on.
    fn set_counters(&mut self, counters: Arc<Counters>);

    /// The handler.
    fn handler_mut(&mut self) -> &mut H;
}
