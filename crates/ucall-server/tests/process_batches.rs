//! Serves processes that are threads of the test, over real sockets and shared memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use ucall_proto::{Parts, ResultFormat, ResultPart, RpcError};
use ucall_server::process_batches::{
    BatchHead, BatchResults, CallResult, Encoded, Left, MessageKind, Peer, ProcessBatch,
    ProcessEnd, ProcessLink, ProcessQueue, QueuedBatch, SentCall, fail, read_batch, refuse_worker,
    serve_process, serve_worker,
};

/// Longer than what goes through the socket.
const LARGE: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

/// Calls with a part each.
#[derive(Debug)]
struct Batch {
    parts: Vec<Parts>,
    head: BatchHead,
    results: Sender<BatchResults>,
}

impl ProcessBatch for Batch {
    fn begin(&mut self) -> usize {
        self.parts.len()
    }

    fn calls(&self) -> usize {
        self.parts.len()
    }

    fn message(&self) -> Encoded<'_> {
        let call = |parts| {
            let params = Some(&br#"[{"$part":0}]"#[..]);
            SentCall { params, parts: Some(parts), results: ResultFormat::Parts }
        };
        Encoded::batch(self.head, &self.parts.iter().map(call).collect::<Vec<_>>(), false)
    }

    fn timeout(&self) -> Option<Duration> {
        self.head.timeout
    }

    fn take_repetition(&mut self) -> bool {
        self.head.is_repeatable
    }

    fn finish(self: Box<Self>, results: BatchResults) {
        let _ = self.results.send(results);
    }
}

fn batch(calls: usize, bytes: usize) -> (Box<Batch>, Receiver<BatchResults>) {
    let (results, received) = channel();
    let part = |index| Parts::new(vec![index as u8; bytes], vec![(0..bytes, None)]);
    let parts = (0..calls).map(part).collect();
    let head = BatchHead { function: 3, ..BatchHead::default() };
    (Box::new(Batch { parts, head, results }), received)
}

/// Replies to a batch with its parts.
fn echo(link: &mut ProcessLink) -> Option<usize> {
    let (kind, number, message) = link.receive().ok()??;
    assert_eq!(kind, MessageKind::Batch);
    let result = |call: ucall_server::process_batches::ReceivedCall| {
        let parts = call.parts.unwrap();
        let bytes = Bytes::copy_from_slice(parts.get(0).unwrap().bytes);
        let parts = vec![ResultPart { tensor: None, bytes }];
        Ok(CallResult { text: call.params.unwrap(), parts })
    };
    let batch = read_batch(&message).unwrap();
    assert_eq!(batch.head.function, 3);
    let results: BatchResults = batch.calls.into_iter().map(result).collect();
    link.send(MessageKind::Results, number, &Encoded::results(&results)).ok()?;
    Some(results.len())
}

fn ready(socket: &UnixStream) -> ProcessLink {
    let mut link = ProcessLink::of_process(socket.try_clone().unwrap()).unwrap();
    link.send(MessageKind::Ready, 0, &Encoded::default()).unwrap();
    link
}

/// Serves a process that does `run`, until it has ended.
fn serve(
    queue: &Arc<ProcessQueue<QueuedBatch>>,
    run: impl FnOnce(UnixStream) + Send + 'static,
) -> Left {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = thread::spawn(move || run(theirs));
    let left = serve_process(queue, 0, Peer::Process, ours, None, || {});
    process.join().unwrap();
    left
}

fn queue(parallel: usize) -> Arc<ProcessQueue<QueuedBatch>> {
    Arc::new(ProcessQueue::new(1, parallel))
}

