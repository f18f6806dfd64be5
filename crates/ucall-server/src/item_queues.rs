//! What one connection keeps while its peer reads slowly: items and messages that wait, and the
//! streams that have paused.
//!
//! Messages, and items that may be dropped, wait here until the send in flight has ended: those of
//! each stream and topic in a queue of their own, because each has its own overflow. They are taken
//! in the order in which they came. Items of streams that pause wait in the output of the
//! connection.
//!
//! The messages of all topics share one limit, so a client that subscribes to many holds no more
//! memory. Past it the largest queue loses, which two ordered sets find: by number and by bytes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use hashbrown::HashMap;
use ucall_proto::{CallNumber, Limits, MemoryBudget, Reservation};

use crate::overflow::Overflow;

/// Where an item comes from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ItemSource {
    /// A stream, whose items wait as the text of their values.
    Call(CallNumber),
    /// The messages of a subscription with this number, or of 0 those to this connection alone.
    /// They wait in frames that subscribers share.
    Messages(u64),
}

impl ItemSource {
    /// The messages to this connection alone.
    pub(crate) const NOTIFICATIONS: Self = Self::Messages(0);
}

/// The connection is to be closed: a queue is full whose overflow is [`Overflow::Close`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Overflowed;

/// The waiting items of one source.
#[derive(Debug, Default)]
struct Queue {
    /// Each with its arrival number.
    items: VecDeque<(u64, Bytes)>,
    bytes: usize,
    overflow: Overflow,
}

/// The waiting items of one connection.
#[derive(Debug, Default)]
pub(crate) struct ItemQueues {
    /// None is empty.
    queues: HashMap<ItemSource, Queue>,
    /// The source of the first item of each queue, by its arrival number.
    firsts: BTreeMap<u64, ItemSource>,
    arrivals: u64,
    /// All items of streams that wait, and all messages.
    stream_bytes: usize,
    message_bytes: usize,
    messages: usize,
    /// The messages of each subscription with some, and its number.
    by_messages: BTreeSet<(usize, u64)>,
    /// The bytes of the messages of each subscription with some, and its number.
    by_bytes: BTreeSet<(usize, u64)>,
    paused: BTreeSet<CallNumber>,
    /// The items of streams. Messages are shared with other connections, and reserve themselves.
    reserved: Reservation,
}

impl ItemQueues {
    /// Whether items or messages wait.
    pub(crate) fn has_items(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whether nothing waits and no stream has paused, so that the queues may be dropped.
    pub(crate) fn is_unused(&self) -> bool {
        self.queues.is_empty() && self.paused.is_empty()
    }

    /// Appends an item of a stream, and drops the oldest of the stream while they have more than
    /// `bytes_max` bytes.
    pub(crate) fn push_item(
        &mut self,
        call: CallNumber,
        item: Bytes,
        bytes_max: usize,
        budget: &MemoryBudget,
    ) {
        let source = ItemSource::Call(call);
        self.push(source, item, Overflow::DropOldest);
        while self.queues.get(&source).is_some_and(|it| it.bytes > bytes_max && it.items.len() > 1)
        {
            self.pop_first(source);
        }
        self.reserve(budget);
    }

    /// Appends a message. While as many or as long messages wait as may, the largest queue loses
    /// one as its overflow says; that of the new message, if several are as large. Returns the
    /// number of messages that were dropped.
    pub(crate) fn push_message(
        &mut self,
        number: u64,
        overflow: Overflow,
        message: Bytes,
        limits: &Limits,
    ) -> Result<u64, Overflowed> {
        let own = ItemSource::Messages(number);
        let mut dropped = 0;
        while let Some((source, its_overflow)) = self.overflowing(number, limits) {
            let is_own = source == own;
            dropped += 1;
            match if is_own { overflow } else { its_overflow } {
                Overflow::DropOldest => drop(self.pop_first(source)),
                Overflow::DropNewest | Overflow::Pause if is_own => return Ok(dropped),
                Overflow::DropNewest | Overflow::Pause => drop(self.pop_last(source)),
                Overflow::Close => return Err(Overflowed),
            }
        }
        self.push(own, message, overflow);
        Ok(dropped)
    }

    /// The queue of messages that has to lose one before another is appended.
    fn overflowing(&self, own: u64, limits: &Limits) -> Option<(ItemSource, Overflow)> {
        let is_long = self.message_bytes >= limits.waiting_message_bytes_max;
        if !is_long && self.messages < limits.waiting_messages_max {
            return None;
        }
        let by_size = if is_long { &self.by_bytes } else { &self.by_messages };
        let (largest, number) = *by_size.last()?;
        let number = if by_size.contains(&(largest, own)) { own } else { number };
        let source = ItemSource::Messages(number);
        Some((source, self.queues.get(&source)?.overflow))
    }

    /// Changes the queue of a source, and its places in the sets.
    fn change<T>(&mut self, source: ItemSource, work: impl FnOnce(&mut Queue) -> T) -> T {
        let queue = self.queues.entry(source).or_default();
        let before = (queue.items.len(), queue.bytes);
        let outcome = work(queue);
        let after = (queue.items.len(), queue.bytes);
        if let ItemSource::Messages(number) = source {
            self.by_messages.remove(&(before.0, number));
            self.by_bytes.remove(&(before.1, number));
            if after.0 > 0 {
                self.by_messages.insert((after.0, number));
                self.by_bytes.insert((after.1, number));
            }
        }
        if after.0 == 0 {
            self.queues.remove(&source);
        }
        outcome
    }

    /// Takes the item that has waited for longest.
    pub(crate) fn pop(&mut self, budget: &MemoryBudget) -> Option<(ItemSource, Bytes)> {
        let (_, source) = self.firsts.first_key_value()?;
        let source = *source;
        let item = self.pop_first(source)?;
        self.reserve(budget);
        Some((source, item))
    }

    /// Takes all items of a source.
    pub(crate) fn take(&mut self, source: ItemSource, budget: &MemoryBudget) -> Vec<Bytes> {
        let items = std::iter::from_fn(|| self.pop_first(source)).collect();
        self.reserve(budget);
        items
    }

    /// Records that a stream has paused; `true` if it had not.
    pub(crate) fn pause(&mut self, call: CallNumber) -> bool {
        self.paused.insert(call)
    }

    /// Takes the streams that have paused.
    pub(crate) fn take_paused(&mut self) -> Vec<CallNumber> {
        std::mem::take(&mut self.paused).into_iter().collect()
    }

    fn push(&mut self, source: ItemSource, item: Bytes, overflow: Overflow) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        match source {
            ItemSource::Call(_) => self.stream_bytes += item.len(),
            ItemSource::Messages(_) => {
                self.messages += 1;
                self.message_bytes += item.len();
            }
        }
        let is_first = self.change(source, |queue| {
            queue.bytes += item.len();
            queue.overflow = overflow;
            queue.items.push_back((arrival, item));
            queue.items.len() == 1
        });
        if is_first {
            self.firsts.insert(arrival, source);
        }
    }

