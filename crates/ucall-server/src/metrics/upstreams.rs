//! The upstreams of relays on a page of metrics, by their names.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::name::{NAME_BYTES_MAX, Name};
use super::{CallMetrics, OTHER_METHOD};

/// The upstreams of a page. Others, and those with long names, count as [`OTHER_METHOD`].
const UPSTREAMS_MAX: usize = 128;

/// The state of a circuit breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Circuit {
    /// All calls begin.
    Closed,
    /// No calls begin.
    Open,
    /// One call has begun, which shows whether the upstream answers.
    Probing,
}

/// What is known of one upstream: the sum over workers, and over relays with the same upstream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UpstreamCounts {
    /// Calls that it has not answered.
    pub outstanding: u64,
    /// Failures.
    pub failures: u64,
    /// Circuit breakers that are closed, open and probing.
    pub circuits: [u64; 3],
    /// Those whose health checks say that it is healthy, and unhealthy.
    pub health: [u64; 2],
}

#[derive(Debug, Default)]
#[repr(C)]
struct UpstreamSeries {
    name: Name,
    outstanding: AtomicU64,
    failures: AtomicU64,
    circuits: [AtomicU64; 3],
    health: [AtomicU64; 2],
}

impl UpstreamSeries {
    fn add_to(&self, counts: &mut UpstreamCounts) {
        counts.outstanding += self.outstanding.load(Ordering::Relaxed);
        counts.failures += self.failures.load(Ordering::Relaxed);
        for (sum, count) in counts.circuits.iter_mut().zip(&self.circuits) {
            *sum += count.load(Ordering::Relaxed);
        }
        for (sum, count) in counts.health.iter_mut().zip(&self.health) {
            *sum += count.load(Ordering::Relaxed);
        }
    }

    /// Clears the series, and returns its failures.
    fn take(&self) -> u64 {
        self.outstanding.store(0, Ordering::Relaxed);
        let counts = self.circuits.iter().chain(&self.health);
        counts.for_each(|count| count.store(0, Ordering::Relaxed));
        self.failures.swap(0, Ordering::Relaxed)
    }
}

/// The upstreams of one process; all zeros are none. The first is [`OTHER_METHOD`].
#[derive(Debug)]
#[repr(C)]
pub(super) struct UpstreamPage {
    used: AtomicU64,
    series: [UpstreamSeries; UPSTREAMS_MAX],
}

impl Default for UpstreamPage {
    fn default() -> Self {
        let series = std::array::from_fn(|_| UpstreamSeries::default());
        Self { used: AtomicU64::default(), series }
    }
}

impl UpstreamPage {
    fn series(&self) -> &[UpstreamSeries] {
        let used = self.used.load(Ordering::Acquire) as usize;
        self.series.get(..used).unwrap_or(&self.series)
    }

    /// The index of the series of an upstream, which is made if there is room. One caller at a
    /// time.
    fn find_or_insert(&self, name: &str) -> usize {
        if self.series().is_empty() {
            self.push(OTHER_METHOD);
        }
        let series = self.series();
        if let Some(found) = series.iter().position(|it| it.name.get() == name) {
            return found;
        }
        let count = series.len();
        if count >= UPSTREAMS_MAX || name.len() > NAME_BYTES_MAX {
            return 0;
        }
        self.push(name);
        count
    }

    fn push(&self, name: &str) {
        let used = self.used.load(Ordering::Relaxed);
        if let Some(series) = self.series.get(used as usize) {
            series.name.set(name);
            self.used.store(used + 1, Ordering::Release);
        }
    }

    pub(super) fn add_to(&self, upstreams: &mut BTreeMap<String, UpstreamCounts>) {
        for series in self.series() {
            series.add_to(upstreams.entry(series.name.get()).or_default());
        }
    }

    /// Moves the failures of an ended worker's page to this page, and clears that page.
    pub(super) fn retire(&self, ended: &Self) {
        for series in ended.series() {
            let failures = series.take();
            if let Some(own) = self.series.get(self.find_or_insert(&series.name.get())) {
                own.failures.fetch_add(failures, Ordering::Relaxed);
            }
        }
        ended.used.store(0, Ordering::Release);
    }
}

/// The metrics of one upstream as one relay of a worker uses it. What it shows as of now is
/// removed when it is dropped.
#[derive(Debug)]
pub struct UpstreamMetrics {
    metrics: Arc<CallMetrics>,
    index: usize,
    /// What the page has of this relay.
    outstanding: usize,
    circuit: Option<Circuit>,
    is_healthy: Option<bool>,
}

impl UpstreamMetrics {
    /// The metrics of the upstream `name`.
    pub fn new(metrics: Arc<CallMetrics>, name: &str) -> Self {
        let index = metrics.with_registry(|page| page.upstreams.find_or_insert(name));
        Self { metrics, index, outstanding: 0, circuit: None, is_healthy: None }
    }

