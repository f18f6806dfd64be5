//! A queue of messages from any thread to one, which sleeps in an engine.
#![forbid(unsafe_code)]

use std::sync::PoisonError;

use crate::sync::{Arc, Mutex};
use crate::wake::WakeFlag;

/// Sends messages to one thread, its owner, from any other. Clones send to the same owner.
pub struct Mailbox<T> {
    messages: Arc<Mutex<Vec<T>>>,
    wake_flag: Arc<WakeFlag>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), wake_flag: self.wake_flag.clone() }
    }
}

impl<T> Mailbox<T> {
    /// A mailbox whose owner `wake` wakes.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let wake_flag = Arc::new(WakeFlag::new(wake));
        Self { messages: Arc::new(Mutex::new(Vec::new())), wake_flag }
    }

    /// The flag that wakes the owner, for what else it has to be notified of.
    pub fn wake_flag(&self) -> &Arc<WakeFlag> {
        &self.wake_flag
    }

    /// Sends a message, and wakes the owner if it sleeps.
    pub fn send(&self, message: T) {
        // A panic cannot happen while the lock is held, so what it guards is whole.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.wake_flag.notify();
    }

    /// Announces that the owner is about to sleep: see [`WakeFlag::prepare_to_sleep`].
    #[inline]
    pub fn prepare_to_sleep(&self) -> bool {
        self.wake_flag.prepare_to_sleep()
    }

    /// Reports that the owner is awake: see [`WakeFlag::clear_sleeping`].
    pub fn clear_sleeping(&self) {
        self.wake_flag.clear_sleeping();
    }

    /// Whether there may be messages.
    #[inline]
    pub fn has_messages(&self) -> bool {
        self.wake_flag.is_notified()
    }

    /// Moves all messages to the end of `messages`. What else the flag was notified of is to be
    /// polled after this.
    pub fn take(&self, messages: &mut Vec<T>) {
        if self.wake_flag.take_notification() {
            messages.append(&mut self.messages.lock().unwrap_or_else(PoisonError::into_inner));
        }
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

    /// In every interleaving, the owner ends with all messages: it never sleeps on one.
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
