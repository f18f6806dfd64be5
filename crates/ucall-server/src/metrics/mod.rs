//! Metrics of calls: their durations by method and error, the sizes and durations of batches, and
//! how many calls run and wait, and how long, on a page that any process may read.
//!
//! Only the worker's thread records the durations of calls and the sizes of batches, so that needs
//! no atomic addition. Any thread records all else.

mod name;
mod page;
mod reader;
mod text;
mod upstreams;

pub use page::MetricsPage;
pub use reader::MetricsReader;
pub(crate) use reader::PATH;
pub use text::ServerMetrics;
pub use upstreams::{Circuit, UpstreamCounts, UpstreamMetrics};

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use self::page::{RESERVED, Series, add};

/// The last bucket has no bound.
pub const BUCKETS: usize = 42;
/// The bound of a histogram's first bucket: of durations in nanoseconds, of sizes in calls.
const DURATION_UNIT: u64 = 10_000;
const SIZE_UNIT: u64 = 1;

/// The name of methods that are unknown, or without a series of their own.
pub const OTHER_METHOD: &str = "_OTHER";
/// Stands for the error codes without a series of their own.
pub const OTHER_CODE: i64 = i64::MAX;

/// What a series measures.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Measure {
    /// Durations of calls that had a result, in nanoseconds.
    Success,
    /// Durations of calls that ended with the error of this code, in nanoseconds.
    Error(i64),
    /// The number of calls in each batch.
    BatchSize,
    /// Time that calls have waited for a thread or their batch, in nanoseconds.
    QueueWait,
    /// Durations of batches, in nanoseconds.
    BatchDuration,
    /// Processes that have loaded a model now, which has the name of a method. The sum counts them.
    LoadedModel,
}

impl Measure {
    fn encode(self) -> (u32, i64) {
        match self {
            Self::Success => (0, 0),
            Self::Error(code) => (1, code),
            Self::BatchSize => (2, 0),
            Self::QueueWait => (3, 0),
            Self::BatchDuration => (4, 0),
            Self::LoadedModel => (5, 0),
        }
    }

    fn decode(kind: u32, code: i64) -> Self {
        match kind {
            0 => Self::Success,
            1 => Self::Error(code),
            2 => Self::BatchSize,
            3 => Self::QueueWait,
            4 => Self::BatchDuration,
            _ => Self::LoadedModel,
        }
    }

    /// The index of the reserved series for this measure.
    fn other(self) -> usize {
        self.encode().0 as usize
    }
}

/// The index of a method's series in the page of its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SeriesIndex(u16);

impl SeriesIndex {
    /// The series of unknown methods.
    pub const OTHER: Self = Self(0);
}

/// A copy of a series' values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// The sum of all values.
    pub sum: u64,
    /// The number of values in each bucket.
    pub buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { sum: 0, buckets: [0; BUCKETS] }
    }
}

impl Histogram {
    fn add(&mut self, other: &Self) {
        self.sum += other.sum;
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
    }
}

/// Calls that wait before they run, by what they wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// A thread.
    Thread,
    /// The batch that they will be part of.
    Batch,
}

/// The sum of the metrics of some pages.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MetricsSnapshot {
    /// The histograms by method and measure.
    pub series: BTreeMap<(String, Measure), Histogram>,
    /// Calls that have begun and not ended.
    pub running: u64,
    /// Those of them that wait for a thread.
    pub waiting_for_thread: u64,
    /// Those of them that wait for their batch.
    pub waiting_for_batch: u64,
    /// Nanoseconds that workers have waited for the interpreter's lock.
    pub lock_wait_ns: u64,
    /// Workers that have started.
    pub worker_starts: u64,
    /// The start of the first process, in milliseconds of Unix time.
    pub started_ms: u64,
    /// The upstreams of relays, by their names.
    pub upstreams: BTreeMap<String, UpstreamCounts>,
}

#[derive(Debug)]
enum PageMemory {
    Own(Box<MetricsPage>),
    Shared(&'static MetricsPage),
}

/// The metrics of one process' calls.
#[derive(Debug)]
pub struct CallMetrics {
    page: PageMemory,
    /// The series of errors and of batches, by that of their method.
    by_measure: Mutex<HashMap<(SeriesIndex, Measure), SeriesIndex, FixedState>>,
}

impl Default for CallMetrics {
    fn default() -> Self {
        Self::new(PageMemory::Own(Box::default()))
    }
}

impl Deref for CallMetrics {
    type Target = MetricsPage;

    #[inline(always)]
    fn deref(&self) -> &MetricsPage {
        match &self.page {
            PageMemory::Own(page) => page,
            PageMemory::Shared(page) => page,
        }
    }
}

impl CallMetrics {
    fn new(page: PageMemory) -> Self {
        let metrics = Self { page, by_measure: Mutex::default() };
        metrics.register(OTHER_METHOD);
        metrics
    }

    /// Metrics on a page that other processes read. The methods of `before` keep their indices;
    /// nothing else of it is kept.
    pub fn shared(page: &'static MetricsPage, before: &Self) -> Self {
        let metrics = Self::new(PageMemory::Shared(page));
        before.series().iter().skip(RESERVED.len()).for_each(|series| {
            metrics.page_index(&series.method(), series.measure());
        });
        metrics
    }

