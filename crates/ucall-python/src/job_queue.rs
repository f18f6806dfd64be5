//! The jobs that wait for a thread of a pool, and which of its threads are awake.
//!
//! A thread that a job wakes takes the interpreter's lock first and the job then, and only one
//! thread at a time is on its way there. So threads do not fight for the lock: while a function
//! holds it, its thread takes job after job, and when a function releases it, the next thread is
//! there, takes a job and wakes another one.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The jobs of one pool.
pub(crate) struct JobQueue<J> {
    state: Mutex<State<J>>,
    changed: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Threads that sleep, or have woken and have not asked for a job since.
    idle: usize,
    /// Those of them that sleep.
    asleep: usize,
    /// Threads that run a job.
    busy: usize,
    /// Whether a thread was woken and has not asked for a job since.
    is_waking: bool,
    is_closed: bool,
}

/// Why a thread goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wake {
    /// There was a job before it slept.
    Ready,
    /// It has run a job.
    Done,
    /// It was woken for a job, which another thread may take before.
    Woken,
    /// There will be no job.
    Closed,
}

impl<J> JobQueue<J> {
    pub(crate) fn new() -> Self {
        let jobs = VecDeque::new();
        let state = State { jobs, idle: 0, asleep: 0, busy: 0, is_waking: false, is_closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Enqueues a job, and wakes a thread unless one is waking. If more than `max` jobs wait, drops
    /// those that `is_cancelled` names first. Returns whether there are fewer idle threads than
    /// jobs.
    pub(crate) fn push(&self, job: J, max: usize, is_cancelled: impl Fn(&J) -> bool) -> bool {
        let mut state = self.state();
        let mut cancelled = VecDeque::new();
        if state.jobs.len() > max {
            let jobs = mem::take(&mut state.jobs);
            (cancelled, state.jobs) = jobs.into_iter().partition(is_cancelled);
        }
        state.jobs.push_back(job);
        let is_short_of_threads = state.jobs.len() > state.idle;
        self.wake_one(state);
        // They may have objects, which are dropped with the interpreter's lock: a thread that has
        // it may wait for the queue.
        drop(cancelled);
        is_short_of_threads
    }

    /// Enqueues a job of a thread that is about to ask for the next one.
    pub(crate) fn put_back(&self, job: J) {
        self.state().jobs.push_back(job);
    }

    /// Enqueues a job for a thread that sleeps, and wakes it.
    ///
    /// # Errors
    /// The job, if no thread sleeps or other jobs wait.
    pub(crate) fn push_if_idle(&self, job: J) -> Result<(), J> {
        let mut state = self.state();
        if state.asleep == 0 || state.is_waking || !state.jobs.is_empty() {
            return Err(job);
        }
        state.jobs.push_back(job);
        self.wake_one(state);
        Ok(())
    }

    /// Takes back the job that was enqueued last.
    pub(crate) fn pop_last(&self) -> Option<J> {
        self.state().jobs.pop_back()
    }

    /// Takes a job for a thread that goes on by `wake`. Wakes another thread if more jobs wait.
    pub(crate) fn take(&self, wake: Wake) -> Option<J> {
        let mut state = self.state();
        match wake {
            Wake::Woken => {
                state.is_waking = false;
                state.idle -= 1;
            }
            Wake::Done => state.busy -= 1,
            Wake::Ready | Wake::Closed => {}
        }
        let job = state.jobs.pop_front()?;
        state.busy += 1;
        self.wake_one(state);
        Some(job)
    }

    /// The jobs that wait, and the threads that run one.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.state();
        (state.jobs.len(), state.busy)
    }

    /// Sleeps until there is a job.
    pub(crate) fn wait(&self) -> Wake {
        let mut state = self.state();
        let mut wake = Wake::Ready;
        while state.jobs.is_empty() {
            match wake {
                Wake::Woken => state.is_waking = false,
                _ => state.idle += 1,
            }
            if state.is_closed {
                state.idle -= 1;
                return Wake::Closed;
            }
            state.asleep += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.asleep -= 1;
            wake = Wake::Woken;
        }
        wake
    }

    /// Ends the threads, each after the jobs that wait.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    fn wake_one(&self, mut state: MutexGuard<'_, State<J>>) {
        if state.begins_waking() {
            drop(state);
            self.changed.notify_one();
        }
    }

    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    /// Whether a thread is to be woken now; notes that.
    fn begins_waking(&mut self) -> bool {
        let wakes = !(self.jobs.is_empty() || self.asleep == 0 || self.is_waking);
        self.is_waking |= wakes;
        wakes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// A thread that sleeps once, and says why it went on.
    fn sleeper(queue: &Arc<JobQueue<u32>>) -> Receiver<Wake> {
        let (sender, woken) = channel();
        let (own, asleep) = (queue.clone(), queue.state().asleep + 1);
        thread::spawn(move || sender.send(own.wait()));
        while queue.state().asleep < asleep {
            thread::yield_now();
        }
        woken
    }

    fn push(queue: &JobQueue<u32>, job: u32) -> bool {
        queue.push(job, usize::MAX, |_| false)
    }

    #[test]
    fn jobs_are_taken_in_their_order() {
        let queue = JobQueue::new();
        for job in 0..3 {
            assert!(push(&queue, job), "no thread is asleep");
        }
        assert_eq!(queue.pop_last(), Some(2));
        assert_eq!(queue.wait(), Wake::Ready);
        assert_eq!((queue.take(Wake::Ready), queue.take(Wake::Ready)), (Some(0), Some(1)));
        assert_eq!(queue.take(Wake::Ready), None);
    }

    #[test]
    fn a_thread_is_busy_until_it_asks_for_another_job() {
        let queue = JobQueue::new();
        push(&queue, 1);
        push(&queue, 2);
        assert_eq!(queue.load(), (2, 0));
        assert_eq!(queue.take(Wake::Ready), Some(1));
        assert_eq!(queue.load(), (1, 1));
        assert_eq!(queue.take(Wake::Done), Some(2));
        assert_eq!((queue.load(), queue.take(Wake::Done)), ((0, 1), None));
        assert_eq!(queue.load(), (0, 0));
    }

    #[test]
    fn cancelled_jobs_are_dropped_above_the_limit() {
        let queue = JobQueue::new();
        for job in 0..4 {
            queue.push(job, 2, |job| *job < 2);
        }
        assert_eq!(queue.take(Wake::Ready), Some(2));
    }

    /// Waits until so many threads sleep.
    fn await_asleep(queue: &JobQueue<u32>, asleep: usize) {
        while queue.state().asleep != asleep {
            thread::yield_now();
        }
    }

    #[test]
    fn a_thread_is_woken_for_a_job_while_none_is_waking() {
        let mut state = JobQueue::new().state.into_inner().unwrap();
        state.jobs.push_back(1);
        assert!(!state.begins_waking(), "no thread sleeps");
        state.asleep = 2;
        assert!(state.begins_waking());
        assert!(!state.begins_waking(), "one is waking");
        state.is_waking = false;
        assert!(state.begins_waking());
        (state.is_waking, state.jobs) = (false, VecDeque::new());
        assert!(!state.begins_waking(), "no job waits");
    }

    #[test]
    fn a_job_beside_others_is_for_a_thread_that_sleeps() {
        let queue = Arc::new(JobQueue::new());
        assert_eq!(queue.push_if_idle(1), Err(1), "no thread sleeps");
        let woken = sleeper(&queue);
        queue.state().is_waking = true;
        assert_eq!(queue.push_if_idle(1), Err(1), "a thread wakes for another job");
        queue.state().is_waking = false;
        assert_eq!(queue.push_if_idle(1), Ok(()));
        assert_eq!(woken.recv_timeout(Duration::from_secs(60)), Ok(Wake::Woken));
        assert_eq!(queue.take(Wake::Woken), Some(1));
        let _asleep = sleeper(&queue);
        queue.put_back(2);
        assert_eq!(queue.push_if_idle(3), Err(3), "another job waits");
        queue.close();
    }

    #[test]
    fn one_thread_wakes_at_a_time() {
        let queue = Arc::new(JobQueue::new());
        let sleepers: Vec<_> = (0..3).map(|_| sleeper(&queue)).collect();
        assert!(!push(&queue, 1));
        await_asleep(&queue, 2);
        assert!(!push(&queue, 2) && !push(&queue, 3), "the one that has woken takes a job");
        assert!(push(&queue, 4), "four jobs for three threads");
        // A thread that was awake before does not wake others while one is waking.
        assert_eq!(queue.take(Wake::Ready), Some(1));
        assert!(queue.state().is_waking && queue.state().asleep == 2);
        // The one that was woken wakes the next one.
        for (job, asleep) in [(2, 1), (3, 0)] {
            assert_eq!(queue.take(Wake::Woken), Some(job));
            await_asleep(&queue, asleep);
        }
        assert_eq!(queue.take(Wake::Woken), Some(4));
        let woken = sleepers.iter().map(|it| it.recv_timeout(Duration::from_secs(60)));
        assert_eq!(woken.collect::<Vec<_>>(), vec![Ok(Wake::Woken); 3]);
        assert_eq!(queue.state().idle, 0);
    }

    #[test]
    fn a_thread_that_finds_no_job_lets_others_wake() {
        let queue = Arc::new(JobQueue::new());
        let sleepers: Vec<_> = (0..2).map(|_| sleeper(&queue)).collect();
        push(&queue, 1);
        await_asleep(&queue, 1);
        assert_eq!(queue.take(Wake::Ready), Some(1), "before the thread that was woken");
        assert_eq!(queue.take(Wake::Woken), None);
        assert!(!queue.state().is_waking);
        push(&queue, 2);
        await_asleep(&queue, 0);
        let woken = sleepers.iter().map(|it| it.recv_timeout(Duration::from_secs(60)));
        assert_eq!(woken.collect::<Vec<_>>(), vec![Ok(Wake::Woken); 2]);
    }

    #[test]
    fn the_end_wakes_all_threads() {
        let queue = Arc::new(JobQueue::new());
        let sleepers: Vec<_> = (0..3).map(|_| sleeper(&queue)).collect();
        queue.close();
        for woken in sleepers {
            assert_eq!(woken.recv_timeout(Duration::from_secs(60)), Ok(Wake::Closed));
        }
        push(&queue, 1);
        assert_eq!((queue.wait(), queue.take(Wake::Ready)), (Wake::Ready, Some(1)));
    }
}
