//! Generators on the worker's thread: each turn takes some steps of each, in a row.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::Generator;
use super::ready::Ready;
use super::state::{Progress, Waiter};
use super::stream::Stream;
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
                    if let Err(error) = tasks::set_done(future.bind(py)) {
                        error.write_unraisable(py, None);
                    }
                }
                Ready::Job(job) => self.start_job(py, functions, job),
                Ready::Start(stream) => self.start_slots(py, functions, &stream),
                Ready::Callbacks => {}
            }
        }
        let until = Instant::now() + SLICE;
        while let Some((stream, generator)) = self.streams.next_generator() {
            self.step_stream(py, functions, stream, generator, until);
            if Instant::now() >= until {
                break;
            }
        }
    }

    fn step_stream(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: Arc<Stream>,
        generator: Generator,
        until: Instant,
    ) {
        functions.report.set_in_function(true);
        let text = &mut self.streams.text;
        let stopped = generator.within(py, |iterator| take_steps(&stream, iterator, text, until));
        functions.report.set_in_function(false);
        functions.warn_if_slow(py, &stream.procedure);
        match stopped {
            Ok(Stop::Progress(Progress::Continue)) => self.streams.push(stream, generator),
            Ok(Stop::Progress(Progress::Wait)) => {
                if let Some(waiter) = stream.set_waiter(Waiter::Generator(generator)) {
                    self.streams.push_waiter(stream, waiter);
                }
            }
            Ok(Stop::Progress(Progress::End)) => {
                close_generator(py, functions, &generator);
                self.finish_stream(&stream);
            }
            Ok(Stop::Returned(value)) => self.end_stream(py, functions, &stream, Ok(value)),
            Err(failure) => {
                close_generator(py, functions, &generator);
                self.end_stream(py, functions, &stream, Err(failure));
            }
        }
    }

    /// Answers the calls of a generator that has ended.
    pub(super) fn end_stream(
        &mut self,
        py: Python<'_>,
        functions: &mut Functions,
        stream: &Arc<Stream>,
        result: Result<Bound<'_, PyAny>, Failure>,
    ) {
        functions.report.note(stream.end(py, result));
        self.finish_stream(stream);
    }

    pub(super) fn finish_stream(&mut self, stream: &Arc<Stream>) {
        if stream.is_batch() {
            self.batches.finished(&stream.procedure);
        } else if stream.has_slots && stream.end_run() {
            self.streams.push_start(stream.clone());
        }
    }
}

fn close_generator(py: Python<'_>, functions: &mut Functions, generator: &Generator) {
    if let Err(error) = generator.close(py) {
        functions.report.log(|report| report.abandoned(py, &error));
    }
}

fn take_steps<'py>(
    stream: &Arc<Stream>,
    iterator: &Bound<'py, PyAny>,
    text: &mut Vec<u8>,
    until: Instant,
) -> Result<Stop<'py>, Failure> {
    let mut progress = stream.progress();
    for _ in 0..STEPS_MAX {
        if progress != Progress::Continue {
            break;
        }
        progress = match stream.begin_step(iterator.py())? {
            false => stream.progress(),
            true => match ffi::step(iterator)? {
                Step::Item(item) => stream.put(&item, text)?,
                Step::Returned(value) => return Ok(Stop::Returned(value)),
            },
        };
        if Instant::now() >= until {
            break;
        }
    }
    Ok(Stop::Progress(progress))
}