    /// Sets the calls that the upstream has not answered, the state of the circuit breaker and what
    /// health checks say, if there are any; and adds failures.
    pub fn update(
        &mut self,
        outstanding: usize,
        failures: u64,
        circuit: Circuit,
        is_healthy: Option<bool>,
    ) {
        if failures > 0
            && let Some(series) = self.series()
        {
            series.failures.fetch_add(failures, Ordering::Relaxed);
        }
        if (self.outstanding, self.circuit) != (outstanding, Some(circuit)) {
            self.set(outstanding, Some(circuit));
        }
        if self.is_healthy != is_healthy {
            self.set_health(is_healthy);
        }
    }

    fn set_health(&mut self, is_healthy: Option<bool>) {
        let Some(series) = self.series() else { return };
        let count = |is_healthy: bool| &series.health[usize::from(!is_healthy)];
        if let Some(before) = self.is_healthy {
            count(before).fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(now) = is_healthy {
            count(now).fetch_add(1, Ordering::Relaxed);
        }
        self.is_healthy = is_healthy;
    }

    fn set(&mut self, outstanding: usize, circuit: Option<Circuit>) {
        let Some(series) = self.series() else { return };
        // Wraps around: the sum is right again after the addition.
        let change = (outstanding as u64).wrapping_sub(self.outstanding as u64);
        series.outstanding.fetch_add(change, Ordering::Relaxed);
        let count = |circuit: Circuit| series.circuits.get(circuit as usize);
        if let Some(count) = self.circuit.and_then(count) {
            count.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(count) = circuit.and_then(count) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        (self.outstanding, self.circuit) = (outstanding, circuit);
    }

    fn series(&self) -> Option<&UpstreamSeries> {
        self.metrics.upstreams.series.get(self.index)
    }
}

impl Drop for UpstreamMetrics {
    fn drop(&mut self) {
        self.set(0, None);
        self.set_health(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{MetricsPage, MetricsSnapshot};

    fn read(page: &MetricsPage, name: &str) -> Option<UpstreamCounts> {
        let mut snapshot = MetricsSnapshot::default();
        page.add_to(&mut snapshot);
        snapshot.upstreams.get(name).copied()
    }

    #[test]
    fn relays_with_one_upstream_are_added_up() {
        let metrics: Arc<CallMetrics> = Arc::default();
        let mut one = UpstreamMetrics::new(metrics.clone(), "tcp://a:1");
        let mut other = UpstreamMetrics::new(metrics.clone(), "tcp://a:1");
        one.update(3, 2, Circuit::Open, Some(true));
        other.update(4, 0, Circuit::Closed, None);
        one.update(1, 1, Circuit::Probing, Some(false));
        let expected =
            UpstreamCounts { outstanding: 5, failures: 3, circuits: [1, 0, 1], health: [0, 1] };
        assert_eq!(read(&metrics, "tcp://a:1"), Some(expected));
        drop((one, other));
        let expected =
            UpstreamCounts { outstanding: 0, failures: 3, circuits: [0; 3], health: [0; 2] };
        assert_eq!(read(&metrics, "tcp://a:1"), Some(expected));
    }

    #[test]
    fn an_ended_worker_leaves_its_failures() {
        let (past, ended): (MetricsPage, Arc<CallMetrics>) =
            (MetricsPage::default(), Arc::default());
        let mut upstream = UpstreamMetrics::new(ended.clone(), "tcp://a:1");
        upstream.update(3, 2, Circuit::Open, Some(true));
        past.retire(&ended);
        assert_eq!(read(&ended, "tcp://a:1"), None);
        let expected =
            UpstreamCounts { outstanding: 0, failures: 2, circuits: [0; 3], health: [0; 2] };
        assert_eq!(read(&past, "tcp://a:1"), Some(expected));
        std::mem::forget(upstream);
    }

    #[test]
    fn upstreams_past_the_limit_and_long_names_have_one_series() {
        let metrics: Arc<CallMetrics> = Arc::default();
        let names = (1..UPSTREAMS_MAX).map(|number| format!("tcp://a:{number}"));
        let kept: Vec<_> = names.map(|name| UpstreamMetrics::new(metrics.clone(), &name)).collect();
        assert_eq!(kept.iter().filter(|it| it.index == 0).count(), 0);
        for name in ["tcp://b:1", &format!("tcp://{}:1", "a".repeat(NAME_BYTES_MAX))] {
            UpstreamMetrics::new(metrics.clone(), name).update(0, 1, Circuit::Closed, None);
        }
        assert_eq!(read(&metrics, OTHER_METHOD).map(|it| it.failures), Some(2));
    }
}
