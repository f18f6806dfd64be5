//! One queue of batches for several processes: the least busy one gets the next.
//!
//! A batch that no process can take waits here, so a process that is slow, starts or has died
//! delays only the batches that it has. A thread per process takes the batches that it was assigned
//! (`serve.rs`). A process runs one batch, and may have others in hand, which it gives back if
//! another one has none, or if all others have ended several meanwhile. What decides is a state
//! that tests move without threads.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ucall_engine::WakeFlag;

/// While a process runs one batch, it gets no more of others once it has given back so many. A
/// batcher limits the batches of one function of one worker; a process has those of several.
const RECALLS_MAX: usize = 3;
/// A process gives back what it has in hand once each process could have ended so many batches.
const ROUNDS_MAX: usize = 2;

/// Batches that wait for one of several processes.
#[derive(Debug)]
pub struct ProcessQueue<J>(Mutex<State<J>>);

#[derive(Debug)]
struct State<J> {
    waiting: VecDeque<J>,
    processes: Vec<Process<J>>,
    /// The batches that one process may have at once.
    parallel: usize,
    /// How many batches have ended.
    ended: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Process<J> {
    /// Wakes its thread; `None` until it is ready.
    wake: Option<Arc<WakeFlag>>,
    /// Those that its thread has not taken yet.
    assigned: VecDeque<J>,
    /// How many batches it has, with those.
    batches: usize,
    /// How many it has given back since it ended one.
    recalls: usize,
    /// How many batches had ended when it got its last one.
    ended_before: usize,
}

impl<J> ProcessQueue<J> {
    /// A queue for this many processes, each with at most `parallel` batches at once.
    pub fn new(processes: usize, parallel: usize) -> Self {
        let process = || Process {
            wake: None,
            assigned: VecDeque::new(),
            batches: 0,
            recalls: 0,
            ended_before: 0,
        };
        Self(Mutex::new(State {
            waiting: VecDeque::new(),
            processes: std::iter::repeat_with(process).take(processes).collect(),
            parallel,
            ended: 0,
            is_closed: false,
        }))
    }

    /// Adds a batch. Returns it if the queue is closed.
    ///
    /// # Errors
    /// The batch.
    pub fn push(&self, batch: J) -> Result<(), J> {
        let mut state = self.state();
        if state.is_closed {
            return Err(batch);
        }
        state.waiting.push_back(batch);
        state.assign();
        Ok(())
    }

    /// A process takes batches from now on, by the thread that `wake` wakes.
    pub fn set_ready(&self, process: usize, wake: Arc<WakeFlag>) {
        let mut state = self.state();
        if let Some(process) = state.processes.get_mut(process) {
            process.wake = Some(wake);
        }
        state.assign();
    }

    /// Wakes the threads of all processes, which take back what is outdated. Returns such batches
    /// that no thread has taken.
    pub fn recall(&self, is_outdated: impl Fn(&J) -> bool) -> Vec<J> {
        let mut state = self.state();
        let mut outdated = extract(&mut state.waiting, &is_outdated);
        for process in &mut state.processes {
            let assigned = extract(&mut process.assigned, &is_outdated);
            process.batches = process.batches.saturating_sub(assigned.len());
            outdated.extend(assigned);
            if let Some(wake) = &process.wake {
                wake.notify();
            }
        }
        state.assign();
        outdated
    }

    /// Whether a process is to give a batch back that it has in hand, as another one has none, or
    /// all others run more than it does.
    pub fn wants_back(&self, process: usize) -> bool {
        let state = self.state();
        let is_behind = |it: &Process<J>| it.batches > 1 && state.is_behind(it);
        state.has_one_for_another(process) || state.processes.get(process).is_some_and(is_behind)
    }

    /// A process has given a batch back, which it has not begun: the next one of the others.
    pub fn give_back(&self, process: usize, batch: J) {
        let mut state = self.state();
        let is_behind = state.processes.get(process).is_some_and(|it| state.is_behind(it));
        if let Some(process) = state.processes.get_mut(process) {
            process.batches = process.batches.saturating_sub(1);
            process.recalls += if is_behind { RECALLS_MAX } else { 1 };
        }
        state.waiting.push_front(batch);
        state.assign();
    }

