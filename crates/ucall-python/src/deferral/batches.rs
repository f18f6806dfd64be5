//! Runs batches of calls, and reports the outcome of each call.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_server::Token;

use super::Deferral;
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::batch::{self, Batch};
use crate::batch_results;
use crate::calls::EntryKind;
use crate::contexts::Contexts;
use crate::ffi::variables::run_in;
use crate::functions::Functions;
use crate::outcomes::DeferredOutcome;
use crate::pool::{Job, Work};
use crate::procedure::{Executor, Procedure};

impl Deferral {
    pub(super) fn run_batch(&mut self, py: Python<'_>, functions: &mut Functions, batch: Batch) {
        let columns = match batch.columns(py) {
            Ok(columns) => columns,
            Err(error) => {
                return self.finish_batch(py, functions, &batch.procedure, batch.items, Err(error));
            }
        };
        if batch.rules.yields {
            return self.run_batch_stream(py, functions, batch, columns);
        }
        match batch.rules.executor {
            Executor::Inline => {
                let result = functions.contexts.own_variables(py).and_then(|variables| {
                    run_in(&variables, || batch::run(py, &batch.procedure, &columns))
                });
                functions.warn_if_slow(py, &batch.procedure);
                self.finish_batch(py, functions, &batch.procedure, batch.items, result);
            }
            Executor::Task => self.run_batch_in_task(py, functions, batch, &columns),
            Executor::Thread => {
                let procedure = batch.procedure.clone();
                let kind = EntryKind::Batch(batch.items.clone());
                let token = self.insert_entry(&functions.timing, &procedure, kind);
                let format = |token: &Token| self.call(*token).map(|it| it.results);
                let formats =
                    batch.items.iter().map(format).map(Option::unwrap_or_default).collect();
                let work = Work::Batch { columns, items: batch.items.clone(), formats };
                let job = Job { token, procedure, work };
                if let Err(Failure::Raised(error)) = self.submit(py, job) {
                    self.finish_batch(py, functions, &batch.procedure, batch.items, Err(error));
                }
            }
        }
    }

    fn run_batch_in_task(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        batch: Batch,
        columns: &[Py<PyList>],
    ) {
        let started = self.start_batch(py, &functions.contexts, &batch.procedure, columns);
        let Batch { procedure, items, .. } = batch;
        let task = match started {
            Ok(task) => task,
            Err(error) => return self.finish_batch(py, functions, &procedure, items, Err(error)),
        };
        let kind = EntryKind::Batch(items.clone());
        let token = self.insert_entry(&functions.timing, &procedure, kind);
        if let Err(Failure::Raised(error)) = self.watch_future(&task, token, true) {
            self.finish_batch(py, functions, &procedure, items, Err(error));
        }
    }

    fn start_batch<'py>(
        &mut self,
        py: Python<'py>,
        contexts: &Contexts,
        procedure: &Procedure,
        columns: &[Py<PyList>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let variables = contexts.own_variables(py)?;
        let coroutine = run_in(&variables, || batch::run(py, procedure, columns))?;
        self.tasks(py)?.start(&coroutine, &variables)
    }

    /// Reports the outcome of each call of a batch.
    fn finish_batch(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        result: PyResult<Bound<'_, PyAny>>,
    ) {
        self.batches.finished(procedure);
        let report = functions.report.shared();
        let outcomes = batch_results::outcomes(py, report, procedure, items, result);
        self.calls.push_front(outcomes.into_iter());
    }

    pub(super) fn finish_batch_entry(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        procedure: &Arc<Procedure>,
        items: Vec<Token>,
        outcome: DeferredOutcome,
    ) {
        match outcome {
            DeferredOutcome::Future(task) => {
                let result = tasks::result_of(task.bind(py));
                self.finish_batch(py, functions, procedure, items, result);
            }
            // The thread has reported the outcomes of its calls.
            _ => self.batches.finished(procedure),
        }
    }
}