#[test]
fn batches_of_any_size_come_back() {
    let queue = queue(1);
    let sizes = [0, 1, 16 * 1024, LARGE, 16, 3 * LARGE];
    let all: Vec<_> = sizes.iter().map(|bytes| batch(3, *bytes)).collect();
    let received: Vec<_> = all
        .into_iter()
        .map(|(batch, received)| {
            assert!(queue.push(batch).is_ok());
            received
        })
        .collect();
    let left = serve(&queue, move |socket| {
        let mut link = ready(&socket);
        for _ in sizes {
            assert_eq!(echo(&mut link), Some(3));
        }
    });
    assert_eq!((left.end, left.was_ready), (ProcessEnd::Died, true));
    assert!(left.begun.is_empty());
    for (received, bytes) in received.iter().zip(sizes) {
        for (index, result) in received.recv_timeout(LIMIT).unwrap().into_iter().enumerate() {
            let result = result.unwrap();
            assert_eq!(result.text, &br#"[{"$part":0}]"#[..]);
            assert_eq!(result.parts[0].bytes, vec![index as u8; bytes]);
        }
    }
}

#[test]
fn the_next_batch_is_sent_while_one_runs() {
    let queue = queue(2);
    for calls in 1..4 {
        assert!(queue.push(batch(calls, LARGE).0).is_ok());
    }
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        let received = |link: &mut ProcessLink| link.receive().unwrap().unwrap();
        let [one, two] = [received(&mut link), received(&mut link)];
        assert_eq!([one.0, two.0], [MessageKind::Batch; 2]);
        assert_ne!(one.1, two.1);
    });
    assert_eq!(left.end, ProcessEnd::Died);
    assert_eq!(left.begun.iter().map(|it| it.calls()).collect::<Vec<_>>(), [1]);
    assert_eq!(queue.take_unserved().len(), 2, "the second one was not begun");
}

#[test]
fn a_batch_that_was_not_read_is_next_for_another_process() {
    let queue = queue(1);
    let (sent, mine) = batch(1, 10);
    assert!(queue.push(sent).is_ok());
    let left = serve(&queue, |socket| {
        ready(&socket);
        // The batch is in the socket.
        let wanted = ucall_engine::Wanted { descriptor: socket.as_fd(), writable: false };
        assert_eq!(ucall_engine::wait_for_any([wanted], Some(LIMIT)).unwrap(), [true]);
    });
    assert!(left.begun.is_empty() && left.end == ProcessEnd::Died);
    let left = serve(&queue, |socket| {
        assert_eq!(echo(&mut ready(&socket)), Some(1));
    });
    assert!(left.begun.is_empty());
    assert_eq!(mine.recv_timeout(LIMIT).unwrap().len(), 1);
}

#[test]
fn a_process_that_sends_no_message_is_to_be_killed() {
    let nonsense: [&[u8]; 5] = [
        b"hello\n",
        b"x",
        b"ucallmsX",
        &[0; 40],
        b"ucallmsg and a head that is none, of 48 bytes in all.",
    ];
    for bytes in nonsense {
        let queue = queue(1);
        assert!(queue.push(batch(1, 10).0).is_ok());
        let left = serve(&queue, move |socket| {
            let mut link = ready(&socket);
            link.receive().unwrap();
            (&socket).write_all(bytes).unwrap();
            // It ends when the server does not serve it any more.
            let _ = link.receive();
        });
        assert_eq!(left.end, ProcessEnd::Invalid, "{bytes:?}");
        assert!(left.begun.len() == 1);
    }
}

#[test]
fn a_process_that_replies_to_another_batch_is_to_be_killed() {
    let result = || Err(RpcError::new(1, "no"));
    for (kind, results) in [
        (MessageKind::Results, vec![result()]),
        (MessageKind::Results, vec![result(), result(), result()]),
        (MessageKind::Batch, vec![result(), result()]),
        (MessageKind::Ready, vec![]),
        (MessageKind::Failed, vec![]),
    ] {
        let queue = queue(1);
        assert!(queue.push(batch(2, 10).0).is_ok());
        let left = serve(&queue, move |socket| {
            let mut link = ready(&socket);
            link.receive().unwrap();
            link.send(kind, 1, &Encoded::results(&results)).unwrap();
            let _ = link.receive();
        });
        assert_eq!(left.end, ProcessEnd::Invalid, "{kind:?}");
    }
}

#[test]
fn a_process_tells_why_it_does_not_start() {
    let queue = queue(1);
    assert!(queue.push(batch(1, 10).0).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ProcessLink::of_process(socket).unwrap();
        link.send(MessageKind::Failed, 0, &Encoded::text(b"no model")).unwrap();
    });
    assert_eq!(left.end, ProcessEnd::Failed("no model".to_owned()));
    assert!(!left.was_ready && left.begun.is_empty());
    assert_eq!(queue.take_unserved().len(), 1);
}

