//! The thread pool of one worker, for functions that block.
//!
//! The threads are Python threads. A call that finds none idle starts one, up to a limit; past it
//! calls wait in a queue. The thread also writes the result of a call, so the worker only sends it.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use smallvec::{SmallVec, smallvec};
use ucall_proto::{ResultFormat, RpcError};
use ucall_server::Token;

use crate::arguments::{self, Failure};
use crate::awaited_call::AwaitedCall;
use crate::background::BackgroundJob;
use crate::batch::{BatchCalls, BatchQueue};
use crate::batch_inputs::{BatchWriter, Group, Returned, run_inputs};
use crate::convert::Scratch;
use crate::errors;
use crate::ffi::DropAttached;
use crate::ffi::variables::{copy_current, run_in};
use crate::interpreter_shutdown::{self, run_tracked, run_untracked};
use crate::job_input::{Contents, JobInput};
use crate::job_queue::{JobQueue, Wake};
use crate::lock_request::LockRequest;
use crate::origin::{CallOrigin, FailedCalls};
use crate::outcomes::{DeferredOutcome, Outcomes, ResultText};
use crate::procedure::{Procedure, SharedProcedure};
use crate::read_ahead;
use crate::report::Report;
use crate::streams::{self, Generator, Stream};
use crate::waiting_limit::WaitingPermit;

/// Cancelled jobs in the queue before they are removed together.
const CANCELLED_JOBS_MAX: usize = 64;

thread_local! {
    static SERVER: Cell<Option<u64>> = const { Cell::new(None) };
}

/// The number of the server whose functions this thread runs, if it belongs to a pool.
pub(crate) fn server_of_this_thread() -> Option<u64> {
    SERVER.get()
}

/// The threads of one worker.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    /// The number of the server.
    server: u64,
    queue: JobQueue<Job>,
    threads: AtomicUsize,
    threads_max: usize,
    lock_request: Arc<LockRequest>,
    outcomes: Arc<Outcomes>,
    report: Arc<Report>,
    reply_bytes_max: usize,
}

/// A call or a batch to run in a thread.
pub(crate) struct Job {
    pub(crate) token: Token,
    pub(crate) procedure: SharedProcedure,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// One call.
    Call(Arc<JobInput>),
    Batch(Arc<BatchQueue>, BatchCalls),
    /// What a batch leaves to another thread.
    Beside(BesideBatch),
    /// A generator, of a call or of a batch.
    Stream {
        start: GeneratorStart,
        stream: Arc<Stream>,
    },
    /// A function that runs after the reply to its call.
    Background(BackgroundJob),
    /// A part of a call that an async hook awaits.
    Awaited {
        work: DropAttached<Py<PyAny>>,
        awaited: Arc<AwaitedCall>,
        permit: Option<WaitingPermit>,
    },
}

/// What another thread does while a batch runs: it writes the results of the batch before, and
/// reads calls that wait.
pub(crate) struct BesideBatch {
    queue: Arc<BatchQueue>,
    /// The first call of the batch.
    first: Token,
    since: Instant,
    returned: Option<Returned<Token>>,
}

/// How the calls of a job ended.
type Ended = SmallVec<[(Token, DeferredOutcome); 1]>;

/// What a generator function is called with.
pub(crate) enum GeneratorStart {
    Call(Arc<JobInput>),
    Batch(Group<Token>),
    /// The calls that wait for a slot.
    Slots,
}

impl Job {
    fn is_cancelled(&self) -> bool {
        match &self.work {
            Work::Call(input) | Work::Stream { start: GeneratorStart::Call(input), .. } => {
                input.is_empty()
            }
            Work::Awaited { awaited, .. } => awaited.is_cancelled(),
            Work::Batch(..) | Work::Beside(_) | Work::Stream { .. } | Work::Background(_) => false,
        }
    }
}

