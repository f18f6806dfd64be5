//! The messages that a server starts: from any thread to the connections of one worker.
//!
//! A subscription counts at once, on whichever thread it is made, so the reply that follows may
//! tell the client that messages will come. Messages wait in a queue until the worker takes them.
//! The queue is bounded: past its limit messages are dropped and counted, and a publisher never
//! waits.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ucall_engine::{Id, WorkerSockets};

use crate::counters::{Counters, DatagramCounts};
use crate::mailbox::Mailbox;
use crate::overflow::Overflow;
use crate::server_message::ServerMessage;
use crate::topics::{SubscribeError, Subscription, Topics, TopicsConfig};

/// Bytes of messages that wait for their worker, which may be busy in a function.
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Bytes of messages that a turn takes, so that the sends of a turn end before the next messages.
const TAKEN_BYTES_MAX: usize = 32 << 10;
/// What a queued message costs besides its text, at least.
const ENTRY_BYTES: usize = 128;

/// What a worker is to do with its connections.
#[derive(Debug)]
pub(crate) enum Push {
    /// Send a message to one connection.
    Notify(Id, ServerMessage),
    /// Send a message to the subscribers of its topic.
    Publish(ServerMessage),
    /// The subscriptions of the connection have changed, or its end is to be reported.
    Update(Id),
}

/// Sends messages to the connections of one worker, and keeps their subscriptions.
#[derive(Debug)]
pub struct Publisher {
    mailbox: Mailbox,
    topics: Mutex<Topics>,
    /// Whether a connection is attached. Read without the lock.
    has_attached: AtomicBool,
    /// How many calls [`Handler::published`](crate::Handler::published) waits for.
    listeners: AtomicUsize,
    queue: Mutex<Queue>,
    /// Read without the lock.
    is_nonempty: AtomicBool,
    counters: Mutex<Arc<Counters>>,
    /// The sockets of other processes, until the first subscription.
    sockets: Mutex<Option<Arc<WorkerSockets>>>,
}

#[derive(Debug, Default)]
struct Queue {
    pushes: VecDeque<Push>,
    bytes: usize,
}

/// For any thread.
impl Publisher {
    pub(crate) fn new(mailbox: Mailbox, topics: TopicsConfig) -> Self {
        Self {
            mailbox,
            topics: Mutex::new(Topics::new(topics)),
            has_attached: AtomicBool::new(false),
            listeners: AtomicUsize::new(0),
            queue: Mutex::default(),
            is_nonempty: AtomicBool::new(false),
            counters: Mutex::default(),
            sockets: Mutex::default(),
        }
    }

    /// Sends a message to one connection, after those that this thread has sent before. It is
    /// dropped if the connection is closed, or has no channel for messages: over HTTP.
    pub fn notify(&self, connection: Id, message: ServerMessage) {
        self.push(Push::Notify(connection, message));
    }

    /// Sends a message to the subscribers of its topic.
    pub fn publish(&self, message: ServerMessage) {
        if self.has_listeners() || lock(&self.topics).len() > 0 {
            self.push(Push::Publish(message));
        }
    }

    /// Subscribes an open connection to a topic. A second subscription replaces the first.
    ///
    /// # Errors
    /// Past the limits of the worker's configuration.
    pub fn subscribe(
        self: &Arc<Self>,
        connection: Id,
        topic: &str,
        overflow: Overflow,
    ) -> Result<(), SubscribeError> {
        self.receive_from_others();
        self.change(connection, |topics| topics.subscribe(connection, topic, overflow))
    }

    /// Has the worker call [`Handler::published`](crate::Handler::published) with each message that
    /// is published, here or by another process, while `count` is above 0. They count as
    /// subscriptions.
    pub fn set_listeners(self: &Arc<Self>, count: usize) {
        self.receive_from_others();
        self.listeners.store(count, Ordering::Relaxed);
        self.topics_changed(&lock(&self.topics));
    }

