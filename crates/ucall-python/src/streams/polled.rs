//! The items of one call that the worker polls one by one.

use ucall_server::{CallId, Overflow, Polled};

use super::call::CallKey;
use super::call::Items;
use super::reports::Reports;
use super::state::Waiter;
use super::stream::Stream;

/// The items of one call after another.
#[derive(Default)]
pub(crate) struct PolledItems {
    items: Items,
    next: usize,
    caller: Option<CallId>,
    overflow: Overflow,
}

impl PolledItems {
    /// Takes the items of a call that wait. Returns what waited for that.
    pub(super) fn take(&mut self, stream: &Stream, key: CallKey, caller: CallId) -> Option<Waiter> {
        let waiter = stream.take_items(key, &mut self.items);
        (self.caller, self.overflow) = (Some(caller), stream.procedure.stream.overflow);
        waiter
    }

    /// Takes the reports of a call that wait. The function does not wait for a slow reader, which
    /// gets the newest ones.
    pub(super) fn take_reports(&mut self, reports: &Reports, caller: CallId) {
        reports.take(&mut self.items);
        (self.caller, self.overflow) = (Some(caller), Overflow::DropOldest);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.caller.is_none()
    }

    /// Appends the next item to `text`.
    pub(crate) fn next(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        let caller = self.caller?;
        let Some(item) = self.items.item(self.next) else {
            self.items.clear();
            (self.next, self.caller) = (0, None);
            return None;
        };
        text.extend_from_slice(item);
        self.next += 1;
        Some((caller, Polled::Item(self.overflow)))
    }
}