impl Pool {
    pub(crate) fn new(
        server: u64,
        threads_max: usize,
        outcomes: Arc<Outcomes>,
        report: Arc<Report>,
        reply_bytes_max: usize,
    ) -> Self {
        let (queue, lock_request) = (JobQueue::new(), Arc::default());
        let shared = Shared {
            server,
            queue,
            threads: AtomicUsize::new(0),
            threads_max,
            lock_request,
            outcomes,
            report,
            reply_bytes_max,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether `max` jobs of a function wait, of which `queued` are in the queue: beyond those that
    /// threads are about to take.
    pub(crate) fn is_full(&self, queued: usize, max: usize) -> bool {
        let (jobs, busy) = self.shared.queue.load();
        let free = self.shared.threads_max.saturating_sub(busy);
        jobs >= free && queued >= max.saturating_add(free)
    }

    /// Enqueues a job. At most `waiting` jobs are not cancelled. Returns whether a further thread
    /// is to be started.
    pub(crate) fn submit(&self, job: Job, waiting: usize) -> bool {
        let jobs_max = CANCELLED_JOBS_MAX + 2 * waiting;
        let is_short_of_threads = self.shared.queue.push(job, jobs_max, Job::is_cancelled);
        is_short_of_threads && self.threads() < self.shared.threads_max
    }

    /// By which the worker gets the interpreter's lock from the threads.
    pub(crate) fn lock_request(&self) -> &Arc<LockRequest> {
        &self.shared.lock_request
    }

    /// Starts a thread for the job that was submitted last. Raises if there is none and none can be
    /// started: the job is removed then.
    pub(crate) fn start_thread(&mut self, py: Python<'_>) -> PyResult<()> {
        match self.shared.start_thread(py) {
            Err(error) if self.threads() == 0 => {
                self.shared.queue.pop_last();
                Err(error)
            }
            // If there are others, they run the job.
            _ => Ok(()),
        }
    }

    fn threads(&self) -> usize {
        self.shared.threads.load(Ordering::Relaxed)
    }

    /// Runs a job in a thread that is not one of the limited number: it waits for calls for as long
    /// as the server runs.
    pub(crate) fn run_alone(&self, py: Python<'_>, job: Job) -> PyResult<()> {
        let name = format!("ucall-{}", job.procedure.name);
        self.shared.spawn_named(py, name, Some(job))
    }
}

impl Drop for Pool {
    /// Each thread ends after its current job.
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

impl Shared {
    /// Runs a job. Returns the outcomes to report.
    fn run(self: &Arc<Self>, py: Python<'_>, job: Job, scratch: &mut Scratch) -> Ended {
        let ended = (job.token, DeferredOutcome::ended());
        match job.work {
            Work::Call(input) => {
                // The input of a cancelled call is gone.
                let Some(contents) = input.take() else { return Ended::new() };
                let outcome = self.call(py, &job.procedure, contents, scratch);
                scratch.parts = None;
                smallvec![(job.token, outcome.into())]
            }
            Work::Stream { start, stream } => {
                if let Err(failure) = self.stream(py, start, &stream, scratch) {
                    let _ = stream.end(py, Err(failure));
                }
                if stream.has_entry() { smallvec![ended] } else { Ended::new() }
            }
            Work::Background(background) => {
                background.run(py, &self.report);
                smallvec![ended]
            }
            Work::Awaited { work, awaited, permit } => {
                drop(permit);
                if awaited.is_cancelled() {
                    return Ended::new();
                }
                awaited.keep(run_untracked(py, || work.call0(py)));
                smallvec![ended]
            }
            Work::Beside(beside) => {
                self.run_beside(py, beside, scratch);
                Ended::new()
            }
            Work::Batch(queue, calls) => self.run_batch(py, job.token, &queue, calls, scratch),
        }
    }

    /// Runs a batch, and those that follow at once.
    fn run_batch(
        self: &Arc<Self>,
        py: Python<'_>,
        token: Token,
        queue: &Arc<BatchQueue>,
        mut calls: BatchCalls,
        scratch: &mut Scratch,
    ) -> Ended {
        loop {
            let (ended, next) = self.run_one_batch(py, token, queue, calls, scratch);
            let Some(next) = next else { return ended };
            self.report(ended);
            calls = next;
        }
    }

    /// Runs a batch. If another one is due when the function has returned, returns that if another
    /// thread writes the results of this one, and otherwise enqueues it. If none is due, tells the
    /// worker that this one has ended.
    fn run_one_batch(
        self: &Arc<Self>,
        py: Python<'_>,
        token: Token,
        queue: &Arc<BatchQueue>,
        calls: BatchCalls,
        scratch: &mut Scratch,
    ) -> (Ended, Option<BatchCalls>) {
        let Some(first) = calls.first() else { return (Ended::new(), None) };
        let mut writer = BatchWriter::new(&self.report, &queue.procedure, self.reply_bytes_max);
        if calls.reads_ahead {
            self.ensure_second_thread(py);
            let _ = self.push_beside(token, queue, first, None);
        }
        let (is_single, mut more, mut following) = (calls.len() == 1, Ended::new(), None);
        let on_return = |writer: &mut BatchWriter<'_>, mut returned: Option<Returned<Token>>| {
            let (unmeetable, next) = queue.follow(first);
            more.extend(unmeetable.into_iter().map(|(call, error)| (call, Err(error).into())));
            match next {
                Some(mut calls) if self.leave_results(py, token, queue, &calls, &mut returned) => {
                    calls.reads_ahead = false;
                    following = Some(calls);
                }
                Some(calls) => {
                    let (procedure, work) =
                        (queue.procedure.clone(), Work::Batch(queue.clone(), calls));
                    self.queue.put_back(Job { token, procedure, work });
                }
                None if is_single => more.push((token, DeferredOutcome::ended())),
                // It wakes while the results are written.
                None => self.outcomes.send(token, DeferredOutcome::ended()),
            }
            writer.written_of(py, returned)
        };
        let outcomes = run_inputs(py, &mut writer, calls.take(), scratch, on_return);
        let outcomes = outcomes.into_iter().map(|(token, written)| (token, written.into()));
        (outcomes.chain(more).collect(), following)
    }

    /// Leaves the results of a batch to another thread, if the batch that follows may run before
    /// they are written and cannot change them, and no other job or thread is kept waiting. Returns
    /// whether it did.
    fn leave_results(
        &self,
        py: Python<'_>,
        token: Token,
        queue: &Arc<BatchQueue>,
        next: &BatchCalls,
        returned: &mut Option<Returned<Token>>,
    ) -> bool {
        let Some(first) = next.first().filter(|_| next.precedes_results) else { return false };
        // A child that has reported nothing yet would run the batch, too.
        self.outcomes.end_child();
        let is_unshared = || returned.as_ref().is_some_and(|returned| returned.is_unshared(py));
        if self.lock_request.is_made() || !is_unshared() {
            return false;
        }
        *returned = self.push_beside(token, queue, first, returned.take());
        returned.is_none()
    }

    /// Has another thread work beside the batch whose first call this is, if a thread is idle.
    /// Returns the results that it does not write.
    fn push_beside(
        &self,
        token: Token,
        queue: &Arc<BatchQueue>,
        first: Token,
        returned: Option<Returned<Token>>,
    ) -> Option<Returned<Token>> {
        let (queue, since) = (queue.clone(), Instant::now());
        let procedure = queue.procedure.clone();
        let work = Work::Beside(BesideBatch { queue, first, since, returned });
        match self.queue.push_if_idle(Job { token, procedure, work }) {
            Err(Job { work: Work::Beside(beside), .. }) => beside.returned,
            _ => None,
        }
    }

    fn run_beside(&self, py: Python<'_>, beside: BesideBatch, scratch: &mut Scratch) {
        let BesideBatch { queue, first, since, returned } = beside;
        let is_running = queue.got_lock(first, since.elapsed());
        let mut writer = BatchWriter::new(&self.report, &queue.procedure, self.reply_bytes_max);
        let outcomes = writer.written_of(py, returned);
        self.report(outcomes.into_iter().map(|(token, it)| (token, it.into())).collect());
        if is_running {
            let read = read_ahead::read(py, &queue.procedure, queue.unread(), scratch);
            drop(queue.keep_read(read));
        }
    }

    /// Starts a thread that works beside batches, if this one is alone.
    fn ensure_second_thread(self: &Arc<Self>, py: Python<'_>) {
        if self.threads.load(Ordering::Relaxed) == 1 {
            // Without it, this thread does all.
            let _ = self.start_thread(py);
        }
    }

    /// Starts a thread without waiting for it, as `threading.Thread.start` would: a hundred of
    /// these waits would delay the calls of this turn. The program does not join the threads when
    /// it ends, as the drain has waited for their calls; see `interpreter_shutdown`. Starts none
    /// beyond the limit.
    fn start_thread(self: &Arc<Self>, py: Python<'_>) -> PyResult<()> {
        let more = |threads| (threads < self.threads_max).then_some(threads + 1);
        let counted = self.threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        // Otherwise a batch and the worker have started a thread at once.
        let Ok(before) = counted else { return Ok(()) };
        let started = self.spawn_named(py, format!("ucall-thread-{}", before + 1), None);
        if started.is_err() {
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        started
    }

    fn spawn_named(
        self: &Arc<Self>,
        py: Python<'_>,
        name: String,
        own: Option<Job>,
    ) -> PyResult<()> {
        interpreter_shutdown::register_process();
        let thread = PoolThread { shared: self.clone(), name, own: Mutex::new(own) };
        let start = py.import("_thread")?.getattr("start_new_thread")?;
        start.call1((Bound::new(py, thread)?, ())).map(drop)
    }

    fn report(&self, outcomes: Ended) {
        if !outcomes.is_empty() {
            self.outcomes.send_all(outcomes);
        }
    }

    /// Runs a generator from its first step to its end.
    fn stream(
        &self,
        py: Python<'_>,
        start: GeneratorStart,
        stream: &Arc<Stream>,
        scratch: &mut Scratch,
    ) -> Result<(), Failure> {
        let (procedure, mut variables) = (&stream.procedure, copy_current(py)?);
        let generator = match start {
            GeneratorStart::Call(input) => {
                // The input of a cancelled call is gone.
                let Some(contents) = input.take() else { return Ok(()) };
                variables = contents.variables(py)?;
                let Contents { params, binary, context, waiting, permit, _reserved, .. } = contents;
                drop((waiting, permit));
                let context = context.map(|it| it.into_object(py)).transpose()?;
                scratch.parts = binary.and_then(|binary| binary.parts);
                let call = || arguments::call(py, procedure, params.as_deref(), context, scratch);
                let generator = run_in(&variables, || run_untracked(py, call));
                scratch.parts = None;
                generator
            }
            GeneratorStart::Batch(group) => {
                let call = || Ok(group.call(py, procedure)?);
                run_in(&variables, || run_untracked(py, call))
            }
            GeneratorStart::Slots => {
                let begin = || {
                    let Some(slots) = stream.begin_run(py)? else { return Ok(None) };
                    streams::start_generator(py, procedure, slots.bind(py)).map(Some)
                };
                let begun = run_in(&variables, || run_untracked(py, begin));
                let Some(generator) = begun.transpose() else { return Ok(()) };
                generator
            }
        };
        let generator = generator.and_then(|generator| Generator::new(&generator, &variables));
        let result = generator.and_then(|generator| streams::iterate(py, stream, &generator));
        // Ctrl-C interrupts the main thread only.
        let _ = stream.end(py, result);
        Ok(())
    }

    fn call(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        contents: Contents,
        scratch: &mut Scratch,
    ) -> Result<ResultText, RpcError> {
        let Ok(variables) = contents.variables(py) else { return Err(errors::internal()) };
        let Contents { params, binary, context, waiting, permit, origin, _reserved, .. } = contents;
        drop((waiting, permit));
        let format = binary.as_ref().map(|binary| binary.results).unwrap_or_default();
        scratch.parts = binary.and_then(|binary| binary.parts);
        let mut outcome = Err(errors::internal());
        let ran = run_in(&variables, || {
            let context = context.map(|it| it.into_object(py)).transpose()?;
            let call = || arguments::call(py, procedure, params.as_deref(), context, scratch);
            outcome = run_untracked(py, call)
                .and_then(|result| self.written(procedure, &result, format))
                .map_err(|failure| self.failed(py, procedure, origin.as_deref(), failure));
            Ok(())
        });
        ran.map_err(|_: PyErr| errors::internal()).and(outcome)
    }

    fn written(
        &self,
        procedure: &Procedure,
        result: &Bound<'_, PyAny>,
        format: ResultFormat,
    ) -> Result<ResultText, Failure> {
        procedure.written(result, self.reply_bytes_max, format).map_err(Failure::Result)
    }

    fn failed(
        &self,
        py: Python<'_>,
        procedure: &Procedure,
        origin: Option<&CallOrigin>,
        failure: Failure,
    ) -> RpcError {
        // Ctrl-C interrupts the main thread only.
        let calls = FailedCalls::one(origin);
        self.report.fail(py, procedure, calls, failure, self.reply_bytes_max).0
    }
}

/// The function of a thread.
#[pyclass(frozen, module = "ucall._core")]
struct PoolThread {
    shared: Arc<Shared>,
    name: String,
    /// The only job of the thread; without one it takes those of the queue.
    own: Mutex<Option<Job>>,
}

#[pymethods]
impl PoolThread {
    fn __call__(&self, py: Python<'_>) -> PyResult<()> {
        SERVER.set(Some(self.shared.server));
        run_tracked(py, || self.set_thread_name(py))?;
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(job) = own {
            let mut scratch = Scratch::default();
            let ended = run_tracked(py, || self.shared.run(py, job, &mut scratch));
            self.shared.report(ended);
            return Ok(());
        }
        let (mut scratch, mut wake) = (Scratch::default(), Wake::Ready);
        let Shared { queue, lock_request, .. } = &*self.shared;
        let mut outcomes = Ended::new();
        while wake != Wake::Closed {
            if lock_request.is_made() {
                let outcomes = mem::take(&mut outcomes);
                py.detach(|| {
                    self.shared.report(outcomes);
                    lock_request.wait();
                });
            }
            // A thread that goes on keeps the lock.
            let job = queue.take(mem::replace(&mut wake, Wake::Ready));
            let ended = mem::take(&mut outcomes);
            match job {
                Some(job) => {
                    self.shared.report(ended);
                    outcomes = run_tracked(py, || self.shared.run(py, job, &mut scratch));
                    wake = Wake::Done;
                }
                None => {
                    wake = py.detach(|| {
                        self.shared.report(ended);
                        queue.wait()
                    });
                }
            }
        }
        Ok(())
    }
}

impl PoolThread {
    fn set_thread_name(&self, py: Python<'_>) -> PyResult<()> {
        let this = py.import("threading")?.call_method0("current_thread")?;
        this.setattr("name", &self.name)
    }
}