    /// The series of a method's calls.
    pub fn register(&self, method: &str) -> SeriesIndex {
        self.with_registry(|_| self.page_index(method, Measure::Success))
    }

    /// Registers series, one caller at a time.
    fn with_registry<T>(&self, register: impl FnOnce(&MetricsPage) -> T) -> T {
        let _guard = self.by_measure.lock().unwrap_or_else(PoisonError::into_inner);
        register(self)
    }

    fn page_index(&self, method: &str, measure: Measure) -> SeriesIndex {
        SeriesIndex(self.find_or_insert(method, measure) as u16)
    }

    /// Records a call that has ended, with a result or with the error of a code. Only the worker's
    /// thread records.
    #[inline]
    pub fn record(&self, method: SeriesIndex, duration: Duration, error: Option<i64>) {
        let index = match error {
            None => method,
            Some(code) => self.index_of(method, Measure::Error(code)),
        };
        if let Some(series) = self.at(usize::from(index.0)) {
            series.record(duration.as_nanos() as u64, DURATION_UNIT);
        }
    }

    /// Records a batch that has begun.
    pub fn record_batch(&self, method: SeriesIndex, size: usize) {
        let index = self.index_of(method, Measure::BatchSize);
        if let Some(series) = self.at(usize::from(index.0)) {
            series.record_anywhere(size as u64, SIZE_UNIT);
        }
    }

    /// Records how long a call has waited for a thread or its batch, on any thread.
    pub fn record_queue_wait(&self, method: SeriesIndex, wait: Duration) {
        self.record_anywhere(method, Measure::QueueWait, wait);
    }

    /// Records a batch that has ended, on any thread.
    pub fn record_batch_duration(&self, method: SeriesIndex, duration: Duration) {
        self.record_anywhere(method, Measure::BatchDuration, duration);
    }

    /// Counts a process that has loaded a model, on any thread.
    pub fn begin_loaded(&self, model: &str) {
        self.loaded(model, |count| count.fetch_add(1, Ordering::Relaxed));
    }

    /// Counts the end of a process that [`CallMetrics::begin_loaded`] has counted.
    pub fn end_loaded(&self, model: &str) {
        self.loaded(model, |count| count.fetch_sub(1, Ordering::Relaxed));
    }

    fn loaded(&self, model: &str, change: impl FnOnce(&AtomicU64) -> u64) {
        let index = self.with_registry(|_| self.page_index(model, Measure::LoadedModel));
        if let Some(series) = self.at(usize::from(index.0)) {
            change(&series.sum);
        }
    }

    fn record_anywhere(&self, method: SeriesIndex, measure: Measure, duration: Duration) {
        let index = self.index_of(method, measure);
        if let Some(series) = self.at(usize::from(index.0)) {
            series.record_anywhere(duration.as_nanos() as u64, DURATION_UNIT);
        }
    }

    #[cold]
    fn index_of(&self, method: SeriesIndex, measure: Measure) -> SeriesIndex {
        let mut indices = self.by_measure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = indices.get(&(method, measure)) {
            return *index;
        }
        let name = self.at(usize::from(method.0)).map(Series::method).unwrap_or_default();
        let index = self.page_index(&name, measure);
        if usize::from(index.0) != measure.other() {
            indices.insert((method, measure), index);
        }
        index
    }

    /// Counts a worker that has started, at this time since 1970.
    pub fn count_worker(&self, unix_time: Duration) {
        self.set_started(unix_time);
        self.worker_starts.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a wait of the worker for the interpreter's lock.
    pub fn add_lock_wait(&self, wait: Duration) {
        add(&self.lock_wait_ns, wait.as_nanos() as u64);
    }

    /// Counts a call that has begun, on any thread.
    pub fn begin_call(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a call that [`CallMetrics::begin_call`] has counted.
    pub fn end_call(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a call that waits, on any thread.
    pub fn begin_wait(&self, what: WaitsFor) {
        self.waiting(what).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a wait that [`CallMetrics::begin_wait`] has counted.
    pub fn end_wait(&self, what: WaitsFor) {
        self.waiting(what).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts as a running call until it is dropped.
#[derive(Debug)]
pub struct RunningCall {
    metrics: Arc<CallMetrics>,
    series: SeriesIndex,
    began: Instant,
}

impl RunningCall {
    /// Counts a call that has begun at that time.
    pub fn new(metrics: Arc<CallMetrics>, series: SeriesIndex, began: Instant) -> Self {
        metrics.begin_call();
        Self { metrics, series, began }
    }

    /// Records the call's end at `now`, with the code of its error.
    pub fn record(&self, error: Option<i64>, now: Instant) {
        self.metrics.record(self.series, now.saturating_duration_since(self.began), error);
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.metrics.end_call();
    }
}

/// The bounds of the buckets of durations, in nanoseconds: two an octave. The last bucket has none.
fn duration_bounds() -> [u64; BUCKETS - 1] {
    std::array::from_fn(|at| (DURATION_UNIT / 2 * (2 + (at as u64 & 1))) << (at / 2))
}

/// The bounds of every other bucket of batch sizes: those between are no whole numbers at first.
fn size_bounds() -> [u64; BUCKETS / 2] {
    std::array::from_fn(|doublings| SIZE_UNIT << doublings)
}

#[cfg(test)]
mod tests;
