//! A page of metrics, in the memory of one process or in memory that processes share.
//!
//! A page holds series. Each has a key, which is written once, and a histogram. Its buckets are two
//! an octave, so that the exponent and the first digit of a floating-point number are the index.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

use super::name::{NAME_BYTES_MAX, Name};
use super::upstreams::UpstreamPage;
use super::{BUCKETS, Histogram, Measure, MetricsSnapshot, OTHER_CODE, OTHER_METHOD, WaitsFor};

/// The series of a page.
pub(super) const SERIES_MAX: usize = 256;
/// Series of errors are refused from here on, so that errors leave room for methods.
pub(super) const ERROR_SERIES_MAX: usize = 192;
/// The series that every page begins with. They take what finds no room.
pub(super) const RESERVED: [Measure; 6] = [
    Measure::Success,
    Measure::Error(OTHER_CODE),
    Measure::BatchSize,
    Measure::QueueWait,
    Measure::BatchDuration,
    Measure::LoadedModel,
];

/// The layout of a page; all zeros are an empty one.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct MetricsPage {
    /// Odd while series move to another page; see [`MetricsPage::read_consistently`].
    moves: AtomicU64,
    pub(super) running: AtomicU64,
    waiting_for_thread: AtomicU64,
    waiting_for_batch: AtomicU64,
    pub(super) lock_wait_ns: AtomicU64,
    pub(super) worker_starts: AtomicU64,
    started_ms: AtomicU64,
    /// The number of series with a key.
    used: AtomicU64,
    series: [Series; SERIES_MAX],
    pub(super) upstreams: UpstreamPage,
}

