//! Waking others only when they sleep.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Wakes the one thread that drives a hub.
///
/// The thread says that it sleeps, looks again at everything that others may have left for it, and
/// only then waits. Others leave something and then ring. Both put a sequentially consistent fence
/// between the two, so that one of them sees the other.
pub struct WakeFlag {
    is_sleeping: AtomicBool,
    is_notified: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl WakeFlag {
    /// A bell that `wake` sounds.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (is_sleeping, is_notified) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { is_sleeping, is_notified, wake: Box::new(wake) }
    }

    /// Tells that there is something, and wakes the thread if it sleeps.
    #[inline]
    pub fn notify(&self) {
        self.is_notified.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Only the one who takes the flag down wakes: a crowd makes one wake.
        if self.is_sleeping.load(Ordering::Relaxed)
            && self.is_sleeping.swap(false, Ordering::AcqRel)
        {
            (self.wake)();
        }
    }

    /// Says that the thread is about to sleep; `false` when it was rung for and must not.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.is_sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = !self.is_notified.load(Ordering::Relaxed);
        if !may_sleep {
            self.is_sleeping.store(false, Ordering::Relaxed);
        }
        may_sleep
    }

    /// Says that the thread is awake and will look at everything now.
    pub(crate) fn finish_sleep(&self) {
        self.is_sleeping.store(false, Ordering::Relaxed);
        self.is_notified.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl std::fmt::Debug for WakeFlag {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Doorbell")
    }
}

/// Wakes any number of threads that wait for a condition which is kept elsewhere.
#[derive(Debug, Default)]
pub struct EventCount {
    waiters: AtomicUsize,
    /// Counts the rings that somebody waited for.
    epoch: Mutex<u64>,
    changed: Condvar,
}

impl EventCount {
    /// Tells that something has changed.
    #[inline]
    pub fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            *self.lock() += 1;
            self.changed.notify_all();
        }
    }

    /// Waits until `condition` gives something, or until the deadline (`None`: for ever).
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = condition() {
            return Some(found);
        }
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let found = loop {
            // A ring between this look and the wait is seen by its count.
            let epoch = *self.lock();
            if let Some(found) = condition() {
                break Some(found);
            }
            if !self.wait_for_change(epoch, deadline) {
                break None;
            }
        };
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        found
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
