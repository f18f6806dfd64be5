//! A host that has the processes of several workers.

use super::*;

/// A host with one process, and the links of workers to it.
struct Host {
    queue: Arc<ProcessQueue<QueuedBatch>>,
    workers: Vec<thread::JoinHandle<()>>,
}

fn times() -> FunctionTimes {
    vec![vec![(1, LIMIT)], vec![(2, LIMIT), (4, LIMIT)]]
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
            serve_worker(&queue, theirs, &encode_times(&times()), &RpcError::new(1, "closed"))
                .unwrap();
        }));
        let (queue, ready) = (Arc::new(ProcessQueue::new(1, usize::MAX)), channel());
        let (sender, receiver) = ready;
        let serving = queue.clone();
        let thread = thread::spawn(move || {
            let ready = |times| {
                let _ = sender.send(times);
            };
            serve_process(&serving, 0, Peer::Host, ours, None, ready)
        });
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), times());
        (queue, thread)
    }

    /// Serves the process.
    fn process(&self, run: impl FnOnce(Sockets) + Send + 'static) -> thread::JoinHandle<Left> {
        let queue = self.queue.clone();
        thread::spawn(move || serve(&queue, run))
    }
}

/// A worker's link to a host.
fn ready_host(socket: UnixStream) -> ProcessLink {
    let mut link = ProcessLink::of_process(socket).unwrap();
    link.send(MessageKind::Ready, 0, &Encoded::default()).unwrap();
    link
}

fn echo_all(socket: Sockets) {
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
        link.begin().unwrap();
        let _ = link.begin();
    });
    let mut left = process.join().unwrap();
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::DeadlinePassed, 1));
    let mut batch = left.begun.pop().unwrap();
    assert!(batch.take_repetition() && !batch.take_repetition());
    assert_eq!(batch.fail(&RpcError::new(7, "late")), 1);
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
        let mut link = ready_host(theirs);
        (0..3).for_each(|_| assert_eq!(link.receive().unwrap().unwrap().0, MessageKind::Batch));
    });
    let left = serve_process(&queue, 0, Peer::Host, ours, None, |_| {});
    host.join().unwrap();
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::Died, 3));
}

#[test]
fn a_host_tells_why_a_worker_has_no_processes() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = thread::spawn(move || refuse_worker(theirs, "no device").unwrap());
    let left = serve_process(&queue(1), 0, Peer::Host, ours, None, |_| {});
    host.join().unwrap();
    assert_eq!(left.end, ProcessEnd::Failed("no device".to_owned()));
}

#[test]
fn a_worker_that_sends_no_batch_is_not_served() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let host = queue(1);
    let serving = thread::spawn(move || {
        serve_worker(&host, theirs, &[], &RpcError::new(1, "closed")).map_err(|error| error.kind())
    });
    let mut link = ProcessLink::of_server(ours).unwrap();
    link.send(MessageKind::Results, 1, &Encoded::default()).unwrap();
    assert_eq!(serving.join().unwrap(), Err(std::io::ErrorKind::InvalidData));
}

#[test]
fn a_worker_gets_a_batch_back_that_waits_in_the_host() {
    let mut host = Host::new(2);
    let (queue, worker) = host.worker();
    let [(one, of_one, _), (two, of_two, results)] = [1, 2].map(watched);
    queue.push(one).unwrap();
    queue.push(two).unwrap();
    while host.queue.waiting() < 2 {
        thread::yield_now();
    }
    of_one.is_outdated.store(true, Ordering::SeqCst);
    recall(&queue);
    wait_until(|| counts(&of_one) == [0, 1, 0]);
    let process = host.process(echo_all);
    assert_eq!(results.recv_timeout(LIMIT).unwrap().len(), 2);
    assert_eq!(counts(&of_two), [1, 0, 1], "the host says when it begins");
    queue.close();
    assert!(worker.join().unwrap().begun.is_empty());
    host.queue.close();
    process.join().unwrap();
}

/// The next message of a host, which is sent in time.
fn received(link: &mut ProcessLink) -> (MessageKind, u64) {
    let mut message = None;
    let began = Instant::now();
    while message.is_none() {
        assert!(began.elapsed() < LIMIT, "the host sends nothing");
        message = link.receive().unwrap();
    }
    message.map(|(kind, number, _)| (kind, number)).unwrap()
}

/// It may be next for another process again, as that of an idempotent function is.
#[test]
fn a_batch_whose_worker_knows_that_it_has_begun_is_not_recalled() {
    let host = Host::new(1);
    let (ours, theirs) = UnixStream::pair().unwrap();
    let queue = host.queue.clone();
    let serving =
        thread::spawn(move || serve_worker(&queue, theirs, &[], &RpcError::new(1, "closed")));
    let mut link = ProcessLink::of_server(ours).unwrap();
    assert_eq!(received(&mut link), (MessageKind::Ready, 0));
    let (end, ended) = channel();
    let process = host.process(move |socket| {
        ready(&socket).begin().unwrap();
        ended.recv().unwrap();
    });
    link.send(MessageKind::Batch, 1, &batch(1, 10).0.message()).unwrap();
    assert_eq!(received(&mut link), (MessageKind::Began, 1));
    // Sent before the worker has read that.
    link.send(MessageKind::Recall, 1, &Encoded::default()).unwrap();
    link.send(MessageKind::Batch, 2, &batch(2, 10).0.message()).unwrap();
    wait_until(|| host.queue.waiting() == 1);
    end.send(()).unwrap();
    let left = process.join().unwrap();
    assert_eq!(left.begun.len(), 1);
    assert!(host.queue.set_lost(0, left.begun).is_empty());
    recall(&host.queue);
    let process = host.process(echo_all);
    let replies: Vec<_> = (0..4).map(|_| received(&mut link)).collect();
    let results = replies.into_iter().filter(|(kind, _)| *kind != MessageKind::Began);
    let expected = [(MessageKind::Results, 1), (MessageKind::Results, 2)];
    assert_eq!(results.collect::<Vec<_>>(), expected);
    drop(link);
    serving.join().unwrap().unwrap();
    host.queue.close();
    process.join().unwrap();
}
