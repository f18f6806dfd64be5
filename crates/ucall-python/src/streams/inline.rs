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
use crate::deferral::Deferral;
use crate::ffi::{self, Step};
use crate::functions::Functions;

/// The time for the generators of a turn, after which calls are served.
const SLICE: Duration = Duration::from_micros(200);
/// Steps of one generator before the next one's.
const STEPS_MAX: usize = 8;

/// Why a generator takes no more steps now.
enum Stop<'py> {
    Progress(Progress),
    Returned(Bound<'py, PyAny>),
}

impl Deferral {
    /// Takes the next steps of generators, lets tasks of async ones go on, and starts functions in
    /// the background.
    #[inline(never)]
    pub(crate) fn step_streams(&mut self, py: Python<'_>, functions: &mut Functions) {
        for ready in self.streams.take_others() {
            match ready {
                Ready::Future(future) => {
                    if let Err(error) = set_done(future.bind(py)) {
                        error.write_unraisable(py, None);
                    }
                }
                Ready::Job(job) => self.start_job(py, functions, job),
            }
        }
        let until = Instant::now() + SLICE;
        while let Some((run, generator)) = self.streams.next_generator() {
            self.step_stream(py, functions, run, generator, until);
            if Instant::now() >= until {
                break;
            }
        }
    }

    fn step_stream(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        run: Arc<StreamRun>,
        generator: Generator,
        until: Instant,
    ) {
        functions.report.set_in_function(true);
        let text = &mut self.streams.text;
        let stopped = generator.within(py, |iterator| take_steps(&run, iterator, text, until));
        functions.report.set_in_function(false);
        functions.warn_if_slow(py, &run.procedure);
        match stopped {
            Ok(Stop::Progress(Progress::Continue)) => self.streams.push(run, generator),
            Ok(Stop::Progress(Progress::Wait)) => {
                if let Some(waiter) = run.park(Waiter::Generator(generator)) {
                    self.streams.push_waiter(run, waiter);
                }
            }
            Ok(Stop::Progress(Progress::End)) => {
                close_generator(py, functions, &generator);
                self.finish_stream(&run);
            }
            Ok(Stop::Returned(value)) => self.end_stream(py, functions, &run, Ok(value)),
            Err(failure) => {
                close_generator(py, functions, &generator);
                self.end_stream(py, functions, &run, Err(failure));
            }
        }
    }

    /// Answers the calls of a generator that has ended.
    pub(super) fn end_stream(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        run: &Arc<StreamRun>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) {
        functions.report.note(run.end(py, result));
        self.finish_stream(run);
    }

    pub(super) fn finish_stream(&mut self, run: &Arc<StreamRun>) {
        if run.is_batch() {
            self.batches.finished(&run.procedure);
        }
    }
}

fn close_generator(py: Python<'_>, functions: &mut Functions, generator: &Generator) {
    if let Err(error) = generator.close(py) {
        functions.report.log(|report| report.abandoned(py, &error));
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
    text: &mut Vec<u8>,
    until: Instant,
) -> Result<Stop<'py>, Failure> {
    let mut progress = run.progress();
    for _ in 0..STEPS_MAX {
        if progress != Progress::Continue {
            break;
        }
        progress = match ffi::step(iterator)? {
            Step::Item(item) => run.put(&item, text)?,
            Step::Returned(value) => return Ok(Stop::Returned(value)),
        };
        if Instant::now() >= until {
            break;
        }
    }
    Ok(Stop::Progress(progress))
}
