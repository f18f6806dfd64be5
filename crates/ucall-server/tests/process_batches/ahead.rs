//! Batches that a process has while it runs another one.

use super::*;

#[test]
fn an_outdated_batch_is_taken_back_before_its_process_begins_it() {
    let queue = queue(2);
    let [(one, of_one, results), (two, of_two, _), (three, of_three, more)] =
        [1, 2, 3].map(watched);
    assert!(queue.push(one).is_ok() && queue.push(two).is_ok());
    let (recalling, outdated) = (queue.clone(), of_two.clone());
    let left = serve(&queue, move |socket| {
        let mut link = ready(&socket);
        let (number, message) = link.begin().unwrap();
        outdated.is_outdated.store(true, Ordering::SeqCst);
        recall(&recalling);
        wait_until(|| counts(&outdated) == [0, 1, 0]);
        assert!(recalling.push(three).is_ok());
        reply(&mut link, number, &message).unwrap();
        assert_eq!(echo(&mut link), Some(3), "the second one is lost");
    });
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::Died, 0));
    assert_eq!(
        [counts(&of_one), counts(&of_two), counts(&of_three)],
        [[1, 0, 1], [0, 1, 0], [1, 0, 1]]
    );
    assert_eq!([results, more].map(|it| it.recv_timeout(LIMIT).unwrap().len()), [1, 3]);
}

#[test]
fn a_batch_that_has_begun_is_not_taken_back() {
    let queue = queue(2);
    let [(one, of_one, _), (two, of_two, _)] = [1, 2].map(watched);
    assert!(queue.push(one).is_ok() && queue.push(two).is_ok());
    let (recalling, outdated) = (queue.clone(), [of_one.clone(), of_two.clone()]);
    let left = serve(&queue, move |socket| {
        let mut link = ready(&socket);
        let (number, message) = link.begin().unwrap();
        // The second one begins before the server has the results of the first one.
        let (second, _) = link.begin().unwrap();
        outdated.iter().for_each(|it| it.is_outdated.store(true, Ordering::SeqCst));
        recall(&recalling);
        reply(&mut link, number, &message).unwrap();
        wait_until(|| counts(&outdated[1])[0] == 1);
        assert_eq!(second, 2);
    });
    assert_eq!(left.begun.iter().map(|it| it.calls()).collect::<Vec<_>>(), [2]);
    assert_eq!([counts(&of_one), counts(&of_two)], [[1, 0, 1], [1, 0, 0]]);
}

#[test]
fn a_process_that_has_nothing_to_run_gets_what_another_has_in_hand() {
    let queue: Arc<ProcessQueue<QueuedBatch>> = Arc::new(ProcessQueue::new(2, 2));
    let [(one, _, first), (two, of_two, second)] = [1, 2].map(watched);
    assert!(queue.push(one).is_ok() && queue.push(two).is_ok());
    let (theirs, ours, peer) = sockets();
    let serving = queue.clone();
    let other_process = thread::spawn(move || serve_process(&serving, 1, peer, ours, None, |_| {}));
    let waiting = queue.clone();
    let left = serve(&queue, move |socket| {
        let mut link = ready(&socket);
        let (number, message) = link.begin().unwrap();
        let wanted = ucall_engine::Wanted { descriptor: socket.semaphore.as_fd(), writable: false };
        assert_eq!(ucall_engine::wait_for_any([wanted], Some(LIMIT)).unwrap(), [true]);
        let mut other = ready(&theirs);
        assert_eq!(echo(&mut other), Some(2));
        assert_eq!(second.recv_timeout(LIMIT).unwrap().len(), 2);
        reply(&mut link, number, &message).unwrap();
        assert_eq!(first.recv_timeout(LIMIT).unwrap().len(), 1);
        waiting.close();
    });
    assert_eq!((left.begun.len(), counts(&of_two)), (0, [1, 0, 1]));
    other_process.join().unwrap();
}

#[test]
fn a_closed_queue_leaves_its_batches() {
    let queue = queue(2);
    let (one, two) = (batch(1, 10).0, batch(2, 10).0);
    assert!(queue.push(one).is_ok() && queue.push(two).is_ok());
    let closing = queue.clone();
    let left = serve(&queue, move |socket| {
        let mut link = ready(&socket);
        link.begin().unwrap();
        let wanted = ucall_engine::Wanted { descriptor: socket.semaphore.as_fd(), writable: false };
        assert_eq!(ucall_engine::wait_for_any([wanted], Some(LIMIT)).unwrap(), [true]);
        assert!(closing.close().is_empty());
        let _ = link.begin();
    });
    // The process may have begun the second one when the server saw that the queue is closed.
    let calls = |batches: &[QueuedBatch]| batches.iter().map(|it| it.calls()).sum::<usize>();
    assert_eq!((left.end, calls(&left.begun) + calls(&left.unbegun)), (ProcessEnd::Closed, 3));
}

/// The process reads nothing more when its first results are on their way.
#[test]
fn results_are_kept_when_the_next_batch_cannot_be_sent() {
    let queue = queue(1);
    let [(one, of_one, results), (two, of_two, _)] = [1, 2].map(watched);
    assert!(queue.push(one).is_ok() && queue.push(two).is_ok());
    let left = serve(&queue, |socket| {
        let mut link = ready(&socket);
        let (number, message) = link.begin().unwrap();
        socket.link.shutdown(Shutdown::Read).unwrap();
        reply(&mut link, number, &message).unwrap();
        let _ = link.begin();
    });
    assert_eq!(results.recv_timeout(LIMIT).unwrap().len(), 1);
    assert_eq!((left.end, left.begun.len()), (ProcessEnd::Died, 0), "the second did not begin");
    assert_eq!([counts(&of_one), counts(&of_two)], [[1, 0, 1], [0, 0, 0]]);
    assert_eq!(queue.take_unserved().len(), 1, "it is next for another process");
}
