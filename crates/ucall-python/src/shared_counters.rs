//! Pages of counters that a supervisor and its workers share.
//!
//! The supervisor makes an unnamed file and maps it. Each worker maps it too, writes to the pages
//! that it was given, and may read all: a page of counters, one of metrics, and one of metrics of
//! calls through NATS. When a worker has ended, its counts are added to the first pages, which no
//! worker has, and its pages are reused. All write to the table of callers. The file is sparse, so
//! what is off takes no memory.

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use ucall_engine::EngineClock;
use ucall_server::{CounterPage, MetricsPage, MetricsSnapshot, RateTable, Stats};

/// The number of pages, one of them for workers that have ended.
const PAGES: usize = 512;

/// The counters of all workers of one supervisor.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct SharedCounters {
    file: OwnedFd,
    /// Mapped for the lifetime of the process: workers write to it until they end.
    pages: &'static Pages,
}

/// The layout of the file.
#[repr(C)]
struct Pages {
    counters: [CounterPage; PAGES],
    metrics: [MetricsPage; PAGES],
    broker_calls: [MetricsPage; PAGES],
    /// Of calls a second, which all workers count together.
    rates: RateTable,
}

#[pymethods]
impl SharedCounters {
    /// Takes over a file, sets its length and maps it.
    #[new]
    fn new(descriptor: RawFd) -> PyResult<Self> {
        // SAFETY: the caller gives the descriptor away.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let pages = map(&file)?;
        let [past, ..] = &pages.metrics;
        past.set_started(EngineClock::SYSTEM.unix_time());
        Ok(Self { file, pages })
    }

    /// The descriptor to send to a worker.
    fn fileno(&self) -> RawFd {
        self.file.as_fd().as_raw_fd()
    }

    /// The indices of the pages that workers may be given.
    #[getter]
    fn page_indices(&self) -> Vec<usize> {
        (1..PAGES).collect()
    }

    /// Adds the counters of an ended worker to the first page, and clears its page.
    fn retire(&self, index: usize) -> PyResult<()> {
        let Pages { counters, metrics, broker_calls, .. } = self.pages;
        let (Some(ended), Some(ended_metrics)) = (counters.get(index), metrics.get(index)) else {
            return Err(PyIndexError::new_err("no such page"));
        };
        let ([past, ..], [past_metrics, ..]) = (counters, metrics);
        past_metrics.move_counts(|| {
            past.add(ended.take().without_connections());
            past_metrics.retire(ended_metrics);
            if let ([past, ..], Some(ended)) = (broker_calls, broker_calls.get(index)) {
                past.retire(ended);
            }
        });
        Ok(())
    }
}

impl SharedCounters {
    /// The page of one worker.
    pub(crate) fn page(&self, index: usize) -> Option<&'static CounterPage> {
        self.pages.counters.get(index)
    }

    /// The page of one worker's metrics.
    pub(crate) fn metrics_page(&self, index: usize) -> Option<&'static MetricsPage> {
        self.pages.metrics.get(index)
    }

    /// The sum over all workers, ended ones included.
    pub(crate) fn stats(&self) -> Stats {
        let [past, ..] = &self.pages.metrics;
        past.read_consistently(|| {
            let mut all = Stats::default();
            self.pages.counters.iter().for_each(|page| all += page.stats());
            all
        })
    }

    /// The page of one worker's calls through NATS.
    pub(crate) fn broker_page(&self, index: usize) -> Option<&'static MetricsPage> {
        self.pages.broker_calls.get(index)
    }

    /// The callers of all workers.
    pub(crate) fn rates(&self) -> &'static RateTable {
        &self.pages.rates
    }

    /// The metrics of all workers, ended ones included.
    pub(crate) fn metrics(&self) -> MetricsSnapshot {
        self.sum(&self.pages.metrics)
    }

    /// The calls of all workers through NATS, those of ended ones included.
    pub(crate) fn broker_calls(&self) -> MetricsSnapshot {
        self.sum(&self.pages.broker_calls)
    }

    fn sum(&self, pages: &[MetricsPage; PAGES]) -> MetricsSnapshot {
        let Pages { counters, metrics: [past_metrics, ..], .. } = self.pages;
        let [past, others @ ..] = pages;
        past_metrics.read_consistently(|| {
            let mut all = MetricsSnapshot::default();
            past.add_to(&mut all);
            // Reading the page of no worker would give it memory.
            for (page, counters) in others.iter().zip(counters.iter().skip(1)) {
                if counters.stats().turns > 0 {
                    page.add_to(&mut all);
                }
            }
            all
        })
    }
}

fn map(file: &OwnedFd) -> io::Result<&'static Pages> {
    let len = size_of::<Pages>();
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    match File::from(file.try_clone()?).metadata()?.len() {
        // SAFETY: sets the length of a file that this owns.
        0 => match unsafe { libc::ftruncate(file.as_raw_fd(), len as libc::off_t) } {
            0 => {}
            _ => return Err(io::Error::last_os_error()),
        },
        found if found == len as u64 => {}
        // The package was replaced while its supervisor ran.
        _ => return Err(io::Error::other("the counters are those of another version of ucall")),
    }
    // SAFETY: maps a file that this owns at an address that the system picks.
    let memory = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has that length, starts at a page of the system, is never unmapped, and
    // holds only atomic numbers, for which all bits are valid.
    Ok(unsafe { &*memory.cast::<Pages>() })
}