#[test]
fn a_batch_that_runs_too_long_ends_the_service() {
    let queue = queue(1);
    let (mut late, _mine) = batch(1, 10);
    late.head.timeout = Some(Duration::from_millis(30));
    assert!(queue.push(late).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        link.receive().unwrap();
        let _ = link.receive();
    });
    assert_eq!(left.end, ProcessEnd::DeadlinePassed);
    assert!(left.begun.len() == 1);
}

#[test]
fn a_batch_has_its_time_from_when_its_process_can_begin_it() {
    let queue = queue(2);
    let (slow, first) = batch(1, 10);
    let (mut behind, second) = batch(1, 10);
    behind.head.timeout = Some(Duration::from_millis(300));
    assert!(queue.push(slow).is_ok() && queue.push(behind).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        thread::sleep(Duration::from_millis(500));
        echo(&mut link).unwrap();
        echo(&mut link).unwrap();
    });
    assert_eq!(left.end, ProcessEnd::Died, "it ended by itself");
    let results = [first, second].map(|it| it.recv_timeout(LIMIT).unwrap().len());
    assert_eq!(results, [1, 1]);
}

/// A child of the process may keep the socket open.
#[test]
fn the_end_of_a_process_is_noticed_behind_an_open_socket() {
    let queue = queue(1);
    let (sent, mine) = batch(1, 10);
    assert!(queue.push(sent).is_ok());
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (exit, process) = UnixStream::pair().unwrap();
    let kept = theirs.try_clone().unwrap();
    let running = thread::spawn(move || {
        echo(&mut ready(&theirs));
        drop(process);
    });
    let left = serve_process(&queue, 0, Peer::Process, ours, Some(exit.as_fd()), || {});
    running.join().unwrap();
    assert_eq!(left.end, ProcessEnd::Died);
    assert_eq!(mine.recv_timeout(LIMIT).unwrap().len(), 1, "its last results came before");
    drop(kept);
}

#[test]
fn a_closed_queue_ends_the_service() {
    let queue = queue(1);
    let ended = Arc::new(Mutex::new(()));
    let (closing, held) = (queue.clone(), ended.clone());
    let guard = ended.lock().unwrap();
    let closer = thread::spawn(move || {
        while closing.ready() == 0 {
            thread::yield_now();
        }
        closing.close();
    });
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = thread::spawn(move || {
        let _link = ready(&theirs);
        drop(held.lock());
    });
    assert_eq!(serve_process(&queue, 0, Peer::Process, ours, None, || {}).end, ProcessEnd::Closed);
    drop(guard);
    closer.join().unwrap();
    process.join().unwrap();
}

/// A host with one process, and the links of workers to it.
struct Host {
    queue: Arc<ProcessQueue<QueuedBatch>>,
    workers: Vec<thread::JoinHandle<()>>,
}

impl Host {
    fn new(parallel: usize) -> Self {
        Self { queue: queue(parallel), workers: Vec::new() }
    }

    /// A worker's queue of batches, which a thread serves until the host or the queue ends.
    fn worker(&mut self) -> (Arc<ProcessQueue<QueuedBatch>>, thread::JoinHandle<Left>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let queue = self.queue.clone();
        self.workers.push(thread::spawn(move || {
            serve_worker(&queue, theirs, &RpcError::new(1, "closed")).unwrap();
        }));
        let (queue, ready) = (Arc::new(ProcessQueue::new(1, usize::MAX)), channel());
        let (sender, receiver) = ready;
        let serving = queue.clone();
        let thread = thread::spawn(move || {
            let ready = || {
                let _ = sender.send(());
            };
            serve_process(&serving, 0, Peer::Host, ours, None, ready)
        });
        receiver.recv_timeout(LIMIT).unwrap();
        (queue, thread)
    }

    /// Serves the process.
    fn process(&self, run: impl FnOnce(UnixStream) + Send + 'static) -> thread::JoinHandle<Left> {
        let queue = self.queue.clone();
        thread::spawn(move || serve(&queue, run))
    }
}

fn echo_all(socket: UnixStream) {
    let mut link = ready(&socket);
    while echo(&mut link).is_some() {}
}

