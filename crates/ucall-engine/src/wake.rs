//! Wakes a thread only if it sleeps, and loses no wakeup.
//!
//! A thread that is about to sleep announces that and then checks for work once more. A notifier
//! leaves work and then reads the announcement. Each has a sequentially consistent fence between
//! its write and its read, so at least one of them sees the write of the other. [`SleepFlag`] is
//! this exchange. [`WakeFlag`] uses it for one thread that sleeps in an engine, [`EventCount`] for
//! any number of threads that sleep on a condition variable.
//!
//! `make test-loom` runs the tests of this file in every interleaving of their threads.
#![forbid(unsafe_code)]

use std::sync::PoisonError;
use std::time::Instant;

use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering, fence};

/// Whether a thread sleeps or is about to.
#[derive(Debug)]
struct SleepFlag(AtomicBool);

impl SleepFlag {
    fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// The thread is about to sleep. It has to check for work after this.
    fn announce(&self) {
        self.0.swap(true, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Whether the notifier, which has left work before, has to wake the thread. Clears the
    /// announcement, so that one of many notifiers wakes.
    #[inline]
    fn take(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel)
    }
}

/// Wakes one thread, the owner, that sleeps in a way of its own.
pub struct WakeFlag {
    is_notified: AtomicBool,
    sleep: SleepFlag,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl WakeFlag {
    /// A flag for the thread that `wake` wakes.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (is_notified, sleep) = (AtomicBool::new(false), SleepFlag::new());
        Self { is_notified, sleep, wake: Box::new(wake) }
    }

    /// Reports that there is work, and wakes the owner if it sleeps. The work is to be behind a
    /// lock, which the owner takes after [`WakeFlag::take_notification`].
    #[inline]
    pub fn notify(&self) {
        self.is_notified.store(true, Ordering::Release);
        if self.sleep.take() {
            (self.wake)();
        }
    }

    /// Whether there may be work since the last [`WakeFlag::take_notification`].
    #[inline]
    pub fn is_notified(&self) -> bool {
        self.is_notified.load(Ordering::Relaxed)
    }

    /// Whether there may be work, which the owner has to check for after this.
    #[inline]
    pub fn take_notification(&self) -> bool {
        self.is_notified() && self.is_notified.swap(false, Ordering::Acquire)
    }

    /// Announces that the owner is about to sleep; `false` if there may be work.
    ///
    /// The announcement stays until a notifier takes it or [`WakeFlag::clear_sleeping`] does. As
    /// long as it stays, another call costs a load.
    #[inline]
    pub fn prepare_to_sleep(&self) -> bool {
        self.sleep.0.load(Ordering::Relaxed) || self.announce_sleep()
    }

    fn announce_sleep(&self) -> bool {
        self.sleep.announce();
        let may_sleep = !self.is_notified();
        if !may_sleep {
            self.clear_sleeping();
        }
        may_sleep
    }

    /// Reports that the owner is awake and checks for work before it sleeps. Optional: it saves
    /// notifiers a wakeup.
    pub fn clear_sleeping(&self) {
        self.sleep.0.store(false, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for WakeFlag {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("WakeFlag")
    }
}

/// Wakes any number of threads that wait for a condition, which is kept elsewhere.
#[derive(Debug)]
pub struct EventCount {
    sleep: SleepFlag,
    /// Counts the notifications that a thread was announced for.
    epoch: Mutex<u64>,
    changed: Condvar,
}

impl Default for EventCount {
    fn default() -> Self {
        Self { sleep: SleepFlag::new(), epoch: Mutex::new(0), changed: Condvar::new() }
    }
}

impl EventCount {
    /// Reports that a condition may hold now.
    #[inline]
    pub fn notify(&self) {
        if self.sleep.take() {
            *self.lock() += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until `condition` returns a value, or until the deadline if there is one.
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = condition() {
            return Some(found);
        }
        loop {
            // Read before the announcement: a notifier that takes that changes the epoch, so the
            // thread does not sleep unannounced.
            let epoch = *self.lock();
            self.sleep.announce();
            if let Some(found) = condition() {
                return Some(found);
            }
            if !self.wait_for_change(epoch, deadline) {
                return None;
            }
        }
    }

    fn wait_for_change(&self, epoch: u64, deadline: Option<Instant>) -> bool {
        let mut guard = self.lock();
        while *guard == epoch {
            guard = match deadline {
                None => self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.changed.wait_timeout(guard, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.epoch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use loom::sync::Notify;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    /// The queue's driver: it polls several sources after it took the notification.
    #[test]
    fn a_thread_with_two_sources_never_sleeps_on_work() {
        loom::model(|| {
            let notify = Arc::new(Notify::new());
            let wake = notify.clone();
            let flag = Arc::new(WakeFlag::new(move || wake.notify()));
            let sources = [0, 1].map(|_| Arc::new(Mutex::new(false)));
            let notifiers = sources.clone().map(|source| {
                let flag = flag.clone();
                thread::spawn(move || {
                    *source.lock().unwrap() = true;
                    flag.notify();
                })
            });
            let mut found = 0;
            loop {
                flag.take_notification();
                let has_work = |it: &&Arc<Mutex<bool>>| std::mem::take(&mut *it.lock().unwrap());
                found += sources.iter().filter(has_work).count();
                if found == sources.len() {
                    break;
                }
                if flag.prepare_to_sleep() {
                    notify.wait();
                    flag.clear_sleeping();
                }
            }
            notifiers.into_iter().for_each(|it| it.join().unwrap());
        });
    }

    #[test]
    fn a_waiter_sees_the_last_of_two_changes() {
        loom::model(|| {
            let (events, count) = (Arc::new(EventCount::default()), Arc::new(AtomicUsize::new(0)));
            let notifiers = [0, 1].map(|_| notifier(&events, &count));
            let seen = || (count.load(Ordering::Relaxed) == 2).then_some(());
            assert_eq!(events.wait(None, seen), Some(()));
            notifiers.into_iter().for_each(|it| it.join().unwrap());
        });
    }

    #[test]
    fn a_notification_wakes_all_waiters() {
        loom::model(|| {
            let (events, count) = (Arc::new(EventCount::default()), Arc::new(AtomicUsize::new(0)));
            let notifier = notifier(&events, &count);
            let (other, others) = (events.clone(), count.clone());
            let seen = |count: &AtomicUsize| (count.load(Ordering::Relaxed) == 1).then_some(());
            let waiter = thread::spawn(move || other.wait(None, || seen(&others)));
            assert_eq!(events.wait(None, || seen(&count)), Some(()));
            assert_eq!(waiter.join().unwrap(), Some(()));
            notifier.join().unwrap();
        });
    }

    fn notifier(events: &Arc<EventCount>, count: &Arc<AtomicUsize>) -> thread::JoinHandle<()> {
        let (events, count) = (events.clone(), count.clone());
        thread::spawn(move || {
            count.fetch_add(1, Ordering::Relaxed);
            events.notify();
        })
    }
}
