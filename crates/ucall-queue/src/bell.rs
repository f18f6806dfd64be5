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
pub struct Doorbell {
    sleeps: AtomicBool,
    rung: AtomicBool,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Doorbell {
    /// A bell that `wake` sounds.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (sleeps, rung) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { sleeps, rung, wake: Box::new(wake) }
    }

    /// Tells that there is something, and wakes the thread if it sleeps.
    #[inline]
    pub fn ring(&self) {
        self.rung.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Only the one who takes the flag down wakes: a crowd makes one wake.
        if self.sleeps.load(Ordering::Relaxed) && self.sleeps.swap(false, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Says that the thread is about to sleep; `false` when it was rung for and must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeps.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let may_sleep = !self.rung.load(Ordering::Relaxed);
        if !may_sleep {
            self.sleeps.store(false, Ordering::Relaxed);
        }
        may_sleep
    }

    /// Says that the thread is awake and will look at everything now.
    pub(crate) fn wake_up(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
        self.rung.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

impl std::fmt::Debug for Doorbell {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Doorbell")
    }
}

/// Wakes any number of threads that wait for a condition which is kept elsewhere.
#[derive(Debug, Default)]
pub struct Bell {
    waiting: AtomicUsize,
    /// Counts the rings that somebody waited for.
    rings: Mutex<u64>,
    rung: Condvar,
}

impl Bell {
    /// Tells that something has changed.
    #[inline]
    pub fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.lock() += 1;
            self.rung.notify_all();
        }
    }

    /// Waits until `holds` gives something, or until the deadline (`None`: for ever).
    pub fn wait<T>(
        &self,
        deadline: Option<Instant>,
        mut holds: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = holds() {
            return Some(found);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let found = loop {
            // A ring between this look and the wait is seen by its count.
            let rings = *self.lock();
            if let Some(found) = holds() {
                break Some(found);
            }
            if !self.wait_for_ring(rings, deadline) {
                break None;
            }
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        found
    }

    fn wait_for_ring(&self, rings: u64, deadline: Option<Instant>) -> bool {
        let mut guard = self.lock();
        while *guard == rings {
            guard = match deadline {
                None => self.rung.wait(guard).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.rung.wait_timeout(guard, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
