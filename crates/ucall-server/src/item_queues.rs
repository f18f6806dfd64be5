//! What one connection keeps while its peer reads slowly: items and messages that wait, and the
//! streams that have paused.
//!
//! Items that may be dropped wait here, each stream and topic in a queue of its own, until the send
//! under way has ended. Items of streams that pause wait in the output of the connection.

use std::collections::VecDeque;

use bytes::Bytes;
use ucall_proto::{CallNumber, MemoryBudget, Reservation};

/// Where an item comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// A stream, whose items wait as the text of their values.
    Call(CallNumber),
    /// The messages of a subscription with this number, or of 0 those to this connection alone.
    /// They wait in frames that subscribers share.
    Messages(u64),
}

/// The waiting items of one source.
#[derive(Debug)]
struct Queue {
    source: Source,
    items: VecDeque<Bytes>,
    bytes: usize,
}

/// The waiting items of one connection.
#[derive(Debug, Default)]
pub(crate) struct ItemQueues {
    /// The next queue to take from comes first. None is empty.
    queues: VecDeque<Queue>,
    paused: Vec<CallNumber>,
    /// The items of streams. Those of topics are shared with their other subscribers.
    reserved: Reservation,
}

impl ItemQueues {
    /// Whether nothing waits, so that the queues may be dropped.
    pub(crate) fn is_unused(&self) -> bool {
        self.queues.is_empty() && self.paused.is_empty()
    }

    /// Appends an item, and drops the oldest of its source while they have more than `bytes_max`
    /// bytes. Returns the number of those.
    pub(crate) fn push(
        &mut self,
        source: Source,
        item: Bytes,
        bytes_max: usize,
        budget: &MemoryBudget,
    ) -> u64 {
        let mut dropped = 0;
        let found = self.queues.iter().position(|queue| queue.source == source);
        let index = found.unwrap_or_else(|| {
            self.queues.push_back(Queue { source, items: VecDeque::new(), bytes: 0 });
            self.queues.len() - 1
        });
        if let Some(queue) = self.queues.get_mut(index) {
            queue.bytes += item.len();
            queue.items.push_back(item);
            while queue.bytes > bytes_max && queue.items.len() > 1 {
                queue.bytes -= queue.items.pop_front().map_or(0, |item| item.len());
                dropped += 1;
            }
        }
        self.reserve(budget);
        dropped
    }

    /// Takes the next item, of each source in turn.
    pub(crate) fn pop(&mut self, budget: &MemoryBudget) -> Option<(Source, Bytes)> {
        let mut queue = self.queues.pop_front()?;
        let item = queue.items.pop_front()?;
        queue.bytes -= item.len();
        let source = queue.source;
        if !queue.items.is_empty() {
            self.queues.push_back(queue);
        }
        self.reserve(budget);
        Some((source, item))
    }

    /// Takes all items of a source.
    pub(crate) fn take(&mut self, source: Source, budget: &MemoryBudget) -> VecDeque<Bytes> {
        let found = self.queues.iter().position(|queue| queue.source == source);
        let queue = found.and_then(|index| self.queues.remove(index));
        self.reserve(budget);
        queue.map(|queue| queue.items).unwrap_or_default()
    }

    /// Records that a stream has paused; `true` if it had not.
    pub(crate) fn pause(&mut self, call: CallNumber) -> bool {
        let is_new = !self.paused.contains(&call);
        if is_new {
            self.paused.push(call);
        }
        is_new
    }

    /// Takes the streams that have paused.
    pub(crate) fn take_paused(&mut self) -> Vec<CallNumber> {
        std::mem::take(&mut self.paused)
    }

    fn reserve(&mut self, budget: &MemoryBudget) {
        let is_of_call = |queue: &&Queue| matches!(queue.source, Source::Call(_));
        let bytes = self.queues.iter().filter(is_of_call).map(|queue| queue.bytes).sum();
        self.reserved.resize(bytes, budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(request: u64) -> Source {
        Source::Call(CallNumber { request, item: 0 })
    }

    #[test]
    fn sources_take_turns_and_keep_their_order() {
        let (mut queues, budget) = (ItemQueues::default(), MemoryBudget::default());
        for (source, item) in [(call(1), "a"), (call(1), "b"), (Source::Messages(1), "c")] {
            queues.push(source, Bytes::from(item), 100, &budget);
        }
        assert_eq!(budget.bytes(), 2, "the message of the topic is shared");
        let order: Vec<_> = std::iter::from_fn(|| queues.pop(&budget)).collect();
        let items: Vec<_> = order.iter().map(|(_, item)| item.as_ref()).collect();
        assert_eq!(items, [b"a", b"c", b"b"]);
        assert!(queues.is_unused() && budget.bytes() == 0);
    }

    #[test]
    fn the_oldest_items_of_a_source_are_dropped_and_the_newest_stays() {
        let (mut queues, budget) = (ItemQueues::default(), MemoryBudget::default());
        assert_eq!(queues.push(call(2), Bytes::from("other"), 5, &budget), 0);
        for (item, dropped) in [("aa", 0), ("bb", 0), ("cc", 1), ("longer than all", 2)] {
            assert_eq!(queues.push(call(1), Bytes::from(item), 5, &budget), dropped);
        }
        assert_eq!(queues.take(call(1), &budget), ["longer than all"]);
        assert_eq!(queues.take(call(2), &budget), ["other"]);
        assert!(queues.take(call(2), &budget).is_empty());
    }

    #[test]
    fn a_stream_pauses_once() {
        let (mut queues, number) = (ItemQueues::default(), CallNumber { request: 1, item: 0 });
        assert!(queues.pause(number) && !queues.pause(number));
        assert!(!queues.is_unused());
        assert_eq!(queues.take_paused(), [number]);
        assert!(queues.is_unused());
    }
}
