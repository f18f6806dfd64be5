//! Batches of worker processes, for processes that all workers of a server share.
//!
//! One process, the host, has the processes and their queue. Each worker has a link to it, through
//! which the host looks like one process that runs many batches at once ([`Peer::Host`]): it
//! forwards a batch as it is to the least busy process, and its results as they are. It says when a
//! batch begins, and gives back one that has not if its worker asks for that.
//!
//! [`Peer::Host`]: super::Peer

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use ucall_engine::WakeFlag;
use ucall_proto::RpcError;

use super::QueuedBatch;
use super::link::{MessageKind, ProcessLink};
use super::message::{BatchHead, Encoded, read_batch_head};
use super::queue::ProcessQueue;
use super::serve::{BatchResults, ProcessBatch};
use super::waiter::Waiter;

/// Passes the batches of a worker on to processes, and their results back, until the worker closes
/// its socket. `times` are the bytes of those that the processes have measured, `closed` is the
/// error of a batch that comes when the queue is closed.
///
/// # Errors
/// `InvalidData` if the worker has sent what is no batch.
pub fn serve_worker(
    queue: &ProcessQueue<QueuedBatch>,
    socket: UnixStream,
    times: &[u8],
    closed: &RpcError,
) -> io::Result<()> {
    let link = ProcessLink::of_process(socket).and_then(ProcessLink::never_block)?;
    let waiter = Waiter::new()?;
    let replies = Arc::new(Replies::new(waiter.wake().clone()));
    let mut worker = Worker { link, waiter, replies, recalled: HashMap::new() };
    let served = worker.serve(queue, times, closed);
    worker.replies.has_left.store(true, Ordering::Relaxed);
    recall(queue);
    match served.kind() {
        ErrorKind::InvalidData => Err(served),
        _ => Ok(()),
    }
}

/// Takes back the outdated batches that no process has begun.
pub fn recall(queue: &ProcessQueue<QueuedBatch>) {
    let outdated = queue.recall(|batch| batch.is_outdated());
    outdated.into_iter().for_each(|batch| batch.put_back());
}

/// Tells a worker why it cannot have the processes.
///
/// # Errors
/// The worker has closed its socket.
pub fn refuse_worker(socket: UnixStream, reason: &str) -> io::Result<()> {
    let mut link = ProcessLink::of_process(socket)?;
    link.send(MessageKind::Failed, 0, &Encoded::text(reason.as_bytes()))
}

struct Worker {
    link: ProcessLink,
    waiter: Waiter,
    replies: Arc<Replies>,
    /// By the numbers of its batches: whether it wants them back.
    recalled: HashMap<u64, Arc<AtomicBool>>,
}

impl Worker {
    fn serve(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        times: &[u8],
        closed: &RpcError,
    ) -> io::Error {
        let ready = self.link.send(MessageKind::Ready, 0, &Encoded::text(times));
        let mut step = ready;
        loop {
            step = step.and_then(|()| self.receive(queue, closed)).and_then(|()| self.send());
            step = step.and_then(|()| self.waiter.wait(&self.link, None, None).map(drop));
            if let Err(error) = step {
                return error;
            }
        }
    }

    /// Takes the batches that have arrived.
    fn receive(&mut self, queue: &ProcessQueue<QueuedBatch>, closed: &RpcError) -> io::Result<()> {
        while let Some((kind, number, message)) = self.link.receive()? {
            match kind {
                MessageKind::Batch => self.forward(queue, number, message, closed)?,
                MessageKind::Recall => {
                    // It may have ended meanwhile.
                    if let Some(is_recalled) = self.recalled.get(&number) {
                        is_recalled.store(true, Ordering::Relaxed);
                        recall(queue);
                    }
                }
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn forward(
        &mut self,
        queue: &ProcessQueue<QueuedBatch>,
        number: u64,
        message: Bytes,
        closed: &RpcError,
    ) -> io::Result<()> {
        let (head, calls) = read_batch_head(&message).map_err(|_| ErrorKind::InvalidData)?;
        let (replies, is_recalled) = (self.replies.clone(), Arc::new(AtomicBool::new(false)));
        self.recalled.insert(number, is_recalled.clone());
        let has_begun = false;
        let batch =
            ForwardedBatch { number, head, calls, message, replies, is_recalled, has_begun };
        if let Err(batch) = queue.push(Box::new(batch)) {
            batch.fail(closed);
        }
        Ok(())
    }

    /// Sends the replies that have arrived.
    fn send(&mut self) -> io::Result<()> {
        self.replies.wake.take_notification();
        self.link.flush()?;
        while let Some((number, reply)) = self.replies.take() {
            let empty = Encoded::default();
            match reply {
                Reply::Began => self.link.send(MessageKind::Began, number, &empty)?,
                Reply::Recalled => {
                    self.recalled.remove(&number);
                    self.link.send(MessageKind::Recalled, number, &empty)?;
                }
                Reply::Results(results) => {
                    self.recalled.remove(&number);
                    let results = Encoded::results(&results);
                    self.link.send(MessageKind::Results, number, &results)?;
                }
            }
        }
        Ok(())
    }
}

/// What a worker is told of a batch.
#[derive(Debug)]
enum Reply {
    Began,
    Recalled,
    Results(BatchResults),
}

/// The replies for one worker, each with the number of its batch.
#[derive(Debug)]
struct Replies {
    waiting: Mutex<VecDeque<(u64, Reply)>>,
    wake: Arc<WakeFlag>,
    has_left: AtomicBool,
}

impl Replies {
    fn new(wake: Arc<WakeFlag>) -> Self {
        Self { waiting: Mutex::default(), wake, has_left: AtomicBool::new(false) }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(u64, Reply)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(u64, Reply)> {
        self.waiting().pop_front()
    }

    fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    fn push(&self, number: u64, reply: Reply) {
        if !self.has_left() {
            self.waiting().push_back((number, reply));
            self.wake.notify();
        }
    }
}

/// A batch of a worker.
#[derive(Debug)]
struct ForwardedBatch {
    number: u64,
    head: BatchHead,
    calls: usize,
    message: Bytes,
    replies: Arc<Replies>,
    is_recalled: Arc<AtomicBool>,
    /// Whether its worker was told so. Then it no longer takes the batch back.
    has_begun: bool,
}

impl ProcessBatch for ForwardedBatch {
    fn prepare(&mut self) -> usize {
        self.calls
    }

    fn calls(&self) -> usize {
        self.calls
    }

    fn message(&self) -> Encoded<'_> {
        Encoded::received(&self.message)
    }

    fn timeout(&self) -> Option<Duration> {
        self.head.timeout
    }

    fn take_repetition(&mut self) -> bool {
        std::mem::take(&mut self.head.is_repeatable)
    }

    fn began(&mut self) {
        self.has_begun = true;
        self.replies.push(self.number, Reply::Began);
    }

    fn is_outdated(&self) -> bool {
        let is_recalled = !self.has_begun && self.is_recalled.load(Ordering::Relaxed);
        is_recalled || self.replies.has_left()
    }

    fn put_back(self: Box<Self>) {
        self.replies.push(self.number, Reply::Recalled);
    }

    fn follow(&mut self) {}

    fn finish(self: Box<Self>, results: BatchResults) {
        self.replies.push(self.number, Reply::Results(results));
    }

    fn fail(self: Box<Self>, error: &RpcError) -> usize {
        let calls = self.calls;
        self.finish((0..calls).map(|_| Err(error.clone())).collect());
        calls
    }
}