#[test]
fn workers_share_the_processes_of_a_host() {
    let mut host = Host::new(2);
    let process = host.process(echo_all);
    let workers = [host.worker(), host.worker()];
    let sizes = [0, LARGE, 16, 2 * LARGE];
    let sent: Vec<_> = sizes.iter().map(|bytes| (*bytes, batch(3, *bytes))).collect();
    let mut received = Vec::new();
    for (index, (bytes, (batch, results))) in sent.into_iter().enumerate() {
        workers[index % 2].0.push(batch).unwrap();
        received.push((bytes, results));
    }
    for (bytes, results) in received {
        for (index, result) in results.recv_timeout(LIMIT).unwrap().into_iter().enumerate() {
            assert_eq!(result.unwrap().parts[0].bytes, vec![index as u8; bytes]);
        }
    }
    for (queue, thread) in workers {
        queue.close();
        let left = thread.join().unwrap();
        assert_eq!((left.end, left.begun.len()), (ProcessEnd::Closed, 0));
    }
    host.workers.into_iter().for_each(|worker| worker.join().unwrap());
    host.queue.close();
    assert_eq!(process.join().unwrap().end, ProcessEnd::Closed);
}

#[test]
fn the_batches_of_a_worker_that_has_died_do_not_run() {
    let mut host = Host::new(1);
    let (dying, thread) = host.worker();
    let (other, serving) = host.worker();
    dying.push(batch(1, 10).0).unwrap();
    while host.queue.waiting() == 0 {
        thread::yield_now();
    }
    dying.close();
    thread.join().unwrap();
    host.workers.remove(0).join().unwrap();
    let (mine, results) = batch(2, 10);
    other.push(mine).unwrap();
    let process = host.process(|socket| {
        let mut link = ready(&socket);
        assert_eq!(echo(&mut link), Some(2), "that of the other worker");
        let _ = echo(&mut link);
    });
    assert_eq!(results.recv_timeout(LIMIT).unwrap().len(), 2);
    host.queue.close();
    process.join().unwrap();
    other.close();
    serving.join().unwrap();
}

#[test]
fn a_batch_keeps_its_time_and_its_repetition_in_the_host() {
    let mut host = Host::new(1);
    let (queue, worker) = host.worker();
    let (mut late, results) = batch(1, 10);
    late.head = BatchHead { timeout: Some(Duration::from_millis(30)), ..late.head };
    late.head.is_repeatable = true;
    queue.push(late).unwrap();
    let process = host.process(|socket| {
        let mut link = ready(&socket);
        link.receive().unwrap();
        let _ = link.receive();
    });
    let mut left = process.join().unwrap();
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::DeadlinePassed, 1));
    let mut batch = left.begun.pop().unwrap();
    assert!(batch.take_repetition() && !batch.take_repetition());
    assert_eq!(fail(batch, &RpcError::new(7, "late")), 1);
    let [Err(error)] = &results.recv_timeout(LIMIT).unwrap()[..] else { panic!("it failed") };
    assert_eq!((error.code, &error.message[..]), (7, "late"));
    queue.close();
    worker.join().unwrap();
}

#[test]
fn a_worker_whose_host_has_died_has_all_its_batches_back() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let queue = Arc::new(ProcessQueue::new(1, usize::MAX));
    (0..3).for_each(|_| queue.push(batch(1, 10).0 as QueuedBatch).unwrap());
    let host = thread::spawn(move || {
        let mut link = ready(&theirs);
        (0..3).for_each(|_| assert_eq!(link.receive().unwrap().unwrap().0, MessageKind::Batch));
    });
    let left = serve_process(&queue, 0, Peer::Host, ours, None, || {});
    host.join().unwrap();
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::Died, 3));
}

#[test]
fn a_host_tells_why_a_worker_has_no_processes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = thread::spawn(move || refuse_worker(theirs, "no device").unwrap());
    let left = serve_process(&queue(1), 0, Peer::Host, ours, None, || {});
    host.join().unwrap();
    assert_eq!(left.end, ProcessEnd::Failed("no device".to_owned()));
}

#[test]
fn a_worker_that_sends_no_batch_is_not_served() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = queue(1);
    let serving = thread::spawn(move || {
        serve_worker(&host, theirs, &RpcError::new(1, "closed")).map_err(|error| error.kind())
    });
    let mut link = ProcessLink::of_server(ours).unwrap();
    link.send(MessageKind::Results, 1, &Encoded::default()).unwrap();
    assert_eq!(serving.join().unwrap(), Err(std::io::ErrorKind::InvalidData));
}
