//! Serves processes that are threads of the test, over real sockets and shared memory.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panics"
)]

mod ahead;
mod hosts;

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Once};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use ucall_proto::{Parts, ResultFormat, ResultPart, RpcError};
use ucall_server::process_batches::{
    BatchHead, BatchResults, BatchSemaphore, CallResult, Encoded, FunctionTimes, Left, MessageKind,
    Peer, ProcessBatch, ProcessEnd, ProcessInbox, ProcessLink, ProcessQueue, QueuedBatch, SentCall,
    encode_times, read_batch, recall, refuse_worker, serve_process, serve_worker,
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
    events: Arc<Events>,
}

/// What happens to a batch, besides its results.
#[derive(Default, Debug)]
struct Events {
    is_outdated: AtomicBool,
    /// How often it began, was put back and was followed.
    began: AtomicUsize,
    put_back: AtomicUsize,
    followed: AtomicUsize,
}

fn count(counter: &AtomicUsize) {
    counter.fetch_add(1, Ordering::SeqCst);
}

impl ProcessBatch for Batch {
    fn prepare(&mut self) -> usize {
        self.parts.len()
    }

    fn calls(&self) -> usize {
        self.parts.len()
    }

    fn message(&self) -> Encoded<'_> {
        let call = |parts| {
            let params = Some(&br#"[{"$part":0}]"#[..]);
            let (parts, results) = (Some(parts), ResultFormat::Parts);
            SentCall { params, parts, results, origin: Vec::new() }
        };
        Encoded::batch(self.head, &self.parts.iter().map(call).collect::<Vec<_>>(), false)
    }

    fn timeout(&self) -> Option<Duration> {
        self.head.timeout
    }

    fn take_repetition(&mut self) -> bool {
        self.head.is_repeatable
    }

    fn began(&mut self) {
        count(&self.events.began);
    }

    fn is_outdated(&self) -> bool {
        self.events.is_outdated.load(Ordering::SeqCst)
    }

    fn put_back(self: Box<Self>) {
        count(&self.events.put_back);
    }

    fn follow(&mut self) {
        count(&self.events.followed);
    }

    fn finish(self: Box<Self>, results: BatchResults) {
        let _ = self.results.send(results);
    }

    fn fail(self: Box<Self>, error: &RpcError) -> usize {
        let calls = self.parts.len();
        self.finish((0..calls).map(|_| Err(error.clone())).collect());
        calls
    }
}

/// Ends the tests if one of them waits for ever for a batch.
fn limit_time() {
    static LIMITED: Once = Once::new();
    LIMITED.call_once(|| {
        thread::spawn(|| {
            thread::sleep(2 * LIMIT);
            eprintln!("a test waits for ever");
            std::process::abort();
        });
    });
}

fn batch(calls: usize, bytes: usize) -> (Box<Batch>, Receiver<BatchResults>) {
    limit_time();
    let (results, received) = channel();
    let part = |index| Parts::new(vec![index as u8; bytes], vec![(0..bytes, None)]);
    let parts = (0..calls).map(part).collect();
    let head = BatchHead { function: 3, ..BatchHead::default() };
    let events = Arc::default();
    (Box::new(Batch { parts, head, results, events }), received)
}

/// Replies to the next batch with its parts.
fn echo(inbox: &mut ProcessInbox) -> Option<usize> {
    let (number, message) = inbox.begin().ok()?;
    reply(inbox, number, &message)
}

fn reply(inbox: &mut ProcessInbox, number: u64, message: &Bytes) -> Option<usize> {
    let result = |call: ucall_server::process_batches::ReceivedCall| {
        let parts = call.parts.unwrap();
        let bytes = Bytes::copy_from_slice(parts.get(0).unwrap().bytes);
        let parts = vec![ResultPart { tensor: None, bytes }];
        Ok(CallResult { text: call.params.unwrap(), parts })
    };
    let batch = read_batch(message).unwrap();
    assert_eq!(batch.head.function, 3);
    let results: BatchResults = batch.calls.into_iter().map(result).collect();
    inbox.send(MessageKind::Results, number, &Encoded::results(&results)).ok()?;
    Some(results.len())
}

