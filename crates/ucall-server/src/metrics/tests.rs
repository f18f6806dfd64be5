//! Tests of recorded calls, full pages and the pages of ended workers.

use super::name::NAME_BYTES_MAX;
use super::page::{ERROR_SERIES_MAX, SERIES_MAX};
use super::*;

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn snapshot(pages: &[&MetricsPage]) -> MetricsSnapshot {
    let mut snapshot = MetricsSnapshot::default();
    pages.iter().for_each(|page| page.add_to(&mut snapshot));
    snapshot
}

fn count(snapshot: &MetricsSnapshot, method: &str, measure: Measure) -> u64 {
    let found = snapshot.series.get(&(method.to_owned(), measure));
    found.map_or(0, |histogram| histogram.buckets.iter().sum())
}

#[test]
fn a_value_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
    let metrics = CallMetrics::default();
    let index = metrics.register("sum");
    for (at, bound) in duration_bounds().into_iter().enumerate() {
        metrics.record(index, Duration::from_nanos(bound), None);
        metrics.record(index, Duration::from_nanos(bound + 1), None);
        let buckets = snapshot(&[&metrics]).series[&("sum".to_owned(), Measure::Success)];
        assert_eq!((buckets.buckets[at], buckets.buckets[at + 1]), (1 + u64::from(at > 0), 1));
    }
    metrics.record(index, Duration::ZERO, None);
    metrics.record(index, Duration::from_nanos(i64::MAX as u64), None);
    let all = snapshot(&[&metrics]).series[&("sum".to_owned(), Measure::Success)];
    assert_eq!((all.buckets[0], all.buckets[BUCKETS - 1]), (2, 2));
}

#[test]
fn sizes_are_below_the_bounds_that_are_shown() {
    for (at, bound) in size_bounds().into_iter().enumerate() {
        let metrics = CallMetrics::default();
        let index = metrics.register("f");
        metrics.record_batch(index, bound as usize);
        metrics.record_batch(index, bound as usize + 1);
        let found = snapshot(&[&metrics]).series[&("f".to_owned(), Measure::BatchSize)];
        assert_eq!(found.buckets[..=2 * at].iter().sum::<u64>(), 1, "{bound}");
    }
}

#[test]
fn waits_and_batches_have_series_of_their_own() {
    let metrics = CallMetrics::default();
    let index = metrics.register("embed");
    metrics.record_queue_wait(index, millis(350));
    metrics.record_batch_duration(index, millis(600));
    let found = snapshot(&[&metrics]);
    for (measure, bound, sum) in
        [(Measure::QueueWait, 491_520_000, 350), (Measure::BatchDuration, 655_360_000, 600)]
    {
        let histogram = found.series[&("embed".to_owned(), measure)];
        let at = duration_bounds().iter().position(|it| *it == bound).unwrap();
        assert_eq!((histogram.buckets[at], histogram.sum), (1, sum * 1_000_000));
    }
}

#[test]
fn any_thread_records_waits() {
    const COUNT: u64 = 5_000_000;
    let metrics = CallMetrics::default();
    let index = metrics.register("embed");
    let series = metrics.at(usize::from(index.0)).unwrap();
    let begin = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                begin.wait();
                (0..COUNT).for_each(|_| series.record_anywhere(3, SIZE_UNIT));
            });
        }
    });
    let histogram = snapshot(&[&metrics]).series[&("embed".to_owned(), Measure::Success)];
    assert_eq!((histogram.buckets.iter().sum::<u64>(), histogram.sum), (2 * COUNT, 6 * COUNT));
}