    /// A process has given back a batch that is formed again.
    pub fn recalled(&self, process: usize) {
        let mut state = self.state();
        if let Some(process) = state.processes.get_mut(process) {
            process.batches = process.batches.saturating_sub(1);
            process.recalls += 1;
        }
        state.assign();
    }

    /// A process need not run one of its batches.
    pub fn dropped(&self, process: usize) {
        let mut state = self.state();
        if let Some(process) = state.processes.get_mut(process) {
            process.batches = process.batches.saturating_sub(1);
        }
        state.assign();
    }

    /// The next batch of a process. If another one has none meanwhile, that gets it.
    pub fn take(&self, process: usize) -> Option<J> {
        let mut state = self.state();
        while state.has_one_for_another(process) {
            let process = state.processes.get_mut(process)?;
            let batch = process.assigned.pop_front()?;
            process.batches = process.batches.saturating_sub(1);
            state.waiting.push_front(batch);
            state.assign();
        }
        state.processes.get_mut(process)?.assigned.pop_front()
    }

    /// A process has ended a batch.
    pub fn finished(&self, process: usize) {
        let mut state = self.state();
        state.ended += 1;
        if let Some(process) = state.processes.get_mut(process) {
            process.batches = process.batches.saturating_sub(1);
            process.recalls = 0;
        }
        state.assign();
    }

    /// A process has died or is killed. The batches that it has not begun, of which it had
    /// `unbegun`, are the next ones of the others. Returns them if the queue is closed.
    #[must_use]
    pub fn set_lost(&self, process: usize, unbegun: Vec<J>) -> Vec<J> {
        let mut state = self.state();
        let mut first: VecDeque<J> = unbegun.into();
        if let Some(process) = state.processes.get_mut(process) {
            (process.wake, process.batches, process.recalls) = (None, 0, 0);
            first.append(&mut process.assigned);
        }
        if state.is_closed {
            return first.into();
        }
        first.append(&mut state.waiting);
        state.waiting = first;
        state.assign();
        Vec::new()
    }

    /// Takes all batches that wait, if there is no process that will run them before another one
    /// has started.
    pub fn take_unserved(&self) -> Vec<J> {
        let mut state = self.state();
        match state.processes.iter().any(|process| process.wake.is_some()) {
            true => Vec::new(),
            false => state.waiting.drain(..).collect(),
        }
    }

    /// How many batches wait for a process.
    pub fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// How many processes take batches.
    pub fn ready(&self) -> usize {
        self.state().processes.iter().filter(|process| process.wake.is_some()).count()
    }

    /// Takes no batches from now on, and has all threads end. Returns the batches that wait.
    pub fn close(&self) -> Vec<J> {
        let mut state = self.state();
        state.is_closed = true;
        let mut left: Vec<J> = state.waiting.drain(..).collect();
        for process in &mut state.processes {
            left.extend(process.assigned.drain(..));
            if let Some(wake) = &process.wake {
                wake.notify();
            }
        }
        left
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    fn state(&self) -> MutexGuard<'_, State<J>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> Process<J> {
    fn is_idle(&self) -> bool {
        self.wake.is_some() && self.batches == 0
    }

    fn has_room(&self, parallel: usize) -> bool {
        let batches_max = if self.recalls < RECALLS_MAX { parallel } else { 1 };
        self.wake.is_some() && self.batches < batches_max
    }
}

impl<J> State<J> {
    fn has_idle(&self) -> bool {
        self.processes.iter().any(Process::is_idle)
    }

    /// Whether a process has more than it runs while another one has none.
    fn has_one_for_another(&self, process: usize) -> bool {
        let has_more = self.processes.get(process).is_some_and(|process| process.batches > 1);
        has_more && self.waiting.is_empty() && self.has_idle()
    }

