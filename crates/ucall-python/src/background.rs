//! `ctx.background`: functions that run after the reply to a call.
//!
//! The jobs of a call wait in its [`CallState`], which its context and the call's record share.
//! They are due when the call has its result, and start in the next turn, whose wait has sent the
//! reply. An async function runs as a task. A plain one runs in a thread of the pool, because no
//! caller waits for it, and on the worker's thread it would delay those of other calls. Each counts
//! as a running call, so a drain waits for it. `deferral/background.rs` starts and ends them.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use ucall_server::{CallMetrics, RunPermit};

use crate::ffi::variables::{copy_current, run_in};
use crate::interpreter_shutdown::run_untracked;
use crate::outcomes::Outcomes;
use crate::procedure::SharedProcedure;
use crate::report::Report;
use crate::streams::{ProgressTarget, Reports};

/// What a call's context and the record of the call share, on any thread.
#[derive(Default)]
pub(crate) struct CallState {
    cancelled: AtomicBool,
    jobs: Mutex<Jobs>,
    progress: ProgressTarget,
    /// The worker's, if hooks are around the function.
    outcomes: Option<Arc<Outcomes>>,
}

/// The jobs of a call.
#[derive(Default)]
enum Jobs {
    /// They wait for the end of the call.
    Waiting(Vec<BackgroundJob>),
    /// The call has failed or was cancelled: it runs none.
    Dropped,
    /// The call has ended, or there is none.
    #[default]
    Ended,
}

/// A function that runs after the reply.
pub(crate) struct BackgroundJob {
    /// A function without params, or a coroutine.
    pub(crate) work: Py<PyAny>,
    pub(crate) kind: JobKind,
    pub(crate) variables: Py<PyAny>,
    /// Its name and that of its call, for the log.
    pub(crate) name: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    Plain,
    Async,
    Coroutine,
}

/// A job whose call has its result.
pub(crate) struct DueJob {
    pub(crate) job: BackgroundJob,
    pub(crate) procedure: SharedProcedure,
    /// When the turn of the result began.
    pub(crate) turn_began: Instant,
    pub(crate) record: BackgroundRecord,
}

/// What a worker keeps of a job that is due or runs.
pub(crate) struct BackgroundRecord {
    pub(crate) name: String,
    /// Its task, if it has one.
    pub(crate) task: Option<Py<PyAny>>,
    _permit: RunPermit,
    _running: Option<RunningJob>,
}

impl BackgroundRecord {
    /// Counts a job as a running call.
    pub(crate) fn new(name: &str, permit: RunPermit, metrics: Option<Arc<CallMetrics>>) -> Self {
        let running = metrics.map(|metrics| {
            metrics.begin_call();
            RunningJob(metrics)
        });
        Self { name: name.to_owned(), task: None, _permit: permit, _running: running }
    }
}

/// Counts as a running call until it is dropped.
struct RunningJob(Arc<CallMetrics>);

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.0.end_call();
    }
}

impl CallState {
    /// Begins a call in a state that belongs to none.
    #[inline(always)]
    pub(crate) fn begin(&mut self, progress: ProgressTarget, outcomes: Option<Arc<Outcomes>>) {
        (self.progress, self.outcomes) = (progress, outcomes);
        *self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner) = Jobs::Waiting(Vec::new());
    }

    /// Resets the state if the call has no jobs, takes no reports and was not cancelled. Returns
    /// whether it did.
    #[inline]
    pub(crate) fn end_unused(&mut self) -> bool {
        let jobs = self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner);
        let is_unused = matches!(jobs, Jobs::Waiting(jobs) if jobs.is_empty())
            && matches!(self.progress, ProgressTarget::Nobody)
            && !*self.cancelled.get_mut();
        if is_unused {
            (*jobs, self.outcomes) = (Jobs::Ended, None);
        }
        is_unused
    }

    /// The worker's, if hooks are around the function.
    pub(crate) fn outcomes(&self) -> Option<&Outcomes> {
        self.outcomes.as_deref()
    }

    pub(crate) fn progress(&self) -> &ProgressTarget {
        &self.progress
    }

    /// What leaves before the reply, if the caller takes it.
    pub(crate) fn reports(&self) -> Option<&Reports> {
        match &self.progress {
            ProgressTarget::Caller(reports) | ProgressTarget::Notifications(reports) => {
                Some(reports)
            }
            ProgressTarget::Nobody | ProgressTarget::Items => None,
        }
    }

    /// The reports, if some wait for the worker.
    pub(crate) fn waiting_reports(&self) -> Option<&Reports> {
        self.reports().filter(|reports| reports.are_waiting())
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Cancels the call. Returns its jobs, which are to be closed.
    pub(crate) fn cancel(&self) -> Vec<BackgroundJob> {
        self.cancelled.store(true, Ordering::Relaxed);
        self.end_reports();
        self.drop_jobs()
    }

    /// Reports no progress from now on.
    pub(crate) fn end_reports(&self) {
        if let Some(reports) = self.reports() {
            reports.end();
        }
    }

    /// Takes the jobs of a call that has failed, which are to be closed.
    pub(crate) fn drop_jobs(&self) -> Vec<BackgroundJob> {
        match mem::replace(&mut *self.jobs(), Jobs::Dropped) {
            Jobs::Waiting(jobs) => jobs,
            Jobs::Dropped | Jobs::Ended => Vec::new(),
        }
    }

    /// Takes the jobs of a call that has its result.
    pub(crate) fn take_jobs(&self) -> Vec<BackgroundJob> {
        let mut jobs = self.jobs();
        match mem::take(&mut *jobs) {
            Jobs::Waiting(waiting) => waiting,
            Jobs::Dropped => {
                *jobs = Jobs::Dropped;
                Vec::new()
            }
            Jobs::Ended => Vec::new(),
        }
    }

    /// Adds a job: `function` with its arguments, or a coroutine.
    pub(crate) fn add_job(
        &self,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
        call: &str,
    ) -> PyResult<()> {
        let py = function.py();
        let prepare = py.import("ucall._server.background")?.getattr("prepare")?;
        let prepared = prepare.call1((function, args, kwargs))?;
        let (work, kind, name): (Py<PyAny>, String, String) = prepared.extract()?;
        let kind = match kind.as_str() {
            "coroutine" => JobKind::Coroutine,
            "async" => JobKind::Async,
            _ => JobKind::Plain,
        };
        let variables = copy_current(py)?.unbind();
        let name = format!("{name}, in the background of {call},");
        let job = BackgroundJob { work, kind, variables, name };
        match &mut *self.jobs() {
            Jobs::Waiting(jobs) => jobs.push(job),
            Jobs::Dropped => job.close(py),
            Jobs::Ended => {
                job.close(py);
                return Err(PyRuntimeError::new_err("background: the call has its reply already"));
            }
        }
        Ok(())
    }

    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BackgroundJob {
    /// Ends a job that does not run: Python would warn of a coroutine that was never awaited.
    pub(crate) fn close(&self, py: Python<'_>) {
        if self.kind == JobKind::Coroutine
            && let Err(error) = self.work.call_method0(py, "close")
        {
            error.write_unraisable(py, None);
        }
    }

    /// Runs a plain function, in a thread.
    pub(crate) fn run(&self, py: Python<'_>, report: &Report) {
        let ran = run_in(self.variables.bind(py), || run_untracked(py, || self.work.call0(py)));
        if let Err(error) = ran {
            // Ctrl-C interrupts the main thread only.
            let _ = report.background_failed(py, &self.name, &error);
        }
    }
}