impl Default for MetricsPage {
    fn default() -> Self {
        Self {
            moves: AtomicU64::default(),
            running: AtomicU64::default(),
            waiting_for_thread: AtomicU64::default(),
            waiting_for_batch: AtomicU64::default(),
            lock_wait_ns: AtomicU64::default(),
            worker_starts: AtomicU64::default(),
            started_ms: AtomicU64::default(),
            used: AtomicU64::default(),
            series: std::array::from_fn(|_| Series::default()),
            upstreams: UpstreamPage::default(),
        }
    }
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Series {
    kind: AtomicU32,
    code: AtomicI64,
    name: Name,
    pub(super) sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Series {
    fn default() -> Self {
        Self {
            kind: AtomicU32::default(),
            code: AtomicI64::default(),
            name: Name::default(),
            sum: AtomicU64::default(),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

impl Series {
    fn set_key(&self, method: &str, measure: Measure) {
        let (kind, code) = measure.encode();
        self.kind.store(kind, Ordering::Relaxed);
        self.code.store(code, Ordering::Relaxed);
        self.name.set(method);
    }

    pub(super) fn measure(&self) -> Measure {
        Measure::decode(self.kind.load(Ordering::Relaxed), self.code.load(Ordering::Relaxed))
    }

    pub(super) fn method(&self) -> String {
        self.name.get()
    }

    fn has_key(&self, method: &str, measure: Measure) -> bool {
        self.measure() == measure && self.method() == method
    }

    fn histogram(&self) -> Histogram {
        let buckets = std::array::from_fn(|at| {
            self.buckets.get(at).map_or(0, |count| count.load(Ordering::Relaxed))
        });
        Histogram { sum: self.sum.load(Ordering::Relaxed), buckets }
    }

    /// Adds a value whose bucket's bound is a multiple of `unit`, on the thread of the worker.
    #[inline(always)]
    pub(super) fn record(&self, value: u64, unit: u64) {
        add(&self.sum, value);
        if let Some(count) = self.buckets.get(bucket(value, unit)) {
            add(count, 1);
        }
    }

    /// Adds a value on any thread.
    pub(super) fn record_anywhere(&self, value: u64, unit: u64) {
        self.sum.fetch_add(value, Ordering::Relaxed);
        if let Some(count) = self.buckets.get(bucket(value, unit)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn add(&self, histogram: &Histogram) {
        add(&self.sum, histogram.sum);
        for (count, more) in self.buckets.iter().zip(histogram.buckets) {
            add(count, more);
        }
    }

    fn clear(&self) {
        self.sum.store(0, Ordering::Relaxed);
        self.buckets.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// The first bucket whose bound is not below a value.
///
/// The bounds are those numbers with two binary digits that are multiples of half a unit, from one
/// unit on. The two digits and the exponent are the upper bits of a floating-point number.
#[inline(always)]
fn bucket(value: u64, unit: u64) -> usize {
    /// The bits after the first digit of a fraction, and what comes before the first bucket.
    const LOWER_BITS: u32 = f64::MANTISSA_DIGITS - 2;
    const BEFORE: i64 = (f64::MAX_EXP as i64 - 1) * 2 - 1;
    let units = value.wrapping_sub(1) as i64 as f64 * (1.0 / unit as f64);
    let bucket = (units.to_bits() as i64 >> LOWER_BITS) - BEFORE;
    (bucket.max(0) as usize).min(BUCKETS - 1)
}

/// Adds to a number that one thread writes.
#[inline(always)]
pub(super) fn add(number: &AtomicU64, more: u64) {
    number.store(number.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl MetricsPage {
    /// The series that have a key.
    pub(super) fn series(&self) -> &[Series] {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.series.get(..used).unwrap_or(&self.series)
    }

    /// The series at an index.
    #[inline]
    pub(super) fn at(&self, index: usize) -> Option<&Series> {
        self.series.get(index)
    }

    /// The index of the series of a method, which is made if there is room. One caller at a time.
    pub(super) fn find_or_insert(&self, method: &str, measure: Measure) -> usize {
        if self.series().is_empty() {
            RESERVED.iter().for_each(|measure| self.push(OTHER_METHOD, *measure));
        }
        let series = self.series();
        if let Some(found) = series.iter().position(|it| it.has_key(method, measure)) {
            return found;
        }
        let count = series.len();
        let max = if let Measure::Error(_) = measure { ERROR_SERIES_MAX } else { SERIES_MAX };
        if count >= max || method.len() > NAME_BYTES_MAX {
            return measure.other();
        }
        self.push(method, measure);
        count
    }

    fn push(&self, method: &str, measure: Measure) {
        let used = self.used.load(Ordering::Relaxed);
        if let Some(series) = self.at(used as usize) {
            series.set_key(method, measure);
            self.used.store(used + 1, Ordering::Release);
        }
    }

    /// Records when the server has started, as the time since 1970, unless that is known.
    pub fn set_started(&self, unix_time: Duration) {
        let started_ms = unix_time.as_millis() as u64;
        let order = Ordering::Relaxed;
        let _ = self.started_ms.compare_exchange(0, started_ms, order, order);
    }

    /// Adds the metrics of this page to a snapshot.
    pub fn add_to(&self, snapshot: &mut MetricsSnapshot) {
        for series in self.series() {
            let key = (series.method(), series.measure());
            snapshot.series.entry(key).or_default().add(&series.histogram());
        }
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        snapshot.running += read(&self.running);
        snapshot.waiting_for_thread += read(&self.waiting_for_thread);
        snapshot.waiting_for_batch += read(&self.waiting_for_batch);
        snapshot.lock_wait_ns += read(&self.lock_wait_ns);
        snapshot.worker_starts += read(&self.worker_starts);
        if snapshot.started_ms == 0 {
            snapshot.started_ms = read(&self.started_ms);
        }
        self.upstreams.add_to(&mut snapshot.upstreams);
    }

    /// Moves what the page of an ended worker has counted to this page, and clears that page.
    pub fn retire(&self, ended: &Self) {
        for series in ended.series() {
            if series.measure() == Measure::LoadedModel {
                series.clear();
                continue;
            }
            let at = self.find_or_insert(&series.method(), series.measure());
            if let Some(own) = self.at(at) {
                own.add(&series.histogram());
            }
            series.clear();
        }
        ended.used.store(0, Ordering::Release);
        for (past, number) in
            [(&self.lock_wait_ns, &ended.lock_wait_ns), (&self.worker_starts, &ended.worker_starts)]
        {
            past.fetch_add(number.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
        self.upstreams.retire(&ended.upstreams);
        for gauge in [&ended.running, &ended.waiting_for_thread, &ended.waiting_for_batch] {
            gauge.store(0, Ordering::Relaxed);
        }
    }

    /// Runs `retire`, which moves counts to another page. Meanwhile readers wait.
    pub fn move_counts(&self, retire: impl FnOnce()) {
        self.moves.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
        retire();
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// Reads pages, while no counts move between them: else a sum might miss some, and Prometheus
    /// would take a lower sum for a restart. Gives up after a second.
    pub fn read_consistently<T>(&self, read: impl Fn() -> T) -> T {
        const ATTEMPTS: usize = 1000;
        for _ in 0..ATTEMPTS {
            let before = self.moves.load(Ordering::Acquire);
            let value = read();
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.moves.load(Ordering::Relaxed) == before {
                return value;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        read()
    }

    pub(super) fn waiting(&self, what: WaitsFor) -> &AtomicU64 {
        match what {
            WaitsFor::Thread => &self.waiting_for_thread,
            WaitsFor::Batch => &self.waiting_for_batch,
        }
    }
}