#[test]
fn errors_and_batches_have_series_of_their_own() {
    let metrics = CallMetrics::default();
    let index = metrics.register("sum");
    assert_eq!(metrics.register("sum"), index);
    metrics.record(index, millis(1), None);
    for _ in 0..2 {
        metrics.record(index, millis(1), Some(-32602));
    }
    metrics.record(SeriesIndex::OTHER, millis(1), Some(-32601));
    metrics.record_batch(index, 8);
    let found = snapshot(&[&metrics]);
    assert_eq!(count(&found, "sum", Measure::Success), 1);
    assert_eq!(count(&found, "sum", Measure::Error(-32602)), 2);
    assert_eq!(count(&found, OTHER_METHOD, Measure::Error(-32601)), 1);
    assert_eq!(found.series[&("sum".to_owned(), Measure::BatchSize)].sum, 8);
}

#[test]
fn a_full_page_counts_as_other_and_errors_leave_room_for_methods() {
    let metrics = CallMetrics::default();
    let index = metrics.register("f");
    for code in 0..1000 {
        metrics.record(index, millis(1), Some(code));
    }
    let late = metrics.register("late");
    metrics.record(late, millis(1), None);
    let found = snapshot(&[&metrics]);
    assert_eq!(found.series.len(), ERROR_SERIES_MAX + 1);
    assert_eq!(count(&found, "late", Measure::Success), 1);
    let codes = (0..1000).map(|code| count(&found, "f", Measure::Error(code))).sum::<u64>();
    assert_eq!(codes + count(&found, OTHER_METHOD, Measure::Error(OTHER_CODE)), 1000);
    for number in 0..SERIES_MAX {
        metrics.record(metrics.register(&format!("m{number}")), millis(1), None);
    }
    assert_eq!(metrics.register("too late"), SeriesIndex::OTHER);
    assert_eq!(metrics.register(&"n".repeat(NAME_BYTES_MAX + 1)), SeriesIndex::OTHER);
    assert_eq!(snapshot(&[&metrics]).series.len(), SERIES_MAX);
}

#[test]
fn the_counts_of_an_ended_worker_are_kept_and_its_gauges_are_not() {
    let (past, ended) = (MetricsPage::default(), CallMetrics::default());
    let (one, two) = (ended.register("one"), ended.register(&"ü".repeat(64)));
    for worker in 1..=2 {
        ended.count_worker(Duration::from_secs(1));
        ended.record(one, millis(1), None);
        ended.record(two, millis(worker), Some(-1));
        ended.begin_call();
        ended.begin_wait(WaitsFor::Thread);
        ended.add_lock_wait(millis(1));
        let before = snapshot(&[&past, &ended]);
        past.move_counts(|| past.retire(&ended));
        let after = past.read_consistently(|| snapshot(&[&past, &ended]));
        assert_eq!(after.series, before.series);
        assert_eq!((after.running, after.waiting_for_thread), (0, 0));
        assert_eq!((after.worker_starts, after.lock_wait_ns), (worker, worker * 1_000_000));
        // The next worker registers its methods again.
        assert_eq!([ended.register("one"), ended.register(&"ü".repeat(64))], [one, two]);
    }
    assert_eq!(count(&snapshot(&[&past]), "one", Measure::Success), 2);
}

#[test]
fn models_are_loaded_by_processes_that_have_not_ended() {
    let (past, worker) = (MetricsPage::default(), CallMetrics::default());
    let key = ("encoder".to_owned(), Measure::LoadedModel);
    worker.begin_loaded("encoder");
    worker.begin_loaded("encoder");
    worker.end_loaded("encoder");
    assert_eq!(snapshot(&[&past, &worker]).series[&key].sum, 1);
    past.move_counts(|| past.retire(&worker));
    assert!(!snapshot(&[&past, &worker]).series.contains_key(&key));
}

#[test]
fn methods_keep_their_indices_on_a_shared_page() {
    let before = CallMetrics::default();
    let indices = ["a", "b", "c"].map(|name| before.register(name));
    let shared = CallMetrics::shared(Box::leak(Box::default()), &before);
    assert_eq!(["a", "b", "c"].map(|name| shared.register(name)), indices);
}
