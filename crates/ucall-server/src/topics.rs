//! The topics that the connections of one worker subscribe to.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use ucall_engine::Id;
use ucall_proto::{MemoryBudget, Reservation};

use crate::overflow::Overflow;

/// The subscription of one connection to one topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subscription {
    pub(crate) connection: Id,
    /// The number of the subscription, above 0, which no other of the worker has had.
    pub(crate) number: u64,
    pub(crate) overflow: Overflow,
}

/// Why a subscription is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The connection has this many subscriptions.
    TooManySubscriptions(usize),
    /// The name of a topic may have this many bytes.
    TopicTooLong(usize),
    /// The subscriptions of the worker hold as much memory as they may.
    OutOfMemory,
}

impl std::fmt::Display for SubscribeError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManySubscriptions(max) => {
                write!(out, "max_subscriptions: the connection has {max} subscriptions already")
            }
            Self::TopicTooLong(max) => {
                write!(out, "max_topic_bytes: expected a topic of at most {max} bytes")
            }
            Self::OutOfMemory => out.write_str("subscriptions hold half of max_held_bytes already"),
        }
    }
}

impl std::error::Error for SubscribeError {}

/// The limits on subscriptions, and the memory that they take.
#[derive(Debug)]
pub(crate) struct TopicsConfig {
    /// Subscriptions of one connection.
    pub(crate) subscriptions_max: usize,
    pub(crate) topic_bytes_max: usize,
    /// Bytes of all subscriptions. They last as long as their clients like, so they may take only a
    /// part of the budget: with all of it, no request would be served any more.
    pub(crate) held_bytes_max: usize,
    pub(crate) budget: MemoryBudget,
}

/// What a subscription costs in the tables.
const SUBSCRIPTION_BYTES: usize = 256;
/// What the first subscription to a topic costs besides, without its name.
const TOPIC_BYTES: usize = 1 << 10;

/// The subscriptions of a worker.
///
/// A connection is *attached* from its first subscription, or from the first use of its session,
/// until it closes. So the end of any other connection costs one comparison.
#[derive(Debug)]
pub(crate) struct Topics {
    config: TopicsConfig,
    subscribers: HashMap<Arc<str>, HashMap<Id, Subscription>>,
    /// The topics of each attached connection.
    attached: HashMap<Id, HashSet<Arc<str>>>,
    /// Subscriptions so far.
    numbers: u64,
    len: usize,
    reserved: Reservation,
}

impl Topics {
    pub(crate) fn new(config: TopicsConfig) -> Self {
        Self {
            config,
            subscribers: HashMap::new(),
            attached: HashMap::new(),
            numbers: 0,
            len: 0,
            reserved: Reservation::default(),
        }
    }

    /// All subscriptions.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn has_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Whether the connection has a subscription.
    pub(crate) fn has_subscriptions(&self, connection: Id) -> bool {
        self.attached.get(&connection).is_some_and(|topics| !topics.is_empty())
    }

    /// Has [`Topics::remove`] report the end of a connection.
    pub(crate) fn attach(&mut self, connection: Id) {
        self.attached.entry(connection).or_default();
    }

    /// Subscribes a connection. A second subscription to a topic replaces the first.
    pub(crate) fn subscribe(
        &mut self,
        connection: Id,
        topic: &str,
        overflow: Overflow,
    ) -> Result<(), SubscribeError> {
        let TopicsConfig { subscriptions_max, topic_bytes_max, held_bytes_max, .. } = self.config;
        if topic.len() > topic_bytes_max {
            return Err(SubscribeError::TopicTooLong(topic_bytes_max));
        }
        let topics = self.attached.entry(connection).or_default();
        if let Some(subscribers) = self.subscribers.get_mut(topic)
            && let Some(subscription) = subscribers.get_mut(&connection)
        {
            subscription.overflow = overflow;
            return Ok(());
        }
        if topics.len() >= subscriptions_max {
            return Err(SubscribeError::TooManySubscriptions(subscriptions_max));
        }
        let known = self.subscribers.get_key_value(topic).map(|(name, _)| name.clone());
        let topic_bytes = if known.is_none() { topic_bytes(topic) } else { 0 };
        let held_bytes = self.reserved.bytes() + topic_bytes + SUBSCRIPTION_BYTES;
        if held_bytes > held_bytes_max {
            return Err(SubscribeError::OutOfMemory);
        }
        self.reserved.resize(held_bytes, &self.config.budget);
        let name = known.unwrap_or_else(|| Arc::from(topic));
        topics.insert(name.clone());
        self.numbers += 1;
        self.len += 1;
        let subscription = Subscription { connection, number: self.numbers, overflow };
        self.subscribers.entry(name).or_default().insert(connection, subscription);
        Ok(())
    }

    /// Ends the subscription of a connection, if it has one.
    pub(crate) fn unsubscribe(&mut self, connection: Id, topic: &str) {
        if self.remove_subscriber(connection, topic)
            && let Some(topics) = self.attached.get_mut(&connection)
        {
            topics.remove(topic);
        }
    }

    /// Ends the subscriptions of a connection that has closed; `true` if it was attached.
    pub(crate) fn remove(&mut self, connection: Id) -> bool {
        let topics = self.attached.remove(&connection);
        for topic in topics.iter().flatten() {
            self.remove_subscriber(connection, topic);
        }
        topics.is_some()
    }

