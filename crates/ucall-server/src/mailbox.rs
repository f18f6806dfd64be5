//! The mailbox: the thread-safe queue of messages to a worker.
//!
//! A sender pushes a message, then wakes the worker if `is_sleeping` is set. The worker sets
//! `is_sleeping`, checks for messages again, and then waits. Both put a sequentially consistent
//! fence between their write and their read, so at least one of them sees the other's write, and no
//! message is lost.
//!
//! The flag may stay set while the worker runs. Then the first message wakes it needlessly, but a
//! worker without messages pays for no fence.

use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, fence};
use ucall_proto::Drain;

/// A message to a worker.
#[derive(Debug)]
pub enum Message {
    /// Stop at once.
    Stop,
    /// Drain, then stop.
    Drain(Drain),
}

/// Sends messages to one worker, from any thread. Clones send to the same worker.
pub struct Mailbox<T = Message> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    messages: Mutex<Vec<T>>,
    /// Whether there may be messages or replies. Read without the lock.
    has_messages: AtomicBool,
    /// Whether a message has to wake the worker.
    is_sleeping: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> Mailbox<T> {
    /// A mailbox whose worker is woken by `wake`.
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Shared {
            messages: Mutex::new(Vec::new()),
            has_messages: AtomicBool::new(false),
            is_sleeping: AtomicBool::new(false),
            wake: Box::new(wake),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sends a message, and wakes the worker.
    pub fn send(&self, message: T) {
        self.lock().push(message);
        self.wake();
    }

    /// Wakes the worker if it sleeps. Its turn then reads the messages, and polls the handler for
    /// replies ([`Handler::poll_reply`](crate::Handler::poll_reply)).
    pub fn wake(&self) {
        self.shared.has_messages.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Only the sender that clears the flag wakes, so many senders cause one wake.
        if self.shared.is_sleeping.load(Ordering::Relaxed)
            && self.shared.is_sleeping.swap(false, Ordering::AcqRel)
        {
            (self.shared.wake)();
        }
    }

    /// Announces that the worker is about to sleep. `false` if there is a message: then it must not
    /// sleep.
    #[inline]
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        // A flag that is still set means that no message was sent since it was set.
        self.shared.is_sleeping.load(Ordering::Relaxed) || self.announce_sleep()
    }

    fn announce_sleep(&self) -> bool {
        self.shared.is_sleeping.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        let may_sleep = !self.shared.has_messages.load(Ordering::Relaxed);
        if !may_sleep {
            self.clear_sleeping();
        }
        may_sleep
    }

    /// Announces that the worker is awake and will check for messages, so none has to wake it.
    pub(crate) fn clear_sleeping(&self) {
        self.shared.is_sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether there may be messages or replies.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        self.shared.has_messages.load(Ordering::Relaxed)
    }

    /// Moves all messages to the end of `messages`.
    pub(crate) fn take(&self, messages: &mut Vec<T>) {
        if self.has_messages() {
            let mut waiting = self.lock();
            self.shared.has_messages.store(false, Ordering::Relaxed);
            messages.append(&mut waiting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        // No code panics while it holds the lock, so the messages are intact.
        self.shared.messages.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<T> std::fmt::Debug for Mailbox<T> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Mailbox")
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::sync::Notify;

    /// In every interleaving, the worker ends with all messages: it never sleeps over one.
    #[test]
    fn no_wakeup_is_lost() {
        loses_no_wakeup(true);
    }

    #[test]
    fn no_wakeup_is_lost_without_clearing_the_flag() {
        loses_no_wakeup(false);
    }

    fn loses_no_wakeup(clears_the_flag: bool) {
        loom::model(move || {
            let notify = Arc::new(Notify::new());
            let wake = notify.clone();
            let mailbox = Mailbox::new(move || wake.notify());
            let producers: Vec<_> = (0..2)
                .map(|number| {
                    let mailbox = mailbox.clone();
                    loom::thread::spawn(move || mailbox.send(number))
                })
                .collect();
            let mut messages = Vec::new();
            while messages.len() < 2 {
                mailbox.take(&mut messages);
                if messages.len() < 2 && mailbox.prepare_to_sleep() {
                    notify.wait();
                    if clears_the_flag {
                        mailbox.clear_sleeping();
                    }
                }
            }
            for producer in producers {
                producer.join().unwrap();
            }
            messages.sort_unstable();
            assert_eq!(messages, [0, 1]);
        });
    }
}
