//! Serves one process on a thread of the server: sends it batches, and takes their results.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ucall_proto::RpcError;

use super::QueuedBatch;
use super::link::{MessageKind, ProcessLink};
use super::message::{CallResult, Encoded, read_results};
use super::queue::ProcessQueue;
use super::waiter::Waiter;

/// The results of the calls of a batch, in their order.
pub type BatchResults = Vec<Result<CallResult, RpcError>>;

/// A batch that waits for a process or runs in it.
pub trait ProcessBatch: Debug {
    /// Begins the batch: drops the calls that have ended. Returns how many are left.
    fn begin(&mut self) -> usize;

    /// The number of its calls, once it has begun.
    fn calls(&self) -> usize;

    /// What its process gets.
    fn message(&self) -> Encoded<'_>;

    /// How long it may run in its process, once that has begun it.
    fn timeout(&self) -> Option<Duration>;

    /// Whether it may begin once more; not again after that.
    fn take_repetition(&mut self) -> bool;

    /// Passes on the results of its calls, which are as many.
    fn finish(self: Box<Self>, results: BatchResults);
}

/// Fails all calls of a batch. Returns how many they are.
pub fn fail(mut batch: QueuedBatch, error: &RpcError) -> usize {
    batch.begin();
    let calls = batch.calls();
    batch.finish((0..calls).map(|_| Err(error.clone())).collect());
    calls
}

/// What runs the batches at the other end of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// A process, which runs one batch after another.
    Process,
    /// The host of the processes that all workers share (`forward.rs`). It limits the time of
    /// batches, and runs several at once.
    Host,
}

/// Why a process gets no more batches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ProcessEnd {
    /// The queue is closed.
    Closed,
    /// It has ended.
    Died,
    /// A batch ran longer than it may.
    DeadlinePassed,
    /// It has sent what is no message.
    Invalid,
    /// It could not start, for this reason.
    Failed(String),
}

/// What a process leaves.
#[derive(Debug)]
pub struct Left {
    /// Why it gets no more batches.
    pub end: ProcessEnd,
    /// Whether it took batches before.
    pub was_ready: bool,
    /// The batches that it may have begun, of a process one. The others are in the queue again.
    pub begun: Vec<QueuedBatch>,
}

/// Serves a process until it ends, is to be killed, or the queue is closed. `exit` can be read when
/// the process has ended; its children may keep the socket open. `on_ready` is called when the
/// process takes batches.
pub fn serve_process(
    queue: &ProcessQueue<QueuedBatch>,
    process: usize,
    peer: Peer,
    socket: UnixStream,
    exit: Option<BorrowedFd<'_>>,
    on_ready: impl FnOnce(),
) -> Left {
    let mut running = VecDeque::new();
    let served = Server::new(socket, peer, on_ready).map(|mut server| {
        let end = server.serve(queue, process, exit, &mut running);
        (end, server.is_ready())
    });
    let (end, was_ready) = served.unwrap_or((Stopped::new(ProcessEnd::Died), false));
    let begun = match peer {
        Peer::Host => running.len(),
        Peer::Process if end.is_unread && running.len() == 1 => 0,
        Peer::Process => 1,
    };
    let mut batches = running.into_iter().map(|running| running.batch);
    let begun = batches.by_ref().take(begun).collect();
    queue.set_lost(process, batches.collect());
    Left { end: end.end, was_ready, begun }
}

/// A batch that was sent.
struct Running {
    number: u64,
    batch: QueuedBatch,
}

struct Stopped {
    end: ProcessEnd,
    /// Whether the process ended before it read the last message.
    is_unread: bool,
}

impl Stopped {
    fn new(end: ProcessEnd) -> Self {
        Self { end, is_unread: false }
    }
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        let end = match error.kind() {
            ErrorKind::InvalidData => ProcessEnd::Invalid,
            _ => ProcessEnd::Died,
        };
        let is_unread = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
        Self { end, is_unread }
    }
}

/// The server's side of one process.
struct Server<F> {
    link: ProcessLink,
    peer: Peer,
    /// Called once the process takes batches.
    on_ready: Option<F>,
    waiter: Waiter,
    /// The number of the last batch.
    number: u64,
    /// When the process could begin the batch that it runs.
    begun: Instant,
}

