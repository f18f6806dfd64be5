//! Serves one process on a thread of the server: sends it batches, and takes their results.
//!
//! A batch that was sent has not begun while the process runs another one, and may be taken back
//! until then. The next batch is formed and sent on this thread, once the results of one have come,
//! so that the process does not wait for a turn of the worker.

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
use super::semaphore::BatchSemaphore;
use super::times::{FunctionTimes, read_times};
use super::waiter::Waiter;
use crate::access_log::CallSource;

/// The results of the calls of a batch, in their order.
pub type BatchResults = Vec<Result<CallResult, RpcError>>;

/// A batch that waits for a process or runs in it.
pub trait ProcessBatch: Debug {
    /// Drops the calls that have ended, before the batch is sent. Returns how many are left.
    fn prepare(&mut self) -> usize;

    /// The number of its calls, once it is prepared.
    fn calls(&self) -> usize;

    /// What its process gets.
    fn message(&self) -> Encoded<'_>;

    /// How long it may run in its process, once that has begun it.
    fn timeout(&self) -> Option<Duration>;

    /// Whether it may begin once more; not again after that.
    fn take_repetition(&mut self) -> bool;

    /// Its process begins it.
    fn began(&mut self);

    /// Whether it should not begin as it is: a call of it has ended, or a more urgent one waits.
    fn is_outdated(&self) -> bool;

    /// Has its calls wait again: no process has begun it.
    fn put_back(self: Box<Self>);

    /// Has the next batch begin, as the process has ended this one.
    fn follow(&mut self);

    /// Passes on the results of its calls, which are as many.
    fn finish(self: Box<Self>, results: BatchResults);

    /// What the log says of its calls, once it is prepared; nothing of those of another worker.
    fn sources(&self) -> Vec<CallSource> {
        Vec::new()
    }

    /// Fails all its calls. Returns how many they are.
    fn fail(self: Box<Self>, error: &RpcError) -> usize;
}

/// What runs the batches at the other end of a link.
#[derive(Debug)]
pub enum Peer {
    /// A process, which runs one batch after another.
    Process(BatchSemaphore),
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
    /// The others, if the queue is closed.
    pub unbegun: Vec<QueuedBatch>,
}

/// Serves a process until it ends, is to be killed, or the queue is closed. `exit` can be read when
/// the process has ended; its children may keep the socket open. `on_ready` is called with the
/// times that the process has measured, once it takes batches.
pub fn serve_process(
    queue: &ProcessQueue<QueuedBatch>,
    process: usize,
    peer: Peer,
    socket: UnixStream,
    exit: Option<BorrowedFd<'_>>,
    on_ready: impl FnOnce(FunctionTimes),
) -> Left {
    let mut running = VecDeque::new();
    let Ok(mut server) = Server::new(socket, peer, on_ready) else {
        let unbegun = queue.set_lost(process, Vec::new());
        return Left { end: ProcessEnd::Died, was_ready: false, begun: Vec::new(), unbegun };
    };
    let end = match server.serve(queue, process, exit, &mut running) {
        // It has ended because of that.
        ProcessEnd::Died if queue.is_closed() => ProcessEnd::Closed,
        end => end,
    };
    let mut unbegun = VecDeque::new();
    while !running.is_empty() && server.peer.try_acquire() {
        unbegun.extend(running.pop_back());
    }
    let batches = unbegun.into_iter().rev().map(|sent| sent.batch);
    let unbegun = queue.set_lost(process, batches.collect());
    let begun = running.into_iter().map(|running| running.batch).collect();
    Left { end, was_ready: server.is_ready(), begun, unbegun }
}

impl Peer {
    /// Whether the newest batch that it has will not begin.
    fn try_acquire(&mut self) -> bool {
        match self {
            Self::Process(semaphore) => semaphore.try_acquire(),
            Self::Host => false,
        }
    }
}

/// A batch that was sent.
struct Running {
    number: u64,
    batch: QueuedBatch,
    has_begun: bool,
    /// Whether a host was told to give it back.
    is_recalled: bool,
}

impl From<io::Error> for ProcessEnd {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidData => Self::Invalid,
            _ => Self::Died,
        }
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

