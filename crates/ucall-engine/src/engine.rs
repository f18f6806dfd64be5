//! The trait that every engine implements.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use ucall_buffer::{Payload, Target};

use crate::shared::Channel;
use crate::{
    Arrival, Completion, DatagramDrops, DatagramPath, EngineClock, Id, Listener, Peer, Readiness,
};

/// What became of a payload handed to [`Engine::send`].
#[derive(Debug)]
#[must_use = "a payload that was sent at once is returned here, without a completion"]
pub enum SendState {
    /// The payload was sent whole, and is returned for reuse. No completion follows.
    Done(Payload),
    /// A [`Completion::Sent`] follows.
    Pending,
}

/// Moves bytes between sockets and memory. One thread owns an engine and drives it, turn by turn.
///
/// A method starts each operation, and a [`Completion`] from [`Engine::wait`] finishes it. An
/// unknown or closed [`Id`] is no error: late arrivals are dropped, and completions still return
/// the ownership of payloads and targets.
///
/// The deadline of `wait` is the only timer. The layer above stores its deadlines and passes the
/// nearest.
pub trait Engine {
    /// `"posix"`, `"uring"` or `"fake"`.
    const NAME: &'static str;

    /// Whether each send enters the kernel by itself, and not together with the next wait.
    const SENDS_AT_ONCE: bool;

    /// Starts to accept connections on a bound, listening socket. On a shared one
    /// ([`Listener::shared`]) it pauses after each connection, so that other workers get the next.
    fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<Id>;

    /// Takes over a connected stream socket (TCP or Unix), which starts to receive.
    fn adopt(&mut self, stream: OwnedFd) -> io::Result<Id>;

    /// Takes over a bound datagram socket, which starts to receive; see
    /// [`Completion::Datagrams`].
    fn bind_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id>;

