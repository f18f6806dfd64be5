//! The one door through which other threads reach a worker.
//!
//! Many produce, the worker consumes. A producer pushes and then wakes the worker only if it says
//! that it sleeps; the worker says so, looks again, and only then waits. Both sides put a
//! sequentially consistent fence between their write and their read, so at least one of them sees
//! the other, and no message is left lying.
//!
//! That it sleeps may stay said while it works: then the first message wakes it for nothing, but a
//! worker to which nobody sends pays for no fence.

use crate::handler::CallId;
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, fence};
use ucall_proto::{Drain, RpcError};

/// What another thread may say to a worker.
#[derive(Debug)]
pub enum Message {
    /// End the run at once.
    Stop,
    /// End the run in order: see [`Drain`].
    Drain(Drain),
    /// The handler has replies to give: see [`Handler::poll_reply`](crate::Handler::poll_reply).
    PollReplies,
    /// The outcome of a deferred call: the JSON text of its result, or an error.
    Complete(CallId, Result<Vec<u8>, RpcError>),
}

/// Sends messages to one worker, from any thread. Clones lead to the same worker.
pub struct Mailbox<T = Message> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    messages: Mutex<Vec<T>>,
    /// Whether there may be messages; looked at without the lock.
    has_messages: AtomicBool,
    /// Whether the worker sleeps, or is about to.
    is_sleeping: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> Mailbox<T> {
    /// A mailbox whose owner `wake` wakes.
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let shared = Shared {
            messages: Mutex::new(Vec::new()),
            has_messages: AtomicBool::new(false),
            is_sleeping: AtomicBool::new(false),
            wake: Box::new(wake),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sends a message, and wakes the worker if it sleeps.
    pub fn send(&self, message: T) {
        self.lock().push(message);
        self.shared.has_messages.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Only the one who takes the flag down wakes: a crowd of senders makes one wake.
        if self.shared.is_sleeping.load(Ordering::Relaxed)
            && self.shared.is_sleeping.swap(false, Ordering::AcqRel)
        {
            (self.shared.wake)();
        }
    }

    /// Says that the worker is about to sleep. `false` when a message came before: then it must
    /// not.
    #[inline]
    pub(crate) fn prepare_to_sleep(&self) -> bool {
        // Said before, and nobody has taken it down: who sends now will, and wakes.
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

    /// Says that the worker is awake, and will look: whoever sends meanwhile need not wake it.
    pub(crate) fn clear_sleeping(&self) {
        self.shared.is_sleeping.store(false, Ordering::Relaxed);
    }

    /// Whether there are messages.
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
        // A panic cannot happen while the lock is held, so what it guards is whole.
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
