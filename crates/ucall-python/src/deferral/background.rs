//! Starts and ends the functions that run after the reply to their call.

use pyo3::prelude::*;
use ucall_server::Token;

use super::Deferral;
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::background::{BackgroundJob, BackgroundRecord, CallState, DueJob, JobKind};
use crate::calls::{Entry, EntryKind};
use crate::errors;
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::outcomes::DeferredOutcome;
use crate::pool::{Job, Work};
use crate::procedure::SharedProcedure;
use crate::timing::Timing;

impl Deferral {
    /// Has the jobs of a call run, which has its result now.
    pub(super) fn add_background(
        &mut self,
        timing: &Timing,
        procedure: &SharedProcedure,
        state: &CallState,
    ) {
        for job in state.take_jobs() {
            let (permit, metrics) = (self.calls.permit(), timing.metrics().cloned());
            let record = BackgroundRecord::new(&job.name, permit, metrics);
            let (procedure, turn_began) = (procedure.clone(), timing.turn_began());
            self.streams.push_job(DueJob { job, procedure, turn_began, record });
        }
    }

    /// Starts a job, in a later turn than that of its call's result.
    pub(crate) fn start_job(&mut self, py: Python<'_>, functions: &mut Functions, due: DueJob) {
        if due.turn_began == functions.timing.turn_began() {
            return self.streams.push_job(due);
        }
        let DueJob { job, procedure, record, .. } = due;
        let (kind, name) = (EntryKind::Background(record), job.name.clone());
        let token = self.insert_entry(&functions.timing, &procedure, kind);
        let started = match job.kind {
            JobKind::Plain => {
                self.submit(functions, Job { token, procedure, work: Work::Background(job) })
            }
            JobKind::Async | JobKind::Coroutine => self.start_job_task(py, &job, token),
        };
        if let Err(Failure::Raised(error)) = started {
            self.calls.remove(token);
            functions.report.log(|report| report.background_failed(py, &name, &error));
        }
    }

    fn start_job_task(
        &mut self,
        py: Python<'_>,
        job: &BackgroundJob,
        token: Token,
    ) -> Result<(), Failure> {
        let (work, variables) = (job.work.bind(py), job.variables.bind(py));
        let coroutine = match job.kind {
            JobKind::Coroutine => work.clone(),
            _ => run_in(variables, || work.call0())?,
        };
        let task = self.tasks(py)?.start(&coroutine, variables)?;
        self.watch_future(&task, token, true)?;
        if let Some(Entry { kind: EntryKind::Background(record), .. }) = self.calls.find(token) {
            record.task = Some(task.unbind());
        }
        Ok(())
    }

    /// Logs the failure of a job that has ended.
    pub(super) fn end_job(
        py: Python<'_>,
        functions: &mut Functions,
        record: &BackgroundRecord,
        outcome: DeferredOutcome,
    ) {
        // A thread has logged its own.
        let DeferredOutcome::Future(task) = outcome else { return };
        if let Err(error) = tasks::result_of(task.bind(py))
            && !errors::is_cancelled(py, &error)
        {
            functions.report.log(|report| report.background_failed(py, &record.name, &error));
        }
    }
}