    fn pop_first(&mut self, source: ItemSource) -> Option<Bytes> {
        let (arrival, item, next) = self.change(source, |queue| {
            let (arrival, item) = queue.items.pop_front()?;
            queue.bytes -= item.len();
            Some((arrival, item, queue.items.front().map(|(next, _)| *next)))
        })?;
        self.firsts.remove(&arrival);
        if let Some(next) = next {
            self.firsts.insert(next, source);
        }
        self.count_removed(source, item.len());
        Some(item)
    }

    fn pop_last(&mut self, source: ItemSource) -> Option<Bytes> {
        let (arrival, item, is_last) = self.change(source, |queue| {
            let (arrival, item) = queue.items.pop_back()?;
            queue.bytes -= item.len();
            Some((arrival, item, queue.items.is_empty()))
        })?;
        if is_last {
            self.firsts.remove(&arrival);
        }
        self.count_removed(source, item.len());
        Some(item)
    }

    fn count_removed(&mut self, source: ItemSource, bytes: usize) {
        match source {
            ItemSource::Call(_) => self.stream_bytes -= bytes,
            ItemSource::Messages(_) => {
                self.messages -= 1;
                self.message_bytes -= bytes;
            }
        }
    }

    fn reserve(&mut self, budget: &MemoryBudget) {
        self.reserved.resize(self.stream_bytes, budget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(request: u64) -> CallNumber {
        CallNumber { request, item: 0 }
    }

    fn limits(messages_max: usize, bytes_max: usize) -> Limits {
        let mut limits = Limits::default();
        limits.waiting_messages_max = messages_max;
        limits.waiting_message_bytes_max = bytes_max;
        limits
    }

    /// What waits, in its order.
    fn rest(queues: &mut ItemQueues) -> String {
        let budget = MemoryBudget::default();
        let items = std::iter::from_fn(|| queues.pop(&budget));
        let texts: Vec<_> =
            items.map(|(_, item)| String::from_utf8_lossy(&item).into_owned()).collect();
        assert!(queues.is_unused() && queues.firsts.is_empty());
        assert!(queues.by_messages.is_empty() && queues.by_bytes.is_empty());
        assert_eq!((queues.messages, queues.message_bytes, queues.stream_bytes), (0, 0, 0));
        texts.join(" ")
    }

    #[test]
    fn items_of_all_sources_leave_in_the_order_in_which_they_came() {
        let (mut queues, budget, any) =
            (ItemQueues::default(), MemoryBudget::default(), limits(9, 9));
        queues.push_item(call(1), Bytes::from("a"), 100, &budget);
        for (number, message) in [(1, "b"), (2, "c"), (1, "d")] {
            let pushed = queues.push_message(number, Overflow::Close, Bytes::from(message), &any);
            assert_eq!(pushed, Ok(0));
        }
        queues.push_item(call(1), Bytes::from("e"), 100, &budget);
        assert_eq!(budget.bytes(), 2, "messages reserve themselves");
        assert_eq!(queues.pop(&budget), Some((ItemSource::Call(call(1)), Bytes::from("a"))));
        assert_eq!(queues.pop(&budget), Some((ItemSource::Messages(1), Bytes::from("b"))));
        assert_eq!(budget.bytes(), 1);
        assert_eq!(rest(&mut queues), "c d e");
    }

    #[test]
    fn the_oldest_items_of_a_source_are_dropped_and_the_newest_stays() {
        let (mut queues, budget) = (ItemQueues::default(), MemoryBudget::default());
        queues.push_item(call(2), Bytes::from("other"), 5, &budget);
        for (item, waiting) in [("aa", 2), ("bb", 4), ("cc", 4), ("longer than all", 15)] {
            queues.push_item(call(1), Bytes::from(item), 5, &budget);
            assert_eq!(budget.bytes(), 5 + waiting, "{item}");
        }
        assert_eq!(queues.take(ItemSource::Call(call(1)), &budget), ["longer than all"]);
        assert_eq!(queues.take(ItemSource::Call(call(2)), &budget), ["other"]);
        assert!(queues.take(ItemSource::Call(call(2)), &budget).is_empty());
        assert_eq!(budget.bytes(), 0);
    }

    #[test]
    fn a_full_queue_of_messages_loses_what_its_overflow_says() {
        for limits in [limits(3, 100), limits(100, 6)] {
            for (overflow, dropped, expected) in [
                (Overflow::DropOldest, Ok(1), "b2 c3 d4"),
                (Overflow::DropNewest, Ok(1), "a1 b2 c3"),
                (Overflow::Close, Err(Overflowed), "a1 b2 c3"),
            ] {
                let mut queues = ItemQueues::default();
                let mut push = |text| queues.push_message(1, overflow, Bytes::from(text), &limits);
                assert_eq!(["a1", "b2", "c3"].map(&mut push), [Ok(0); 3]);
                assert_eq!(push("d4"), dropped, "{overflow:?}");
                assert_eq!(rest(&mut queues), expected, "{overflow:?}");
            }
        }
    }

    #[test]
    fn one_message_may_be_longer_than_the_limit() {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest, Overflow::Close] {
            let (mut queues, limits) = (ItemQueues::default(), limits(9, 4));
            let mut push = |text| queues.push_message(1, overflow, Bytes::from(text), &limits);
            assert_eq!([push("abc"), push("longer than all")], [Ok(0), Ok(0)]);
            assert_eq!(
                push("d"),
                if overflow == Overflow::Close {
                    Err(Overflowed)
                } else {
                    Ok(if overflow == Overflow::DropOldest { 2 } else { 1 })
                }
            );
        }
    }

    #[test]
    fn the_topic_with_the_most_messages_loses_some() {
        let (oldest, newest, close) = (Overflow::DropOldest, Overflow::DropNewest, Overflow::Close);
        // One with three messages and one with another wait; a third follows.
        for (its_overflow, own_overflow, dropped, expected) in [
            (oldest, close, Ok(1), "a2 a3 b1 c1"),
            (newest, close, Ok(1), "a1 a2 b1 c1"),
            (close, newest, Err(Overflowed), "a1 a2 a3 b1"),
        ] {
            for limits in [limits(4, 100), limits(100, 8)] {
                let mut queues = ItemQueues::default();
                for (number, overflow, text) in [
                    (1, its_overflow, "a1"),
                    (1, its_overflow, "a2"),
                    (1, its_overflow, "a3"),
                    (2, close, "b1"),
                ] {
                    assert_eq!(queues.push_message(number, overflow, text.into(), &limits), Ok(0));
                }
                assert_eq!(queues.push_message(3, own_overflow, "c1".into(), &limits), dropped);
                assert_eq!(rest(&mut queues), expected);
            }
        }
    }

    #[test]
    fn among_equals_the_topic_of_the_new_message_loses() {
        let (mut queues, limits) = (ItemQueues::default(), limits(8, 100));
        for number in 1..=8 {
            let text = Bytes::from(number.to_string());
            assert_eq!(queues.push_message(number, Overflow::DropOldest, text, &limits), Ok(0));
        }
        assert_eq!(queues.push_message(5, Overflow::DropNewest, "no".into(), &limits), Ok(1));
        assert_eq!(queues.push_message(3, Overflow::DropOldest, "new".into(), &limits), Ok(1));
        assert_eq!(rest(&mut queues), "1 2 4 5 6 7 8 new");
    }

    #[test]
    fn items_of_streams_and_messages_have_limits_of_their_own() {
        let (mut queues, budget) = (ItemQueues::default(), MemoryBudget::default());
        let limits = limits(2, 4);
        queues.push_item(call(1), Bytes::from("a long item"), 100, &budget);
        for text in ["m1", "m2"] {
            assert_eq!(queues.push_message(0, Overflow::Close, text.into(), &limits), Ok(0));
        }
        queues.push_item(call(1), Bytes::from("item"), 100, &budget);
        assert_eq!(rest(&mut queues), "a long item m1 m2 item");
    }

    #[test]
    fn a_stream_pauses_once() {
        let (mut queues, number) = (ItemQueues::default(), call(1));
        assert!(queues.pause(number) && !queues.pause(number));
        assert!(!queues.is_unused());
        assert_eq!(queues.take_paused(), [number]);
        assert!(queues.is_unused());
    }
}