    /// The subscriptions to a topic.
    pub(crate) fn subscribers(&self, topic: &str) -> impl Iterator<Item = Subscription> {
        self.subscribers.get(topic).into_iter().flat_map(HashMap::values).copied()
    }

    fn remove_subscriber(&mut self, connection: Id, topic: &str) -> bool {
        let Some(subscribers) = self.subscribers.get_mut(topic) else { return false };
        if subscribers.remove(&connection).is_none() {
            return false;
        }
        let mut released = SUBSCRIPTION_BYTES;
        if subscribers.is_empty() {
            self.subscribers.remove(topic);
            released += topic_bytes(topic);
        }
        self.len -= 1;
        self.reserved.resize(self.reserved.bytes() - released, &self.config.budget);
        true
    }
}

fn topic_bytes(topic: &str) -> usize {
    TOPIC_BYTES + topic.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topics(subscriptions_max: usize) -> Topics {
        let (budget, held_bytes_max) = (MemoryBudget::default(), 1 << 20);
        Topics::new(TopicsConfig { subscriptions_max, topic_bytes_max: 9, held_bytes_max, budget })
    }

    fn id(index: u32) -> Id {
        Id { index, generation: 1 }
    }

    fn subscribers(topics: &Topics, topic: &str) -> Vec<u32> {
        let mut found: Vec<_> =
            topics.subscribers(topic).map(|subscription| subscription.connection.index).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn a_topic_has_its_subscribers_until_they_leave_or_close() {
        let mut topics = topics(9);
        for (connection, topic) in [(1, "a"), (2, "a"), (1, "b"), (3, "b")] {
            topics.subscribe(id(connection), topic, Overflow::DropOldest).unwrap();
        }
        assert_eq!((subscribers(&topics, "a"), topics.len()), (vec![1, 2], 4));
        topics.unsubscribe(id(2), "a");
        topics.unsubscribe(id(2), "b");
        assert_eq!((subscribers(&topics, "a"), topics.len()), (vec![1], 3));
        assert!(topics.remove(id(1)));
        assert_eq!((subscribers(&topics, "a"), subscribers(&topics, "b")), (vec![], vec![3]));
        assert!(!topics.has_subscriptions(id(2)) && topics.has_subscriptions(id(3)));
        assert!(topics.remove(id(2)) && topics.remove(id(3)) && !topics.remove(id(3)));
        assert!(topics.subscribers.is_empty() && !topics.has_attached());
        assert_eq!(topics.len(), 0);
    }

    #[test]
    fn a_second_subscription_replaces_the_first() {
        let mut topics = topics(1);
        topics.subscribe(id(1), "a", Overflow::DropOldest).unwrap();
        topics.subscribe(id(1), "a", Overflow::Close).unwrap();
        let found: Vec<_> = topics.subscribers("a").collect();
        let expected = Subscription { connection: id(1), number: 1, overflow: Overflow::Close };
        assert_eq!((found, topics.len()), (vec![expected], 1));
    }

    #[test]
    fn a_connection_has_a_limit_of_its_own() {
        let mut topics = topics(2);
        let mut subscribe =
            |connection, topic| topics.subscribe(id(connection), topic, Overflow::Close);
        let full = Err(SubscribeError::TooManySubscriptions(2));
        let refused =
            [(1, "a"), (1, "b"), (1, "c"), (2, "c")].map(|(it, name)| subscribe(it, name));
        assert_eq!(refused, [Ok(()), Ok(()), full, Ok(())]);
        assert_eq!(subscribe(3, "0123456789"), Err(SubscribeError::TopicTooLong(9)));
        topics.unsubscribe(id(1), "a");
        assert_eq!(topics.subscribe(id(1), "c", Overflow::Close), Ok(()));
        assert_eq!(subscribers(&topics, "c"), [1, 2]);
    }

    #[test]
    fn subscriptions_are_held_bytes_and_have_a_limit_of_these() {
        let mut topics = topics(9);
        // Two topics with three subscriptions, and one subscription more.
        topics.config.held_bytes_max = 2 * (TOPIC_BYTES + 1) + 4 * SUBSCRIPTION_BYTES;
        let budget = topics.config.budget.clone();
        let mut subscribe =
            |connection, topic| topics.subscribe(id(connection), topic, Overflow::Close);
        let first = [(1, "a"), (2, "a"), (2, "b"), (3, "a")].map(|(it, name)| subscribe(it, name));
        assert_eq!(first, [Ok(()); 4]);
        assert_eq!(budget.bytes(), 2 * (TOPIC_BYTES + 1) + 4 * SUBSCRIPTION_BYTES);
        assert_eq!(subscribe(3, "b"), Err(SubscribeError::OutOfMemory));
        assert_eq!(subscribe(3, "a"), Ok(()), "it replaces the first");
        topics.unsubscribe(id(2), "b");
        assert_eq!(budget.bytes(), TOPIC_BYTES + 1 + 3 * SUBSCRIPTION_BYTES);
        assert_eq!(topics.subscribe(id(3), "b", Overflow::Close), Ok(()));
        assert!((1..=3).all(|index| topics.remove(id(index))));
        assert_eq!(budget.bytes(), 0);
    }
}