/// The sockets of a process: that of its link, and that which counts its batches.
struct Sockets {
    link: UnixStream,
    semaphore: UnixStream,
}

/// The sockets of a process, and of its server.
fn sockets() -> (Sockets, UnixStream, Peer) {
    let (ours, link) = UnixStream::pair().unwrap();
    let (poster, semaphore) = UnixStream::pair().unwrap();
    let acquirer = semaphore.try_clone().unwrap();
    let peer = Peer::Process(BatchSemaphore::new(poster, acquirer).unwrap());
    (Sockets { link, semaphore }, ours, peer)
}

fn ready(sockets: &Sockets) -> ProcessInbox {
    let [link, semaphore] = [&sockets.link, &sockets.semaphore].map(|it| it.try_clone().unwrap());
    let mut inbox = ProcessInbox::new(link, semaphore).unwrap();
    inbox.send(MessageKind::Ready, 0, &Encoded::default()).unwrap();
    inbox
}

/// Serves a process that does `run`, until it has ended.
fn serve(
    queue: &Arc<ProcessQueue<QueuedBatch>>,
    run: impl FnOnce(Sockets) + Send + 'static,
) -> Left {
    let (theirs, ours, peer) = sockets();
    let process = thread::spawn(move || run(theirs));
    let on_ready = |_| assert!(queue.ready() > 0, "it takes batches");
    let left = serve_process(queue, 0, peer, ours, None, on_ready);
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
        let (number, _) = link.begin().unwrap();
        // It comes without a word about the first one.
        let wanted = ucall_engine::Wanted { descriptor: socket.semaphore.as_fd(), writable: false };
        assert_eq!(ucall_engine::wait_for_any([wanted], Some(LIMIT)).unwrap(), [true]);
        assert_eq!(number, 1);
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
        let wanted = ucall_engine::Wanted { descriptor: socket.link.as_fd(), writable: false };
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
            link.begin().unwrap();
            (&socket.link).write_all(bytes).unwrap();
            // It ends when the server does not serve it any more.
            let _ = link.begin();
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
            link.begin().unwrap();
            link.send(kind, 1, &Encoded::results(&results)).unwrap();
            let _ = link.begin();
        });
        assert_eq!(left.end, ProcessEnd::Invalid, "{kind:?}");
    }
}

#[test]
fn a_process_tells_why_it_does_not_start() {
    let queue = queue(1);
    assert!(queue.push(batch(1, 10).0).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ProcessLink::of_process(socket.link).unwrap();
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
        link.begin().unwrap();
        let _ = link.begin();
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
    let (theirs, ours, peer) = sockets();
    let (exit, process) = UnixStream::pair().unwrap();
    let kept = theirs.link.try_clone().unwrap();
    let running = thread::spawn(move || {
        echo(&mut ready(&theirs));
        drop(process);
    });
    let left = serve_process(&queue, 0, peer, ours, Some(exit.as_fd()), |_| {});
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
    let (theirs, ours, peer) = sockets();
    let process = thread::spawn(move || {
        let _link = ready(&theirs);
        drop(held.lock());
    });
    assert_eq!(serve_process(&queue, 0, peer, ours, None, |_| {}).end, ProcessEnd::Closed);
    drop(guard);
    closer.join().unwrap();
    process.join().unwrap();
}

/// A batch with its events.
fn watched(calls: usize) -> (Box<Batch>, Arc<Events>, Receiver<BatchResults>) {
    let (batch, received) = batch(calls, 10);
    let events = batch.events.clone();
    (batch, events, received)
}

fn counts(events: &Events) -> [usize; 3] {
    [&events.began, &events.put_back, &events.followed].map(|it| it.load(Ordering::SeqCst))
}

fn wait_until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LIMIT, "it is not so");
        thread::yield_now();
    }
}
