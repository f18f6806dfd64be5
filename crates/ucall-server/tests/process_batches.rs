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
    CallResult, Encoded, Left, MessageKind, ProcessBatch, ProcessEnd, ProcessLink, ProcessQueue,
    SentCall, read_batch, serve_process,
};

/// Longer than what goes through the socket.
const LARGE: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);

type Results = Vec<Result<CallResult, RpcError>>;

/// Calls with a part each.
struct Batch {
    parts: Vec<Parts>,
    timeout: Option<Duration>,
    results: Sender<Results>,
}

impl ProcessBatch for Batch {
    fn begin(&mut self) -> usize {
        self.parts.len()
    }

    fn function(&self) -> usize {
        3
    }

    fn calls(&self) -> Vec<SentCall<'_>> {
        let call = |parts| {
            let params = Some(&br#"[{"$part":0}]"#[..]);
            SentCall { params, parts: Some(parts), results: ResultFormat::Parts }
        };
        self.parts.iter().map(call).collect()
    }

    fn splits_arrays(&self) -> bool {
        false
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn finish(self, results: Results) {
        let _ = self.results.send(results);
    }
}

fn batch(calls: usize, bytes: usize) -> (Batch, Receiver<Results>) {
    let (results, received) = channel();
    let part = |index| Parts::new(vec![index as u8; bytes], vec![(0..bytes, None)]);
    let parts = (0..calls).map(part).collect();
    (Batch { parts, timeout: None, results }, received)
}

/// Replies to a batch with its parts.
fn echo(link: &mut ProcessLink) -> Option<usize> {
    let (kind, message) = link.receive().ok()??;
    assert_eq!(kind, MessageKind::Batch);
    let result = |call: ucall_server::process_batches::ReceivedCall| {
        let parts = call.parts.unwrap();
        let bytes = Bytes::copy_from_slice(parts.get(0).unwrap().bytes);
        let parts = vec![ResultPart { tensor: None, bytes }];
        Ok(CallResult { text: call.params.unwrap(), parts })
    };
    let batch = read_batch(&message).unwrap();
    assert_eq!(batch.function, 3);
    let results: Results = batch.calls.into_iter().map(result).collect();
    link.send(MessageKind::Results, &Encoded::results(&results)).ok()?;
    Some(results.len())
}

fn ready(socket: &UnixStream) -> ProcessLink {
    let mut link = ProcessLink::of_process(socket.try_clone().unwrap()).unwrap();
    link.send(MessageKind::Ready, &Encoded::default()).unwrap();
    link
}

/// Serves a process that does `run`, until it has ended.
fn serve(
    queue: &Arc<ProcessQueue<Batch>>,
    run: impl FnOnce(UnixStream) + Send + 'static,
) -> Left<Batch> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let process = thread::spawn(move || run(theirs));
    let left = serve_process(queue, 0, ours, None, || {});
    process.join().unwrap();
    left
}

fn queue(parallel: usize) -> Arc<ProcessQueue<Batch>> {
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
    assert!(left.begun.is_none());
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
    for _ in 0..3 {
        assert!(queue.push(batch(1, LARGE).0).is_ok());
    }
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        let received = |link: &mut ProcessLink| link.receive().unwrap().unwrap().0;
        assert_eq!([received(&mut link), received(&mut link)], [MessageKind::Batch; 2]);
    });
    assert_eq!(left.end, ProcessEnd::Died);
    assert!(left.begun.is_some());
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
    assert!(left.begun.is_none() && left.end == ProcessEnd::Died);
    let left = serve(&queue, |socket| {
        assert_eq!(echo(&mut ready(&socket)), Some(1));
    });
    assert!(left.begun.is_none());
    assert_eq!(mine.recv_timeout(LIMIT).unwrap().len(), 1);
}

#[test]
fn a_process_that_sends_no_message_is_to_be_killed() {
    let nonsense: [&[u8]; 5] =
        [b"hello\n", b"x", b"ucallmsX", &[0; 40], b"ucallmsg and a head that is none, of 40 bytes"];
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
        assert!(left.begun.is_some());
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
            link.send(kind, &Encoded::results(&results)).unwrap();
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
        link.send(MessageKind::Failed, &Encoded::text(b"no model")).unwrap();
    });
    assert_eq!(left.end, ProcessEnd::Failed("no model".to_owned()));
    assert!(!left.was_ready && left.begun.is_none());
    assert_eq!(queue.take_unserved().len(), 1);
}

#[test]
fn a_batch_that_runs_too_long_ends_the_service() {
    let queue = queue(1);
    let (mut late, _mine) = batch(1, 10);
    late.timeout = Some(Duration::from_millis(30));
    assert!(queue.push(late).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        link.receive().unwrap();
        let _ = link.receive();
    });
    assert_eq!(left.end, ProcessEnd::DeadlinePassed);
    assert!(left.begun.is_some());
}

#[test]
fn a_batch_has_its_time_from_when_its_process_can_begin_it() {
    let queue = queue(2);
    let (slow, first) = batch(1, 10);
    let (mut behind, second) = batch(1, 10);
    behind.timeout = Some(Duration::from_millis(300));
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
    let left = serve_process(&queue, 0, ours, Some(exit.as_fd()), || {});
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
    assert_eq!(serve_process(&queue, 0, ours, None, || {}).end, ProcessEnd::Closed);
    drop(guard);
    closer.join().unwrap();
    process.join().unwrap();
}
