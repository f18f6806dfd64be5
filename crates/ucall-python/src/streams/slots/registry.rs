//! The functions of one worker that have slots.

use std::sync::Arc;

use pyo3::prelude::*;

use super::super::StreamContext;
use super::super::state::Waiter;
use super::super::stream::Stream;
use crate::procedure::SharedProcedure;

/// The streams of functions with slots.
#[derive(Default)]
pub(in crate::streams) struct SlotStreams(Vec<Arc<Stream>>);

impl SlotStreams {
    /// The stream of a function, which has `count` slots. That of an earlier function of its name
    /// ends with its calls.
    pub(in crate::streams) fn of(
        &mut self,
        procedure: &SharedProcedure,
        count: usize,
        context: &StreamContext,
    ) -> (Arc<Stream>, Vec<(Arc<Stream>, Waiter)>) {
        if let Some(known) = self.0.iter().find(|it| Arc::ptr_eq(&it.procedure, procedure)) {
            return (known.clone(), Vec::new());
        }
        let is_replaced = |it: &Arc<Stream>| it.procedure.name == procedure.name;
        let replaced: Vec<_> = self.0.iter().filter(|it| is_replaced(it)).cloned().collect();
        let retired = replaced.into_iter().filter_map(|it| it.retire().map(|waiter| (it, waiter)));
        let retired = retired.collect();
        self.0.retain(|it| !is_replaced(it) || it.is_running());
        let stream = Arc::new(Stream::with_slots(procedure.clone(), context.clone(), count));
        self.0.push(stream.clone());
        (stream, retired)
    }

    /// Whether so many calls of a function wait for a slot.
    pub(in crate::streams) fn is_queue_full(
        &self,
        procedure: &SharedProcedure,
        max: usize,
    ) -> bool {
        let stream = self.0.iter().find(|it| Arc::ptr_eq(&it.procedure, procedure));
        stream.is_some_and(|it| it.is_queue_full(max))
    }

    /// Has all generators end once they have no calls. Returns what waits.
    pub(in crate::streams) fn retire(&self) -> Vec<(Arc<Stream>, Waiter)> {
        self.0.iter().filter_map(|it| it.retire().map(|waiter| (it.clone(), waiter))).collect()
    }

    /// The tasks of generators that run in some.
    pub(in crate::streams) fn take_tasks(&self) -> Vec<Py<PyAny>> {
        self.0.iter().filter_map(|stream| stream.take_task()).collect()
    }

    /// Whether a generator runs.
    pub(in crate::streams) fn are_running(&self) -> bool {
        self.0.iter().any(|stream| stream.is_running())
    }
}

impl Drop for SlotStreams {
    /// Ends the threads that wait for calls.
    fn drop(&mut self) {
        drop(self.retire());
    }
}