    /// Reports once, as [`Completion::Ready`], that a descriptor owned by the caller is or becomes
    /// ready for any of `interest`; [`Engine::rewatch`] arms the watch again. The descriptor must
    /// stay open until [`Engine::close`] of the watch.
    fn watch(&mut self, descriptor: BorrowedFd<'_>, interest: Readiness) -> io::Result<Id>;

    /// Arms a watch again. Level-triggered: reports readiness that already exists at once.
    fn rewatch(&mut self, watch: Id, interest: Readiness) -> io::Result<()>;

    /// Stops accepting on a listener, or receiving on a socket, until [`Engine::resume`]. What had
    /// already been taken from the kernel may still be reported after this.
    fn pause(&mut self, id: Id);

    /// Undoes [`Engine::pause`] (or the pause after [`Completion::AcceptFailed`]).
    fn resume(&mut self, id: Id);

    /// The bytes of an arrival, writable in place, and valid until the next call on the engine.
    /// Empty means the end of the stream. `WouldBlock` means that there are none (the socket was
    /// closed meanwhile, or a target has taken the bytes).
    fn receive(&mut self, arrival: Arrival) -> io::Result<&mut [u8]>;

    /// The bytes of the next datagram, writable in place and valid until the next call on the
    /// engine, and its addresses. `WouldBlock` means that there is none; only after that will the
    /// engine report the socket again, unless [`Engine::resume`] asks for it. Other errors concern
    /// no datagram.
    fn receive_from(&mut self, socket: Id) -> io::Result<(&mut [u8], DatagramPath)>;

    /// Receives the stream's next bytes into `target`, without a copy where the engine can, until
    /// it is full. Then it reports [`Completion::Filled`], and ordinary receiving continues. Bytes
    /// that were received but not taken yet go to the target first, and a pause applies only to
    /// bytes after the target. If the stream ends or fails before the target is full, another
    /// [`Completion::Received`] reports that. A socket has at most one target at a time.
    fn receive_into(&mut self, socket: Id, target: Target);

    /// Checks that a connection without recent arrivals is still open. If the engine has missed its
    /// end or error, it reports that as an arrival; see [`Engine::wait`]. After the end of a stream
    /// it reports another arrival, an error or the end, if its peer leaves.
    fn check(&mut self, socket: Id) {
        let _ = socket;
    }

    /// The bytes that the current target has received; 0 without one. The number distinguishes a
    /// slow peer from a stalled one.
    fn filled_bytes(&self, socket: Id) -> usize;

    /// Sends a payload whole. A socket has at most one send in flight; the next one waits for
    /// [`Completion::Sent`].
    fn send(&mut self, socket: Id, payload: Payload) -> SendState;

    /// Sends a payload that no other work waits for. Like [`Engine::send`], but `wait` need not
    /// return for it: its [`Completion::Sent`] may arrive with the next event, which saves io_uring
    /// a system call.
    #[inline(always)]
    fn send_last(&mut self, socket: Id, payload: Payload) -> SendState {
        self.send(socket, payload)
    }

    /// The bytes of the current payload that the kernel has accepted; 0 without one. The number
    /// distinguishes a slow peer from a stalled one.
    fn sent_bytes(&self, socket: Id) -> usize;

    /// Queues one datagram, copied, until [`Engine::flush_datagrams`] at the latest. To reply, pass
    /// the path of the datagram that is replied to. No completion follows: a datagram that the
    /// kernel does not take is dropped and counted.
    fn send_to(&mut self, socket: Id, bytes: &[u8], path: DatagramPath);

    /// Sends the queued datagrams, at the latest with the next wait.
    fn flush_datagrams(&mut self, socket: Id) {
        let _ = socket;
    }

    /// The datagrams that were dropped since the socket was made.
    fn datagram_drops(&self, socket: Id) -> DatagramDrops;

    /// Shuts down our side of a stream: the peer reads the end after all sent bytes.
    fn shutdown(&mut self, socket: Id);

    /// Closes a listener, socket or watch. Its operations are cancelled, and completions with the
    /// closed id return their payloads and targets.
    fn close(&mut self, id: Id);

    /// Who is at the other end of a stream socket.
    fn peer(&mut self, socket: Id) -> io::Result<Peer>;

    /// Sends these first bytes of a stream socket to a peer that asks for shared memory, with a new
    /// channel if it is a process of our user; returns our end of that. No send may be in flight.
    ///
    /// # Errors
    /// Nothing was sent, because this engine cannot send descriptors, or the socket has failed.
    fn share_memory(&mut self, socket: Id, preamble: &[u8]) -> io::Result<Option<Channel>> {
        let _ = (socket, preamble);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Makes sends to a stream socket wait while the kernel has so many bytes that are not sent,
    /// instead of the megabytes that it takes otherwise: what produces bytes then pauses about when
    /// its peer stops reading. `u32::MAX`: no limit. Has no effect where the system cannot do it.
    fn limit_unsent(&mut self, socket: Id, bytes_max: u32) {
        let _ = (socket, bytes_max);
    }

    /// Whether the peer of a stream socket has closed or reset it. After the peer has shut down its
    /// side, no completion need report that before [`Engine::check`].
    fn has_peer_left(&mut self, socket: Id) -> bool;

    /// Submits the started operations, waits for an event or until `deadline` (`None`: no deadline;
    /// one in the past: polls once), and appends all completions. A signal ends the wait early,
    /// without one.
    ///
    /// Buffers that the previous turn has received from the engine return to the kernel here.
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()>;

    /// Submits the started operations, because other code runs before the next [`Engine::wait`].
    /// `true` if that wait has something to report which makes no descriptor readable.
    fn submit(&mut self) -> io::Result<bool>;

    /// A handle that ends a `wait` from another thread.
    fn waker(&self) -> Waker;

    /// The clock of deadlines. That of a fake engine stands still until a test moves it.
    #[inline(always)]
    fn clock(&self) -> EngineClock {
        EngineClock::SYSTEM
    }

    /// The descriptor that becomes readable when [`Engine::wait`] has something to report. A fake
    /// engine has none.
    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The descriptors that a forked child must close, so that no part of the engine outlives its
    /// process.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The number of system calls so far.
    fn system_calls(&self) -> u64;
}

/// Ends the [`Engine::wait`] of an engine on another thread, which reports [`Completion::Woken`].
#[derive(Clone)]
pub struct Waker(pub(crate) Arc<dyn Fn() -> io::Result<()> + Send + Sync>);

impl Waker {
    /// Wakes the engine. Several wakes may be reported as one.
    pub fn wake(&self) -> io::Result<()> {
        (self.0)()
    }
}

impl std::fmt::Debug for Waker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Waker")
    }
}
