//! The streams that go on at the end of the turn.

use std::collections::VecDeque;
use std::sync::Arc;

use pyo3::prelude::*;

use super::Generator;
use super::state::Waiter;
use super::stream::Stream;
use crate::background::DueJob;

/// Generators whose next step is due.
#[derive(Default)]
pub(crate) struct ReadyStreams {
    pub(super) generators: VecDeque<(Arc<Stream>, Generator)>,
    /// Other work at the end of a turn.
    pub(super) others: Vec<Ready>,
}

/// Work at the end of a turn that is no step of a generator.
pub(super) enum Ready {
    /// The future of the task of an async generator or an application. It is completed at the end
    /// of a turn: the loop would not run its callbacks before the worker's wait.
    Future(Py<PyAny>),
    /// The start of a function in the background.
    Job(DueJob),
    /// That of a generator with slots, which has the calls of this turn then.
    Start(Arc<Stream>),
    /// Nothing, but the worker does not wait before the loop has run its callbacks.
    Callbacks,
}

impl ReadyStreams {
    pub(crate) fn push(&mut self, stream: Arc<Stream>, generator: Generator) {
        self.generators.push_back((stream, generator));
    }

    pub(super) fn push_waiter(&mut self, stream: Arc<Stream>, waiter: Waiter) {
        match waiter {
            Waiter::Generator(generator) => self.push(stream, generator),
            Waiter::Future(future) => self.push_future(future),
        }
    }

    pub(super) fn push_future(&mut self, future: Py<PyAny>) {
        self.others.push(Ready::Future(future));
    }

    pub(crate) fn push_job(&mut self, job: DueJob) {
        self.others.push(Ready::Job(job));
    }

    pub(super) fn push_callbacks(&mut self) {
        self.others.push(Ready::Callbacks);
    }

    pub(super) fn push_start(&mut self, stream: Arc<Stream>) {
        self.others.push(Ready::Start(stream));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.generators.is_empty() && self.others.is_empty()
    }
}

impl Drop for ReadyStreams {
    /// Closes the generators that a worker has when it ends.
    fn drop(&mut self) {
        if self.generators.is_empty() {
            return;
        }
        Python::attach(|py| {
            for (_, generator) in self.generators.drain(..) {
                if let Err(error) = generator.close(py) {
                    error.write_unraisable(py, None);
                }
            }
        });
    }
}