    /// Whether the others have ended several batches each since a process got its last one.
    fn is_behind(&self, process: &Process<J>) -> bool {
        let ready = self.processes.iter().filter(|process| process.wake.is_some()).count();
        let ended = self.ended.saturating_sub(process.ended_before);
        ready > 1 && ended >= ROUNDS_MAX * ready
    }

    /// Assigns batches that wait to the processes that have fewest. Wakes a process that has more
    /// than it runs if another one has none then, and those that are behind.
    fn assign(&mut self) {
        while !self.waiting.is_empty() {
            let parallel = self.parallel;
            let free = self.processes.iter_mut().filter(|process| process.has_room(parallel));
            let Some(process) = free.min_by_key(|process| process.batches) else { break };
            let Some(batch) = self.waiting.pop_front() else { break };
            process.assigned.push_back(batch);
            process.batches += 1;
            process.ended_before = self.ended;
            if let Some(wake) = &process.wake {
                wake.notify();
            }
        }
        let ahead = || self.processes.iter().filter(|process| process.batches > 1);
        let is_wanted = self.waiting.is_empty() && self.has_idle();
        let busiest = ahead().max_by_key(|process| process.batches).filter(|_| is_wanted);
        let behind = ahead().filter(|process| self.is_behind(process));
        for wake in busiest.into_iter().chain(behind).filter_map(|process| process.wake.as_ref()) {
            wake.notify();
        }
    }
}

/// Removes those that are such.
fn extract<J>(from: &mut VecDeque<J>, is_such: impl Fn(&J) -> bool) -> Vec<J> {
    let (such, others) = from.drain(..).partition(is_such);
    *from = others;
    let such: VecDeque<J> = such;
    such.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake() -> Arc<WakeFlag> {
        Arc::new(WakeFlag::new(|| {}))
    }

    fn queue(processes: usize, parallel: usize) -> ProcessQueue<u32> {
        let queue = ProcessQueue::new(processes, parallel);
        (0..processes).for_each(|process| queue.set_ready(process, wake()));
        queue
    }

    #[test]
    fn the_least_busy_process_gets_the_next_batch() {
        let queue = queue(2, 2);
        for batch in 0..5 {
            queue.push(batch).unwrap();
        }
        let taken = |process| std::iter::from_fn(|| queue.take(process)).collect::<Vec<_>>();
        assert_eq!((taken(0), taken(1)), (vec![0, 2], vec![1, 3]), "the fifth waits");
        queue.finished(1);
        assert_eq!((taken(0), taken(1)), (vec![], vec![4]));
        queue.finished(0);
        queue.finished(0);
        queue.push(5).unwrap();
        queue.push(6).unwrap();
        assert_eq!((taken(0), taken(1)), (vec![5, 6], vec![]));
    }

    #[test]
    fn a_process_that_is_not_ready_gets_none() {
        let queue = ProcessQueue::new(2, 1);
        queue.push(1).unwrap();
        assert_eq!((queue.take(0), queue.ready()), (None, 0));
        queue.set_ready(1, wake());
        assert_eq!((queue.take(0), queue.take(1), queue.ready()), (None, Some(1), 1));
    }

    #[test]
    fn what_a_lost_process_has_not_begun_is_next_for_the_others() {
        let queue = queue(2, 2);
        for batch in 0..5 {
            queue.push(batch).unwrap();
        }
        assert_eq!((queue.take(0), queue.take(1)), (Some(0), Some(1)));
        assert_eq!(queue.take(0), Some(2));
        // The first has begun 0, and has 2 in its socket.
        assert!(queue.set_lost(0, vec![2]).is_empty());
        queue.finished(1);
        queue.finished(1);
        assert_eq!([queue.take(1), queue.take(1), queue.take(1)], [Some(3), Some(2), Some(4)]);
        assert_eq!((queue.take(0), queue.ready()), (None, 1));
    }

    #[test]
    fn batches_without_any_process_are_found_when_none_will_run_them() {
        let queue = ProcessQueue::new(2, 1);
        queue.push(1).unwrap();
        queue.set_ready(0, wake());
        queue.push(2).unwrap();
        assert_eq!(queue.take_unserved(), [0; 0], "the first process takes it next");
        assert!(queue.set_lost(0, vec![]).is_empty());
        assert_eq!(queue.take_unserved(), [1, 2]);
    }

    #[test]
    fn a_closed_queue_returns_its_batches() {
        let queue = queue(1, 1);
        queue.push(1).unwrap();
        queue.push(2).unwrap();
        assert_eq!(queue.close(), [2, 1]);
        assert_eq!(queue.push(3), Err(3));
        assert!(queue.is_closed());
        assert_eq!(queue.set_lost(0, vec![4]), [4], "nobody else will run it");
    }

    #[test]
    fn a_process_without_batches_gets_one_that_another_has_in_hand() {
        let queue = queue(2, 2);
        for batch in 0..3 {
            queue.push(batch).unwrap();
        }
        assert_eq!([queue.take(0), queue.take(1), queue.take(0)], [Some(0), Some(1), Some(2)]);
        assert!(!queue.wants_back(0), "both run one");
        queue.finished(1);
        assert!(queue.wants_back(0) && !queue.wants_back(1));
        queue.give_back(0, 2);
        assert_eq!((queue.take(1), queue.wants_back(0)), (Some(2), false));
    }

    #[test]
    fn a_process_without_batches_gets_one_that_the_thread_of_another_has_not_taken() {
        let queue = queue(2, 2);
        for batch in 0..3 {
            queue.push(batch).unwrap();
        }
        assert_eq!([queue.take(0), queue.take(1)], [Some(0), Some(1)]);
        queue.finished(1);
        assert_eq!([queue.take(0), queue.take(1)], [None, Some(2)]);
    }

    #[test]
    fn a_process_gives_back_what_the_others_would_have_run() {
        let queue = queue(2, 2);
        for batch in 0..3 {
            queue.push(batch).unwrap();
        }
        assert_eq!([queue.take(0), queue.take(1), queue.take(0)], [Some(0), Some(1), Some(2)]);
        queue.push(3).unwrap();
        for batch in 4..8 {
            assert!(!queue.wants_back(0));
            queue.push(batch).unwrap();
            queue.finished(1);
        }
        assert!(queue.wants_back(0) && !queue.wants_back(1), "the other one has ended four");
        queue.give_back(0, 2);
        queue.finished(1);
        let next = std::iter::from_fn(|| queue.take(1)).collect::<Vec<_>>();
        assert_eq!((next, queue.take(0)), (vec![3, 4, 5, 6, 7, 2], None));
        queue.finished(0);
        queue.push(8).unwrap();
        assert_eq!(queue.take(0), Some(8), "it has ended one");
    }

    #[test]
    fn a_process_that_ends_none_gets_few_batches_again() {
        let queue = queue(1, 2);
        queue.push(0).unwrap();
        for _ in 0..RECALLS_MAX {
            queue.push(1).unwrap();
            assert_eq!(std::iter::from_fn(|| queue.take(0)).last(), Some(1));
            queue.recalled(0);
        }
        queue.push(2).unwrap();
        assert_eq!((queue.take(0), queue.waiting()), (None, 1), "it runs one");
        queue.finished(0);
        assert_eq!((queue.take(0), queue.waiting()), (Some(2), 0));
        queue.push(3).unwrap();
        assert_eq!(queue.take(0), Some(3), "it has ended one");
    }

    #[test]
    fn outdated_batches_are_returned_and_those_of_threads_are_theirs() {
        let queue = queue(1, 2);
        for batch in 0..4 {
            queue.push(batch).unwrap();
        }
        assert_eq!(queue.take(0), Some(0));
        assert_eq!(queue.recall(|batch| batch % 2 == 0), [2]);
        assert_eq!((queue.take(0), queue.waiting()), (Some(1), 1));
        queue.finished(0);
        assert_eq!(queue.take(0), Some(3));
    }
}
