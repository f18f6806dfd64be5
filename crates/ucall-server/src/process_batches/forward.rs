//! Batches of worker processes, for processes that all workers of a server share.
//!
//! One process, the host, has the processes and their queue. Each worker has a link to it, through
//! which the host looks like one process that runs many batches at once ([`Peer::Host`]): it
//! forwards a batch as it is to the least busy process, and its results as they are.
//!
//! [`Peer::Host`]: super::Peer

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ucall_engine::WakeFlag;
use ucall_proto::RpcError;

use super::QueuedBatch;
use super::link::{MessageKind, ProcessLink};
use super::message::{BatchHead, Encoded, read_batch_head};
use super::queue::ProcessQueue;
use super::serve::{BatchResults, ProcessBatch, fail};
use super::waiter::Waiter;

/// Passes the batches of a worker on to processes, and their results back, until the worker closes
/// its socket. `closed` is the error of a batch that comes when the queue is closed.
///
/// # Errors
/// `InvalidData` if the worker has sent what is no batch.
pub fn serve_worker(
    queue: &ProcessQueue<QueuedBatch>,
    socket: UnixStream,
    closed: &RpcError,
) -> io::Result<()> {
    let link = ProcessLink::of_process(socket).and_then(ProcessLink::never_block)?;
    let waiter = Waiter::new()?;
    let replies = Arc::new(Replies::new(waiter.wake().clone()));
    let mut worker = Worker { link, waiter, replies };
    let served = worker.serve(queue, closed);
    worker.replies.has_left.store(true, Ordering::Relaxed);
    match served.kind() {
        ErrorKind::InvalidData => Err(served),
        _ => Ok(()),
    }
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
}

impl Worker {
    fn serve(&mut self, queue: &ProcessQueue<QueuedBatch>, closed: &RpcError) -> io::Error {
        let ready = self.link.send(MessageKind::Ready, 0, &Encoded::default());
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
            let head = read_batch_head(&message).ok().filter(|_| kind == MessageKind::Batch);
            let (head, calls) = head.ok_or(ErrorKind::InvalidData)?;
            let replies = self.replies.clone();
            let batch: QueuedBatch =
                Box::new(ForwardedBatch { number, head, calls, message, replies });
            if let Err(batch) = queue.push(batch) {
                fail(batch, closed);
            }
        }
        Ok(())
    }

    /// Sends the results that have arrived.
    fn send(&mut self) -> io::Result<()> {
        self.replies.wake.take_notification();
        self.link.flush()?;
        while let Some((number, results)) = self.replies.take() {
            self.link.send(MessageKind::Results, number, &Encoded::results(&results))?;
        }
        Ok(())
    }
}

/// The results for one worker.
#[derive(Debug)]
struct Replies {
    results: Mutex<VecDeque<(u64, BatchResults)>>,
    wake: Arc<WakeFlag>,
    has_left: AtomicBool,
}

impl Replies {
    fn new(wake: Arc<WakeFlag>) -> Self {
        Self { results: Mutex::default(), wake, has_left: AtomicBool::new(false) }
    }

    fn results(&self) -> MutexGuard<'_, VecDeque<(u64, BatchResults)>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<(u64, BatchResults)> {
        self.results().pop_front()
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
}

impl ProcessBatch for ForwardedBatch {
    fn begin(&mut self) -> usize {
        match self.replies.has_left.load(Ordering::Relaxed) {
            true => 0,
            false => self.calls,
        }
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

    fn finish(self: Box<Self>, results: BatchResults) {
        if !self.replies.has_left.load(Ordering::Relaxed) {
            self.replies.results().push_back((self.number, results));
            self.replies.wake.notify();
        }
    }
}
