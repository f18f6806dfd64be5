//! Whether a function releases the interpreter's lock while it runs, as a model on a device does.
//!
//! Another thread finds out: it waits for the lock when a batch begins. If it gets the lock while
//! the batch runs, and before CPython takes the lock away, the function has released it. Otherwise
//! the attempt has delayed others, so the next one follows after many batches.

use std::time::Duration;

/// CPython takes the lock away after the switch interval, 5 ms.
const WAIT_MAX: Duration = Duration::from_millis(4);
/// Failures in a row after which a function is taken for one that holds the lock: a thread may have
/// had no processor.
const FAILURES_MAX: u32 = 4;
/// Batches from a failure to the next attempt, the first time and at last.
const INTERVAL_MIN: u32 = 16;
const INTERVAL_MAX: u32 = 512;

/// What is known of one function.
#[derive(Default)]
pub(crate) struct LockRelease {
    is_released: bool,
    /// In a row.
    failures: u32,
    /// Batches until the next attempt.
    left: u32,
    interval: u32,
}

impl LockRelease {
    /// Whether it does, as far as is known.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released
    }

    /// A batch begins. Returns whether another thread may wait for the lock while it runs.
    pub(crate) fn batch_begins(&mut self) -> bool {
        let may_wait = self.is_released || self.left == 0;
        self.left = match may_wait {
            true => INTERVAL_MIN,
            false => self.left - 1,
        };
        may_wait
    }

    /// A thread has got the lock after so long, while the batch ran or after it.
    pub(crate) fn learn(&mut self, waited: Duration, is_running: bool) {
        if is_running && waited < WAIT_MAX {
            *self = Self { is_released: true, ..Self::default() };
            return;
        }
        self.failures += 1;
        self.is_released &= self.failures < FAILURES_MAX;
        self.interval = (2 * self.interval).clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.left = self.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(3);

    /// Batches until a thread may wait.
    fn batches_until_attempt(lock: &mut LockRelease) -> u32 {
        (0..).find(|_| lock.batch_begins()).unwrap()
    }

    #[test]
    fn a_function_releases_the_lock_if_a_thread_gets_it_soon() {
        let mut lock = LockRelease::default();
        assert!(lock.batch_begins(), "the first batch tells");
        assert!(!lock.batch_begins(), "one attempt at a time");
        lock.learn(SOON, true);
        assert!(lock.batch_begins() && lock.batch_begins());
    }

    #[test]
    fn attempts_that_fail_become_rare() {
        let mut lock = LockRelease::default();
        for interval in [16, 32, 64, 128, 256, 512, 512] {
            lock.learn(SOON, false);
            assert_eq!(batches_until_attempt(&mut lock), interval);
        }
        lock.learn(WAIT_MAX, true);
        assert_eq!(batches_until_attempt(&mut lock), 512, "CPython has taken the lock away");
    }

    #[test]
    fn few_failures_do_not_tell_that_a_function_holds_the_lock() {
        let mut lock = LockRelease::default();
        lock.learn(SOON, true);
        for _ in 1..FAILURES_MAX {
            lock.learn(SOON, false);
            assert!(lock.batch_begins());
        }
        lock.learn(SOON, true);
        lock.learn(SOON, false);
        assert!(lock.batch_begins(), "they are counted in a row");
        for _ in 1..FAILURES_MAX {
            lock.learn(SOON, false);
        }
        assert!(!lock.batch_begins());
    }
}