    pub(crate) fn has_listeners(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) > 0
    }

    /// Begins to publish what other processes send.
    fn receive_from_others(self: &Arc<Self>) {
        if let Some(sockets) = lock(&self.sockets).take() {
            self.relay(sockets);
        }
    }

    /// Ends the subscription of a connection to a topic, if it has one.
    pub fn unsubscribe(&self, connection: Id, topic: &str) {
        self.change(connection, |topics| topics.unsubscribe(connection, topic));
    }

    /// Has the worker call [`Handler::connection_closed`](crate::Handler::connection_closed) when
    /// the connection closes, or soon if it is closed.
    pub fn attach(&self, connection: Id) {
        self.change(connection, |topics| topics.attach(connection));
    }

    /// Changes the subscriptions of a connection. It may have closed meanwhile, which only the
    /// worker knows.
    fn change<T>(&self, connection: Id, change: impl FnOnce(&mut Topics) -> T) -> T {
        let mut topics = lock(&self.topics);
        let changed = change(&mut topics);
        self.topics_changed(&topics);
        drop(topics);
        self.push(Push::Update(connection));
        changed
    }

    fn topics_changed(&self, topics: &Topics) {
        self.has_attached.store(topics.has_attached(), Ordering::Relaxed);
        let count = topics.len() + self.listeners.load(Ordering::Relaxed);
        lock(&self.counters).set_subscriptions(count as u64);
    }

    fn push(&self, push: Push) {
        let bytes = push.bytes();
        let mut queue = lock(&self.queue);
        if bytes > 0 && queue.bytes + bytes > QUEUED_BYTES_MAX {
            drop(queue);
            return lock(&self.counters).add_dropped(1);
        }
        queue.bytes += bytes;
        queue.pushes.push_back(push);
        let was_nonempty = self.is_nonempty.swap(true, Ordering::Relaxed);
        drop(queue);
        if !was_nonempty {
            self.mailbox.wake_flag().notify();
        }
    }

    /// Publishes what other worker processes send, from the first subscription on.
    pub fn set_sockets(&self, sockets: Arc<WorkerSockets>) {
        *lock(&self.sockets) = Some(sockets);
    }

    /// Publishes what other processes send, on a thread of its own, until this is dropped.
    fn relay(self: &Arc<Self>, sockets: Arc<WorkerSockets>) {
        // Earlier messages were for the subscribers of an earlier process.
        sockets.discard();
        let publisher = Arc::downgrade(self);
        let relay = move || {
            while let Ok(bytes) = sockets.receive()
                && let Some(publisher) = publisher.upgrade()
            {
                if let Some(message) = ServerMessage::parse(bytes.into()) {
                    publisher.publish(message);
                }
            }
        };
        // Without a thread there is no memory for its messages either.
        let _ = std::thread::Builder::new().name("ucall-publish".into()).spawn(relay);
    }
}

/// For the worker.
impl Publisher {
    pub(crate) fn counters(&self) -> Arc<Counters> {
        lock(&self.counters).clone()
    }

    pub(crate) fn set_counters(&self, counters: Arc<Counters>) {
        counters.set_subscriptions(lock(&self.topics).len() as u64);
        *lock(&self.counters) = counters;
    }

    pub(crate) fn set_datagrams(&self, counts: DatagramCounts) {
        lock(&self.counters).set_datagrams(counts);
    }

    /// Counts messages that were dropped for slow clients.
    pub(crate) fn count_dropped(&self, count: u64) {
        lock(&self.counters).add_dropped(count);
    }

    #[inline]
    pub(crate) fn has_pushes(&self) -> bool {
        self.is_nonempty.load(Ordering::Relaxed)
    }

    /// Moves pushes to `pushes`, which is empty. If some are left, another turn follows.
    pub(crate) fn take(&self, pushes: &mut VecDeque<Push>) {
        let mut queue = lock(&self.queue);
        if queue.bytes <= TAKEN_BYTES_MAX {
            self.is_nonempty.store(false, Ordering::Relaxed);
            queue.bytes = 0;
            return mem::swap(&mut queue.pushes, pushes);
        }
        let mut taken = 0;
        while taken < TAKEN_BYTES_MAX
            && let Some(push) = queue.pushes.pop_front()
        {
            taken += push.bytes();
            pushes.push_back(push);
        }
        queue.bytes -= taken;
        self.is_nonempty.store(!queue.pushes.is_empty(), Ordering::Relaxed);
        self.mailbox.wake_flag().notify();
    }

    /// Copies the subscriptions to a topic.
    pub(crate) fn subscribers(&self, topic: &str, subscribers: &mut Vec<Subscription>) {
        subscribers.extend(lock(&self.topics).subscribers(topic));
    }

    pub(crate) fn has_subscriptions(&self, connection: Id) -> bool {
        lock(&self.topics).has_subscriptions(connection)
    }

    /// Ends the subscriptions of a closed connection; `true` if it was attached.
    #[inline]
    pub(crate) fn remove(&self, connection: Id) -> bool {
        self.has_attached.load(Ordering::Relaxed) && self.remove_attached(connection)
    }

    #[cold]
    fn remove_attached(&self, connection: Id) -> bool {
        let mut topics = lock(&self.topics);
        let was_attached = topics.remove(connection);
        self.topics_changed(&topics);
        was_attached
    }
}

impl Push {
    /// What it counts towards the limit of the queue.
    fn bytes(&self) -> usize {
        match self {
            Self::Notify(_, message) | Self::Publish(message) => {
                message.bytes().len() + ENTRY_BYTES
            }
            Self::Update(_) => 0,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
