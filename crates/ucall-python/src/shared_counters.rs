//! Pages of counters that a supervisor and its workers share.
//!
//! The supervisor makes an unnamed file and maps it. Each worker maps it too, writes to the page
//! that it was given, and may read all. When a worker has ended, its counters are added to the
//! first page, which no worker has, and its page is reused.

use std::io;
use std::os::fd::FromRawFd;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::ptr;

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use ucall_server::{CounterPage, Stats};

/// The number of pages, one of them for workers that have ended.
const PAGES: usize = 512;

/// The counters of all workers of one supervisor.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct SharedCounters {
    file: OwnedFd,
    /// Mapped for the lifetime of the process: workers write to it until they end.
    pages: &'static [CounterPage],
}

#[pymethods]
impl SharedCounters {
    /// Takes over a file, sets its length and maps it.
    #[new]
    fn new(descriptor: RawFd) -> PyResult<Self> {
        // SAFETY: the caller gives the descriptor away.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let pages = map(&file)?;
        Ok(Self { file, pages })
    }

    /// The descriptor to send to a worker.
    fn fileno(&self) -> RawFd {
        self.file.as_fd().as_raw_fd()
    }

    /// The indices of the pages that workers may be given.
    #[getter]
    fn page_indices(&self) -> Vec<usize> {
        (1..self.pages.len()).collect()
    }

    /// Adds the counters of an ended worker to the first page, and clears its page.
    fn retire(&self, index: usize) -> PyResult<()> {
        let (Some(past), Some(page)) = (self.pages.first(), self.pages.get(index)) else {
            return Err(PyIndexError::new_err("no such page"));
        };
        let mut stats = page.take();
        stats.connections = 0;
        stats.subscriptions = 0;
        past.add(stats);
        Ok(())
    }
}

impl SharedCounters {
    /// The page of one worker.
    pub(crate) fn page(&self, index: usize) -> Option<&'static CounterPage> {
        self.pages.get(index)
    }

    /// The sum over all workers, ended ones included.
    pub(crate) fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for page in self.pages {
            all += page.stats();
        }
        all
    }
}

fn map(file: &OwnedFd) -> io::Result<&'static [CounterPage]> {
    let len = PAGES * size_of::<CounterPage>();
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: sets the length of a file that this owns, then maps it at an address that the system
    // picks.
    let memory = unsafe {
        if libc::ftruncate(file.as_raw_fd(), len as libc::off_t) != 0 {
            return Err(io::Error::last_os_error());
        }
        libc::mmap(ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has that length, starts at a page of the system, is never unmapped, and
    // holds only atomic numbers, for which all bits are valid.
    Ok(unsafe { std::slice::from_raw_parts(memory.cast::<CounterPage>(), PAGES) })
}