impl<F: FnOnce(FunctionTimes)> Server<F> {
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
    ) -> ProcessEnd {
        let mut has_ended = false;
        loop {
            let step = self
                .receive(queue, process, running)
                .and_then(|()| self.send(queue, process, running));
            if let Err(end) = step {
                return end;
            }
            if queue.is_closed() {
                return ProcessEnd::Closed;
            }
            if has_ended {
                return ProcessEnd::Died;
            }
            match self.wait(exit, running) {
                Ok(None) => return ProcessEnd::DeadlinePassed,
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
    ) -> Result<(), ProcessEnd> {
        // What has arrived is taken, also if no more can be sent.
        let mut sent = Ok(());
        while let Some((kind, number, message)) = self.link.receive()? {
            let is_host = matches!(self.peer, Peer::Host);
            match kind {
                MessageKind::Ready if !self.is_ready() => {
                    let times = read_times(&message).map_err(|_| ProcessEnd::Invalid)?;
                    let on_ready = self.on_ready.take();
                    // Calls may arrive as soon as all processes are known to be ready.
                    queue.set_ready(process, self.waiter.wake().clone());
                    if let Some(on_ready) = on_ready {
                        on_ready(times);
                    }
                }
                MessageKind::Failed if !self.is_ready() => {
                    let reason = String::from_utf8_lossy(&message).into_owned();
                    return Err(ProcessEnd::Failed(reason));
                }
                MessageKind::Results => {
                    let results = read_results(&message).map_err(|_| ProcessEnd::Invalid)?;
                    let batch = take(running, number, Some(results.len()));
                    let mut batch = batch.ok_or(ProcessEnd::Invalid)?;
                    if !is_host {
                        self.next_began(running);
                    }
                    batch.follow();
                    queue.finished(process);
                    // Before these results are passed on.
                    sent = sent.and_then(|()| self.send(queue, process, running));
                    batch.finish(results);
                }
                MessageKind::Began if is_host => {
                    let begun = running.iter_mut().find(|batch| batch.number == number);
                    begun.into_iter().for_each(Running::began);
                }
                MessageKind::Recalled if is_host => {
                    let batch = take(running, number, None).ok_or(ProcessEnd::Invalid)?;
                    queue.dropped(process);
                    batch.put_back();
                }
                _ => return Err(ProcessEnd::Invalid),
            }
        }
        sent
    }

    /// The process begins the oldest of its batches.
    fn next_began(&mut self, running: &mut VecDeque<Running>) {
        if let Some(next) = running.front_mut() {
            self.begun = Instant::now();
            next.began();
        }
    }

    /// Sends the batches that the process was assigned.
    fn send(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        process: usize,
        running: &mut VecDeque<Running>,
    ) -> Result<(), ProcessEnd> {
        self.waiter.wake().take_notification();
        self.link.flush()?;
        self.take_back(queue, process, running)?;
        while let Some(mut batch) = queue.take(process) {
            if batch.prepare() == 0 {
                batch.follow();
                queue.dropped(process);
                batch.finish(Vec::new());
                continue;
            }
            self.number += 1;
            let number = self.number;
            let sent = Running { number, batch, has_begun: false, is_recalled: false };
            running.push_back(sent);
            // Before it is sent: a batch that fails to be sent has not begun.
            if let Peer::Process(semaphore) = &mut self.peer {
                semaphore.defer();
            }
            if let Some(Running { batch, .. }) = running.back() {
                self.link.send(MessageKind::Batch, number, &batch.message())?;
            }
            if running.len() == 1 && matches!(self.peer, Peer::Process(_)) {
                self.next_began(running);
            }
        }
        // A batch of which a part waits here cannot begin.
        match &mut self.peer {
            Peer::Process(semaphore) if !self.link.has_output() => semaphore.post()?,
            _ => {}
        }
        Ok(())
    }

    /// Takes back the batches that should not begin.
    fn take_back(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        process: usize,
        running: &mut VecDeque<Running>,
    ) -> io::Result<()> {
        if matches!(self.peer, Peer::Host) {
            for sent in running.iter_mut() {
                if !sent.has_begun && !sent.is_recalled && sent.batch.is_outdated() {
                    sent.is_recalled = true;
                    self.link.send(MessageKind::Recall, sent.number, &Encoded::default())?;
                }
            }
            return Ok(());
        }
        let is_outdated = |sent: &Running| !sent.has_begun && sent.batch.is_outdated();
        while running.iter().any(is_outdated) || running.len() > 1 && queue.wants_back(process) {
            // The last one first, since the process begins the first one.
            if !self.peer.try_acquire() {
                break;
            }
            let Some(last) = running.pop_back() else { break };
            self.link.send(MessageKind::Recall, last.number, &Encoded::default())?;
            if last.batch.is_outdated() {
                queue.recalled(process);
                last.batch.put_back();
            } else {
                queue.give_back(process, last.batch);
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
        let timeout = timeout.filter(|_| matches!(self.peer, Peer::Process(_)));
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

impl Running {
    fn began(&mut self) {
        if !std::mem::replace(&mut self.has_begun, true) {
            self.batch.began();
        }
    }
}

/// Takes the batch with this number, if it has so many calls.
fn take(running: &mut VecDeque<Running>, number: u64, calls: Option<usize>) -> Option<QueuedBatch> {
    let has_calls = |it: &Running| calls.is_none_or(|calls| it.batch.calls() == calls);
    let is_it = |it: &Running| it.number == number && has_calls(it);
    let index = running.iter().position(is_it)?;
    running.remove(index).map(|running| running.batch)
}
