//! The clock of an engine: the system's, or one that a test moves.
//!
//! The layers above take the time as an argument, and whoever runs their turns reads it here. The
//! clock of the [fake engine](crate::fake) stands still until a test moves it, or a wait reaches
//! its deadline. So a test of a timeout of minutes takes microseconds, and passes on a busy
//! machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A clock. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct EngineClock(Option<Arc<MovedTime>>);

/// The time of a test.
#[derive(Debug)]
struct MovedTime {
    /// An `Instant` cannot be made otherwise. Only differences to it matter.
    origin: Instant,
    nanos: AtomicU64,
}

/// The calendar time of a test at its beginning: Sun, 09 Sep 2001 01:46:40 GMT.
const UNIX_TIME: Duration = Duration::from_secs(1_000_000_000);

impl PartialEq for EngineClock {
    fn eq(&self, other: &Self) -> bool {
        let pointer = |clock: &Self| clock.0.as_ref().map(Arc::as_ptr);
        pointer(self) == pointer(other)
    }
}

impl Eq for EngineClock {}

impl EngineClock {
    /// The system's clock.
    pub const SYSTEM: Self = Self(None);

    /// A clock that [`EngineClock::advance`] moves, and nothing else.
    pub fn stopped() -> Self {
        let time = MovedTime { origin: Instant::now(), nanos: AtomicU64::new(0) };
        Self(Some(Arc::new(time)))
    }

    /// The present moment.
    #[inline(always)]
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(time) => time.origin + time.moved(),
        }
    }

    /// The time since 1970.
    #[inline]
    pub fn unix_time(&self) -> Duration {
        match &self.0 {
            None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            Some(time) => UNIX_TIME + time.moved(),
        }
    }

    /// The time since a moment that all processes of this machine share. It never goes back.
    #[inline]
    pub fn uptime(&self) -> Duration {
        match &self.0 {
            None => Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default(),
            Some(time) => time.moved(),
        }
    }

    /// Moves a stopped clock on.
    ///
    /// # Panics
    /// For the system's clock.
    pub fn advance(&self, duration: Duration) {
        let Some(time) = &self.0 else { panic!("the system's clock cannot be moved") };
        time.nanos.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl MovedTime {
    fn moved(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}
