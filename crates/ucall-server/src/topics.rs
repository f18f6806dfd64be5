//! The topics that the connections of one worker subscribe to.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use ucall_engine::Id;

use crate::overflow::Overflow;

/// The subscription of one connection to one topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Subscription {
    pub(crate) connection: Id,
    /// The number of the subscription, above 0, which no other of the worker has had.
    pub(crate) number: u64,
    pub(crate) overflow: Overflow,
}

/// The subscriptions of a worker.
///
/// A connection is *attached* from its first subscription, or from the first use of its session,
/// until it closes. So the end of any other connection costs one comparison.
#[derive(Debug, Default)]
pub(crate) struct Topics {
    subscribers: HashMap<Arc<str>, HashMap<Id, Subscription>>,
    /// The topics of each attached connection.
    attached: HashMap<Id, HashSet<Arc<str>>>,
    /// Subscriptions so far.
    numbers: u64,
    len: usize,
}

impl Topics {
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

    /// Subscribes a connection; `false` if it has `subscriptions_max` already. A second
    /// subscription to a topic replaces the first.
    pub(crate) fn subscribe(
        &mut self,
        connection: Id,
        topic: &str,
        overflow: Overflow,
        subscriptions_max: usize,
    ) -> bool {
        let topics = self.attached.entry(connection).or_default();
        if let Some(subscribers) = self.subscribers.get_mut(topic)
            && let Some(subscription) = subscribers.get_mut(&connection)
        {
            subscription.overflow = overflow;
            return true;
        }
        if topics.len() >= subscriptions_max {
            return false;
        }
        let name = match self.subscribers.get_key_value(topic) {
            Some((name, _)) => name.clone(),
            None => Arc::from(topic),
        };
        topics.insert(name.clone());
        self.numbers += 1;
        self.len += 1;
        let subscription = Subscription { connection, number: self.numbers, overflow };
        self.subscribers.entry(name).or_default().insert(connection, subscription);
        true
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
        let was_subscribed = subscribers.remove(&connection).is_some();
        if subscribers.is_empty() {
            self.subscribers.remove(topic);
        }
        self.len -= usize::from(was_subscribed);
        was_subscribed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut topics = Topics::default();
        for (connection, topic) in [(1, "a"), (2, "a"), (1, "b"), (3, "b")] {
            assert!(topics.subscribe(id(connection), topic, Overflow::DropOldest, 9));
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
        let mut topics = Topics::default();
        assert!(topics.subscribe(id(1), "a", Overflow::DropOldest, 1));
        assert!(topics.subscribe(id(1), "a", Overflow::Close, 1));
        let found: Vec<_> = topics.subscribers("a").collect();
        let expected = Subscription { connection: id(1), number: 1, overflow: Overflow::Close };
        assert_eq!((found, topics.len()), (vec![expected], 1));
    }

    #[test]
    fn a_connection_has_a_limit_of_its_own() {
        let mut topics = Topics::default();
        assert!(topics.subscribe(id(1), "a", Overflow::Close, 2));
        assert!(topics.subscribe(id(1), "b", Overflow::Close, 2));
        assert!(!topics.subscribe(id(1), "c", Overflow::Close, 2));
        assert!(topics.subscribe(id(2), "c", Overflow::Close, 2));
        topics.unsubscribe(id(1), "a");
        assert!(topics.subscribe(id(1), "c", Overflow::Close, 2));
        assert_eq!(subscribers(&topics, "c"), [1, 2]);
    }
}
