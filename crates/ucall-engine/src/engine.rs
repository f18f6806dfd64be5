//! The trait that every engine implements.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::{Payload, Target};

use crate::{Arrival, Completion, Id, Listener, Peer, Readiness};

/// What became of a payload handed to [`Engine::send`].
#[derive(Debug)]
#[must_use = "a payload that went out at once comes back here and not as a completion"]
pub enum SendState {
    /// All of it went out; here is the payload, to be used again. No completion follows.
    Done(Payload),
    /// A [`Completion::Sent`] follows.
    Pending,
}

/// Moves bytes. One thread owns an engine and drives it, turn by turn.
///
/// Every operation is started by a method and finished by a [`Completion`] from [`Engine::wait`].
/// An unknown or closed [`Id`] is not an error: what comes late is dropped, and ownership of
/// payloads and targets still returns through a completion.
///
/// There are no timers but one: the deadline of `wait`. The layer above keeps its deadlines in
/// whatever order suits it and passes the nearest.
pub trait Engine {
    /// `"posix"`, `"uring"` or `"fake"`.
    const NAME: &'static str;

    /// Whether each send enters the kernel by itself, and not together with the next wait.
    const SENDS_AT_ONCE: bool;

    /// Starts to accept connections on a bound, listening socket.
    fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<Id>;

    /// Takes over a connected stream socket (TCP or Unix), which starts to receive.
    fn adopt(&mut self, stream: OwnedFd) -> io::Result<Id>;

    /// Takes over a bound datagram socket, which starts to receive.
    fn bind_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id>;

    /// Reports once, as [`Completion::Ready`], when a descriptor of somebody else becomes (or
    /// already is) ready for any of `interest`; [`Engine::rewatch`] arms it again. The descriptor
    /// must stay open until [`Engine::close`] of the watch.
    fn watch(&mut self, descriptor: BorrowedFd<'_>, interest: Readiness) -> io::Result<Id>;

    /// Arms a watch again. Level-triggered: reports at once what is already there.
    fn rewatch(&mut self, watch: Id, interest: Readiness) -> io::Result<()>;

    /// Stops accepting on a listener, or receiving on a socket, until [`Engine::resume`]. What had
    /// already been taken from the kernel may still be reported after this.
    fn pause(&mut self, id: Id);

    /// Undoes [`Engine::pause`] (or the pause after [`Completion::AcceptFailed`]).
    fn resume(&mut self, id: Id);

    /// The bytes of an arrival, writable in place; they are gone at the next call on the engine.
    /// Empty means the end of the stream. `WouldBlock` means that there is nothing after all (the
    /// socket was closed meanwhile, or its bytes went to a target).
    fn receive(&mut self, arrival: Arrival) -> io::Result<&mut [u8]>;

    /// The bytes of a datagram and who sent it. `WouldBlock` as in [`Engine::receive`].
    fn receive_from(&mut self, arrival: Arrival) -> io::Result<(&mut [u8], SocketAddr)>;

    /// Sends the stream's next bytes into `target`, without a copy where the engine can, until it
    /// is full; then [`Completion::Filled`] is reported and ordinary receiving goes on by itself.
    /// Bytes taken from the kernel but not yet handed out go to the target first, and a pause holds
    /// up only what comes after it. When the stream ends or breaks on the way, an ordinary
    /// [`Completion::Received`] says so once more. A socket has at most one target at a time.
    fn receive_into(&mut self, socket: Id, target: Target);

    /// Makes sure, once a connection has been silent for a while, that it is still there. An engine
    /// that may not have been told reports the end, or the error, as ever; see [`Engine::wait`].
    fn check(&mut self, socket: Id) {
        let _ = socket;
    }

    /// Bytes that the target under way has so far; 0 when none is. It tells a peer that is slow
    /// from one that is silent.
    fn filled_bytes(&self, socket: Id) -> usize;

    /// Sends a payload whole. A socket has at most one send under way; the next one waits for
    /// [`Completion::Sent`].
    fn send(&mut self, socket: Id, payload: Payload) -> SendState;

    /// Sends a payload whole that nothing waits behind. As [`Engine::send`], except that a `wait`
    /// need not return for it: its [`Completion::Sent`] may come as late as the next thing that
    /// happens, which saves io_uring a system call.
    #[inline(always)]
    fn send_last(&mut self, socket: Id, payload: Payload) -> SendState {
        self.send(socket, payload)
    }

    /// Bytes that the kernel has taken of the payload under way; 0 when none is. It grows as the
    /// peer makes room, which tells a slow peer from one that is stuck.
    fn sent_bytes(&self, socket: Id) -> usize;

    /// Sends one datagram.
    fn send_to(&mut self, socket: Id, payload: Payload, peer: SocketAddr) -> SendState;

    /// Ends our side of a stream: the peer reads the end once everything sent has arrived.
    fn shutdown(&mut self, socket: Id);

    /// Closes a listener, socket or watch and forgets it. What is under way is cancelled; its
    /// ownership returns by completions whose id nobody knows any more.
    fn close(&mut self, id: Id);

    /// Who is at the other end of a stream socket.
    fn peer(&mut self, socket: Id) -> io::Result<Peer>;

    /// Submits what was started, then waits until something has happened or `deadline` passed
    /// (`None`: no deadline; one in the past: only looks), and appends all that happened. A signal
    /// ends the wait early, with nothing.
    ///
    /// Engine buffers handed out in the turn before go back to the kernel here.
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()>;

    /// A handle that ends a `wait` from another thread.
    fn waker(&self) -> Waker;

    /// What a forked child has to close, so that nothing of the engine outlives its process there.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// System calls made so far, each entry into the kernel counted once.
    fn system_calls(&self) -> u64;
}

/// Ends the [`Engine::wait`] of an engine on another thread, which reports [`Completion::Woken`].
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<dyn Fn() -> io::Result<()> + Send + Sync>);

impl Waker {
    /// Wakes the engine. Wakes that come together may be reported as one.
    pub fn wake(&self) -> io::Result<()> {
        (self.0)()
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waker")
    }
}
