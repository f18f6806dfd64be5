//! Generators on the worker's thread: each turn takes some steps of each, in a row.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::intern;
use pyo3::prelude::*;

use super::Generator;
use super::ready::Ready;
use super::run::{Progress, StreamRun, Waiter};
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::ffi::{self, Step};
use crate::handler::Interpreter;

/// The time for the generators of a turn, after which calls are served.
const SLICE: Duration = Duration::from_micros(200);
/// Steps of one generator before the next one's.
const STEPS_MAX: usize = 8;

/// Why a generator takes no more steps now.
enum Stop<'py> {
    Progress(Progress),
    Returned(Bound<'py, PyAny>),
}

impl Interpreter {
    /// Takes the next steps of generators, lets tasks of async ones go on, and starts functions in
    /// the background.
    #[inline(never)]
    pub(crate) fn step_streams(&mut self, py: Python<'_>) {
        for ready in self.streams.take_others() {
            match ready {
                Ready::Future(future) => {
                    if let Err(error) = set_done(future.bind(py)) {
                        error.write_unraisable(py, None);
                    }
                }
                Ready::Job(job) => self.start_job(py, job),
            }
        }
        let until = Instant::now() + SLICE;
        while let Some((run, generator)) = self.streams.next_generator() {
            self.step_stream(py, run, generator, until);
            if Instant::now() >= until {
                break;
            }
        }
    }

    fn step_stream(
        &mut self,
        py: Python<'_>,
        run: Arc<StreamRun>,
        generator: Generator,
        until: Instant,
    ) {
        let steps = || generator.within(py, |iterator| take_steps(&run, iterator, until));
        let stopped = self.in_function(steps);
        self.warn_if_slow(py, &run.procedure);
        match stopped {
            Ok(Stop::Progress(Progress::Continue)) => self.streams.push(run, generator),
            Ok(Stop::Progress(Progress::Wait)) => {
                if let Some(waiter) = run.park(Waiter::Generator(generator)) {
                    self.streams.push_waiter(run, waiter);
                }
            }
            Ok(Stop::Progress(Progress::End)) => {
                self.close_generator(py, &generator);
                self.finish_stream(&run);
            }
            Ok(Stop::Returned(value)) => self.end_stream(py, &run, Ok(value)),
            Err(failure) => {
                self.close_generator(py, &generator);
                self.end_stream(py, &run, Err(failure));
            }
        }
    }

    fn close_generator(&mut self, py: Python<'_>, generator: &Generator) {
        if let Err(error) = generator.close(py) {
            let logged = self.report.abandoned(py, &error);
            self.note_interrupt(logged);
        }
    }

    /// Answers the calls of a generator that has ended.
    pub(super) fn end_stream(
        &mut self,
        py: Python<'_>,
        run: &Arc<StreamRun>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) {
        let logged = run.end(py, result);
        self.note_interrupt(logged);
        self.finish_stream(run);
    }

    pub(super) fn finish_stream(&mut self, run: &Arc<StreamRun>) {
        if run.is_batch() {
            self.batches.finished(&run.procedure);
        }
    }
}

/// Completes a future, unless its task was cancelled.
fn set_done(future: &Bound<'_, PyAny>) -> PyResult<()> {
    if !tasks::is_done(future)? {
        future.call_method1(intern!(future.py(), "set_result"), (future.py().None(),))?;
    }
    Ok(())
}

fn take_steps<'py>(
    run: &StreamRun,
    iterator: &Bound<'py, PyAny>,
    until: Instant,
) -> Result<Stop<'py>, Failure> {
    if run.progress() == Progress::End {
        return Ok(Stop::Progress(Progress::End));
    }
    for _ in 0..STEPS_MAX {
        match ffi::step(iterator)? {
            Step::Item(item) => run.put(iterator.py(), &item)?,
            Step::Returned(value) => return Ok(Stop::Returned(value)),
        }
        let progress = run.progress();
        if progress != Progress::Continue || Instant::now() >= until {
            return Ok(Stop::Progress(progress));
        }
    }
    Ok(Stop::Progress(Progress::Continue))
}