impl<F: FnOnce()> Server<F> {
    fn new(socket: UnixStream, peer: Peer, on_ready: F) -> io::Result<Self> {
        let (waiter, link) = (Waiter::new()?, ProcessLink::of_server(socket)?);
        let on_ready = Some(on_ready);
        Ok(Self { link, peer, on_ready, waiter, number: 0, begun: Instant::now() })
    }

    fn is_ready(&self) -> bool {
        self.on_ready.is_none()
    }

    fn serve(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        process: usize,
        exit: Option<BorrowedFd<'_>>,
        running: &mut VecDeque<Running>,
    ) -> Stopped {
        let mut has_ended = false;
        loop {
            let step = self
                .receive(queue, process, running)
                .and_then(|()| self.send(queue, process, running));
            if let Err(stopped) = step {
                return stopped;
            }
            if queue.is_closed() {
                return Stopped::new(ProcessEnd::Closed);
            }
            if has_ended {
                return Stopped::new(ProcessEnd::Died);
            }
            match self.wait(exit, running) {
                Ok(None) => return Stopped::new(ProcessEnd::DeadlinePassed),
                // Its last message may have arrived before.
                Ok(Some(ended)) => has_ended = ended,
                Err(error) => return error.into(),
            }
        }
    }

    /// Takes the messages that have arrived.
    fn receive(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        process: usize,
        running: &mut VecDeque<Running>,
    ) -> Result<(), Stopped> {
        while let Some((kind, number, message)) = self.link.receive()? {
            match kind {
                MessageKind::Ready if !self.is_ready() => {
                    queue.set_ready(process, self.waiter.wake().clone());
                    self.on_ready.take().into_iter().for_each(|on_ready| on_ready());
                }
                MessageKind::Failed if !self.is_ready() => {
                    let reason = String::from_utf8_lossy(&message).into_owned();
                    return Err(Stopped::new(ProcessEnd::Failed(reason)));
                }
                MessageKind::Results => {
                    let results = read_results(&message);
                    let results = results.map_err(|_| Stopped::new(ProcessEnd::Invalid))?;
                    let batch = take(running, number, results.len());
                    let batch = batch.ok_or_else(|| Stopped::new(ProcessEnd::Invalid))?;
                    // First, so that the next batch is assigned while these results are passed on.
                    queue.finished(process);
                    self.begun = Instant::now();
                    batch.finish(results);
                }
                _ => return Err(Stopped::new(ProcessEnd::Invalid)),
            }
        }
        Ok(())
    }

    /// Sends the batches that the process was assigned.
    fn send(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        process: usize,
        running: &mut VecDeque<Running>,
    ) -> Result<(), Stopped> {
        self.waiter.wake().take_notification();
        self.link.flush()?;
        while let Some(mut batch) = queue.take(process) {
            if batch.begin() == 0 {
                queue.finished(process);
                batch.finish(Vec::new());
                continue;
            }
            if running.is_empty() {
                self.begun = Instant::now();
            }
            self.number += 1;
            let number = self.number;
            running.push_back(Running { number, batch });
            if let Some(Running { batch, .. }) = running.back() {
                self.link.send(MessageKind::Batch, number, &batch.message())?;
            }
        }
        Ok(())
    }

    /// Waits until there may be something to do. Returns whether the process has ended; `None` if
    /// the deadline of the batch that it runs has passed.
    fn wait(
        &mut self,
        exit: Option<BorrowedFd<'_>>,
        running: &VecDeque<Running>,
    ) -> io::Result<Option<bool>> {
        let timeout = running.front().and_then(|running| running.batch.timeout());
        let timeout = timeout.filter(|_| self.peer == Peer::Process);
        let left = timeout.map(|timeout| {
            self.begun
                .checked_add(timeout)
                .map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()))
        });
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        self.waiter.wait(&self.link, exit, left).map(Some)
    }
}

/// Takes the batch with this number, if it has so many calls.
fn take(running: &mut VecDeque<Running>, number: u64, calls: usize) -> Option<QueuedBatch> {
    let is_it = |it: &Running| it.number == number && it.batch.calls() == calls;
    let index = running.iter().position(is_it)?;
    running.remove(index).map(|running| running.batch)
}
