//! Runs batches of calls, and reports the outcome of each call.

use std::collections::VecDeque;
use std::mem;

use pyo3::prelude::*;
use ucall_server::Token;

use super::Deferral;
use crate::asyncio::tasks;
use crate::batch::Batch;
use crate::batch_inputs::{BatchWriter, Group, GroupCall, Groups, TaskGroups, Written};
use crate::calls::{Entry, EntryKind};
use crate::contexts::Contexts;
use crate::convert::Scratch;
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::origin::FailedCalls;
use crate::outcomes::DeferredOutcome;
use crate::pool::{Job, Work};
use crate::procedure::{Executor, Procedure, SharedProcedure};
use crate::process_batches::SentBatch;
use crate::read_ahead::BatchInput;

impl Deferral {
    pub(super) fn run_batch(&mut self, functions: &mut Functions, batch: Batch) {
        let Batch { queue, calls } = batch;
        let (procedure, rules) = (queue.procedure.clone(), queue.rules);
        if procedure.in_processes.is_some() {
            let token = self.insert_entry(&functions.timing, &procedure, EntryKind::Batch);
            return SentBatch::submit(token, queue, calls, self.outcomes.clone());
        }
        if rules.executor == Executor::Thread && !rules.yields {
            let tokens = calls.tokens();
            let calls_failed = FailedCalls::of(None, tokens.len());
            let token = self.insert_entry(&functions.timing, &procedure, EntryKind::Batch);
            let job = Job { token, procedure: procedure.clone(), work: Work::Batch(queue, calls) };
            if let Err(failure) = self.submit(functions, job) {
                let error = functions.fail(&procedure, calls_failed, failure, usize::MAX);
                self.report_batch(tokens.into_iter().map(|token| (token, Err(error.clone()))));
                self.batches.finished(&procedure);
            }
            return;
        }
        let groups = self.read_groups(functions, &procedure, calls.take());
        match rules.executor {
            executor if rules.yields => {
                self.run_batch_streams(functions, &procedure, groups, executor);
            }
            Executor::Task => {
                let groups = TaskGroups { running: Vec::new(), following: groups };
                self.run_groups_in_tasks(functions, &procedure, groups);
            }
            _ => self.run_groups(functions, &procedure, groups),
        }
    }

    /// Reads the calls of a batch on this thread, and answers those that cannot be read.
    fn read_groups(
        &mut self,
        functions: &mut Functions,
        procedure: &Procedure,
        inputs: impl IntoIterator<Item = (Token, BatchInput)>,
    ) -> VecDeque<Group<Token>> {
        let py = functions.attach();
        let mut scratch = Scratch::default();
        let Groups { groups, failed } = self.with_writer(functions, procedure, |writer| {
            Groups::read(py, writer, inputs, &mut scratch)
        });
        self.report_batch(failed.into_iter());
        groups
    }

    /// Runs groups on this thread.
    fn run_groups(
        &mut self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        groups: VecDeque<Group<Token>>,
    ) {
        let py = functions.attach();
        for group in groups {
            let variables = functions.contexts.new_variables(py);
            let result = variables.and_then(|it| run_in(&it, || group.call(py, procedure)));
            functions.warn_if_slow(py, procedure);
            self.finish_group(py, functions, procedure, group.calls, result);
        }
        self.batches.finished(procedure);
    }

    /// Starts the task of the first group that can be started. The others follow.
    fn run_groups_in_tasks(
        &mut self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        mut groups: TaskGroups,
    ) {
        let py = functions.attach();
        while let Some(group) = groups.following.pop_front() {
            let task = match self.start_group(py, &functions.contexts, procedure, &group) {
                Ok(task) => task,
                Err(error) => {
                    self.finish_group(py, functions, procedure, group.calls, Err(error));
                    continue;
                }
            };
            groups.running = group.calls;
            let kind = EntryKind::BatchTask(groups);
            let token = self.insert_entry(&functions.timing, procedure, kind);
            let Err(error) = self.follow_future(&task, token, true) else { return };
            let Some(Entry { kind: EntryKind::BatchTask(left), .. }) = self.calls.remove(token)
            else {
                return;
            };
            groups = left;
            let calls = mem::take(&mut groups.running);
            self.finish_group(py, functions, procedure, calls, Err(error));
        }
        self.batches.finished(procedure);
    }

    fn start_group<'py>(
        &mut self,
        py: Python<'py>,
        contexts: &Contexts,
        procedure: &Procedure,
        group: &Group<Token>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let variables = contexts.new_variables(py)?;
        let coroutine = run_in(&variables, || group.call(py, procedure))?;
        self.tasks(py)?.start(&coroutine, &variables)
    }

    /// Ends the task of a group, and starts that of the next one.
    pub(super) fn finish_batch_task(
        &mut self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        mut groups: TaskGroups,
        outcome: DeferredOutcome,
    ) {
        let py = functions.attach();
        if let DeferredOutcome::Future(task) = outcome {
            let (calls, result) = (mem::take(&mut groups.running), tasks::result_of(task.bind(py)));
            self.finish_group(py, functions, procedure, calls, result);
        }
        self.run_groups_in_tasks(functions, procedure, groups);
    }

    /// Writes and reports the outcomes of a group.
    fn finish_group(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &Procedure,
        calls: Vec<GroupCall<Token>>,
        result: PyResult<Bound<'_, PyAny>>,
    ) {
        let outcomes =
            self.with_writer(functions, procedure, |writer| writer.written(py, calls, result));
        self.report_batch(outcomes.into_iter());
    }

    fn with_writer<T>(
        &self,
        functions: &mut Functions,
        procedure: &Procedure,
        write: impl FnOnce(&mut BatchWriter<'_>) -> T,
    ) -> T {
        let mut writer =
            BatchWriter::new(functions.report.shared(), procedure, self.reply_bytes_max);
        let written = write(&mut writer);
        let interrupted = writer.interrupted;
        functions.report.note(interrupted);
        written
    }

    /// Reports the outcomes of calls, which precede others.
    fn report_batch(&mut self, outcomes: impl DoubleEndedIterator<Item = (Token, Written)>) {
        self.calls.push_front(outcomes.map(|(token, written)| (token, written.into())));
    }
}
