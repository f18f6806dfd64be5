//! Serves one process on a thread of the server: sends it batches, and takes their results.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::{WakeFlag, Wanted, wait_for_any};
use ucall_proto::RpcError;

use super::link::{MessageKind, ProcessLink};
use super::message::{CallResult, Encoded, SentCall, read_results};
use super::queue::ProcessQueue;

/// A batch that waits for a process or runs in it.
pub trait ProcessBatch {
    /// Begins the batch: drops the calls that have ended. Returns how many are left.
    fn begin(&mut self) -> usize;

    /// The index of its function.
    fn function(&self) -> usize;

    /// Its calls.
    fn calls(&self) -> Vec<SentCall<'_>>;

    /// Whether the parts of its calls are arrays alone.
    fn splits_arrays(&self) -> bool;

    /// How long it may run in its process, once that has begun it.
    fn timeout(&self) -> Option<Duration>;

    /// Passes on the results of its calls, which are as many.
    fn finish(self, results: Vec<Result<CallResult, RpcError>>);
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
pub struct Left<B> {
    /// Why it gets no more batches.
    pub end: ProcessEnd,
    /// Whether it took batches before.
    pub was_ready: bool,
    /// The batch that it may have begun. The others are in the queue again.
    pub begun: Option<B>,
}

/// Serves a process until it ends, is to be killed, or the queue is closed. `exit` can be read when
/// the process has ended; its children may keep the socket open. `on_ready` is called when the
/// process takes batches.
pub fn serve_process<B: ProcessBatch>(
    queue: &ProcessQueue<B>,
    process: usize,
    socket: UnixStream,
    exit: Option<BorrowedFd<'_>>,
    on_ready: impl FnOnce(),
) -> Left<B> {
    let mut running = VecDeque::new();
    let served = Server::new(socket, on_ready).map(|mut server| {
        let end = server.serve(queue, process, exit, &mut running);
        (end, server.is_ready())
    });
    let (end, was_ready) = served.unwrap_or((Stopped::new(ProcessEnd::Died), false));
    let begun = match end.is_unread && running.len() == 1 {
        true => None,
        false => running.pop_front(),
    };
    queue.set_lost(process, running.into());
    Left { end: end.end, was_ready, begun }
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
    /// Called once the process takes batches.
    on_ready: Option<F>,
    wake: Arc<WakeFlag>,
    /// Can be read when the thread was woken.
    woken: UnixStream,
    /// When the process could begin the batch that it runs.
    begun: Instant,
}

impl<F: FnOnce()> Server<F> {
    fn new(socket: UnixStream, on_ready: F) -> io::Result<Self> {
        let (waker, woken) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        // If its buffer is full, there is enough to read.
        let wake = Arc::new(WakeFlag::new(move || drop((&waker).write(&[0]))));
        let (link, on_ready) = (ProcessLink::of_server(socket)?, Some(on_ready));
        Ok(Self { link, on_ready, wake, woken, begun: Instant::now() })
    }

    fn is_ready(&self) -> bool {
        self.on_ready.is_none()
    }

    fn serve<B: ProcessBatch>(
        &mut self,
        queue: &ProcessQueue<B>,
        process: usize,
        exit: Option<BorrowedFd<'_>>,
        running: &mut VecDeque<B>,
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
            let timeout = running.front().and_then(B::timeout);
            match self.wait(exit, timeout.map(|timeout| self.begun + timeout)) {
                Ok(None) => return Stopped::new(ProcessEnd::DeadlinePassed),
                // Its last message may have arrived before.
                Ok(Some(ended)) => has_ended = ended,
                Err(error) => return error.into(),
            }
        }
    }

    /// Takes the messages that have arrived.
    fn receive<B: ProcessBatch>(
        &mut self,
        queue: &ProcessQueue<B>,
        process: usize,
        running: &mut VecDeque<B>,
    ) -> Result<(), Stopped> {
        while let Some((kind, message)) = self.link.receive()? {
            match kind {
                MessageKind::Ready if !self.is_ready() => {
                    queue.set_ready(process, self.wake.clone());
                    self.on_ready.take().into_iter().for_each(|on_ready| on_ready());
                }
                MessageKind::Failed if !self.is_ready() => {
                    let reason = String::from_utf8_lossy(&message).into_owned();
                    return Err(Stopped::new(ProcessEnd::Failed(reason)));
                }
                MessageKind::Results => {
                    let results = read_results(&message);
                    let results = results.map_err(|_| Stopped::new(ProcessEnd::Invalid))?;
                    let calls = running.front().map(|batch| batch.calls().len());
                    if calls != Some(results.len()) {
                        return Err(Stopped::new(ProcessEnd::Invalid));
                    }
                    // First, so that the next batch is assigned while these results are passed on.
                    queue.finished(process);
                    self.begun = Instant::now();
                    if let Some(batch) = running.pop_front() {
                        batch.finish(results);
                    }
                }
                _ => return Err(Stopped::new(ProcessEnd::Invalid)),
            }
        }
        Ok(())
    }

    /// Sends the batches that the process was assigned.
    fn send<B: ProcessBatch>(
        &mut self,
        queue: &ProcessQueue<B>,
        process: usize,
        running: &mut VecDeque<B>,
    ) -> Result<(), Stopped> {
        self.wake.take_notification();
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
            running.push_back(batch);
            if let Some(batch) = running.back() {
                let calls = batch.calls();
                let message = Encoded::batch(batch.function(), &calls, batch.splits_arrays());
                self.link.send(MessageKind::Batch, &message)?;
            }
        }
        Ok(())
    }

    /// Waits until there may be something to do. Returns whether the process has ended; `None` if
    /// the deadline has passed.
    fn wait(
        &mut self,
        exit: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> io::Result<Option<bool>> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(None);
        }
        if !self.wake.prepare_to_sleep() {
            return Ok(Some(false));
        }
        let wanted = |descriptor, writable| Wanted { descriptor, writable };
        let socket = wanted(self.link.socket(), self.link.has_output());
        let woken = wanted(self.woken.as_fd(), false);
        let (is_woken, has_ended) = match exit {
            Some(exit) => {
                let ready = wait_for_any([socket, woken, wanted(exit, false)], left)?;
                (ready[1], ready[2])
            }
            None => (wait_for_any([socket, woken], left)?[1], false),
        };
        self.wake.clear_sleeping();
        if is_woken {
            let _ = (&self.woken).read(&mut [0; 64]);
        }
        Ok(Some(has_ended))
    }
}
