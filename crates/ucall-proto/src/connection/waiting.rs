//! When requests wait in the input, and what their connection wants then.

use super::{Environment, NextAction, PlainConnection};
use crate::Limits;

impl PlainConnection {
    /// Whether as much waits already as one connection may make wait.
    #[inline(always)]
    pub(super) fn must_wait<S>(&self, environment: &Environment<'_, S>) -> bool {
        (!self.exchanges.is_empty()
            && self.waits_for_calls(environment.limits)
            // The call that waits for its body ends after that.
            && !self.streams_body())
            || self.is_output_full(environment)
    }

    /// Whether requests wait until a call ends.
    pub(super) fn waits_for_calls(&self, limits: &Limits) -> bool {
        self.exchanges.are_at_max(limits)
    }

    #[inline(always)]
    pub(super) fn is_output_full<S>(&self, environment: &Environment<'_, S>) -> bool {
        environment.out.len() + environment.queued_bytes > environment.limits.output_bytes_max
    }

    /// What a connection wants whose requests wait.
    #[cold]
    pub(super) fn paused_action(&self) -> NextAction {
        let seeks_more = self.search.as_ref().is_some_and(|search| search.seeks_more());
        if seeks_more { NextAction::Receive } else { NextAction::Pause }
    }
}
