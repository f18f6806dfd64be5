//! How a commit wakes the watchers of all processes.
//!
//! A process that watches has a FIFO in the store's directory, and its number in the store. After a
//! commit the writer writes a byte to the FIFO of each. What has changed the watchers read in the
//! log of changes, so a byte too many or in a full FIFO costs nothing. The FIFO of a killed process
//! has no reader: the next commit removes its number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// Wakes a reader of changes in this process; `false` if that is gone.
pub(crate) type Waker = Box<dyn Fn() -> bool + Send>;

/// The watchers of this process.
pub(crate) struct Watchers {
    directory: PathBuf,
    /// The number of this process, which no other has.
    number: u64,
    count: AtomicUsize,
    wakers: Arc<Mutex<Vec<Waker>>>,
    /// Made for the first watcher.
    listener: Mutex<Option<Listener>>,
    /// Processes that have ended, until a commit has removed their numbers.
    ended: Mutex<Vec<u64>>,
}

/// The FIFO of this process, and the thread that reads it.
struct Listener {
    path: PathBuf,
    fifo: File,
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watchers {
    pub(crate) fn new(directory: &Path) -> Self {
        remove_unused(directory);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            directory: directory.to_owned(),
            number: u64::from(process::id()) << 32 | u64::from(now.as_micros() as u32),
            count: AtomicUsize::new(0),
            wakers: Arc::default(),
            listener: Mutex::default(),
            ended: Mutex::default(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts one more watcher, which other processes can wake.
    pub(crate) fn add(&self) -> io::Result<()> {
        let mut listener = lock(&self.listener);
        if listener.is_none() {
            *listener = Some(Listener::start(self.fifo(self.number), self.wakers.clone())?);
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// A watcher has ended. Returns whether none is left.
    pub(crate) fn remove(&self) -> bool {
        self.count.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(crate) fn add_waker(&self, waker: Waker) {
        lock(&self.wakers).push(waker);
    }

    /// Wakes the watchers of these processes, after a commit.
    pub(crate) fn wake(&self, processes: &[u64]) {
        for &number in processes {
            if number == self.number {
                wake_all(&self.wakers);
            } else if has_ended(&self.fifo(number)) {
                lock(&self.ended).push(number);
            }
        }
    }

    /// The processes that have been found to have ended.
    pub(crate) fn ended(&self) -> Vec<u64> {
        lock(&self.ended).clone()
    }

    /// Forgets those whose numbers have been removed.
    pub(crate) fn forget(&self, removed: &[u64]) {
        lock(&self.ended).retain(|number| !removed.contains(number));
    }

    fn fifo(&self, number: u64) -> PathBuf {
        self.directory.join(format!("watch.{number:016x}"))
    }
}

/// Removes the FIFOs of processes that have ended.
fn remove_unused(directory: &Path) {
    let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|file| file.path());
    let is_fifo = |path: &PathBuf| path.file_stem().is_some_and(|stem| stem == "watch");
    for path in files.filter(is_fifo) {
        has_ended(&path);
    }
}

/// Writes a byte to a FIFO. Whether nothing reads it any more; then it is removed.
fn has_ended(fifo: &Path) -> bool {
    let flags = OFlags::NONBLOCK.bits() as i32;
    let opened = OpenOptions::new().write(true).custom_flags(flags).open(fifo);
    let written = opened.and_then(|mut fifo| fifo.write(b"c"));
    let Err(error) = written else { return false };
    match Errno::from_io_error(&error) {
        Some(Errno::NOENT) => true,
        Some(Errno::NXIO | Errno::PIPE) => {
            // The next process that opens the store tries again.
            let _ = fs::remove_file(fifo);
            true
        }
        _ => false,
    }
}

impl Listener {
    fn start(path: PathBuf, wakers: Arc<Mutex<Vec<Waker>>>) -> io::Result<Self> {
        let fifo = open_fifo(&path)?;
        let (mut reader, is_closed) = (fifo.try_clone()?, Arc::new(AtomicBool::new(false)));
        let closed = is_closed.clone();
        let read = move || {
            let mut bytes = [0; 512];
            while reader.read(&mut bytes).is_ok() && !closed.load(Ordering::SeqCst) {
                wake_all(&wakers);
            }
        };
        let thread = thread::Builder::new().name("ucall-watch".to_owned()).spawn(read)?;
        Ok(Self { path, fifo, is_closed, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // The thread reads, so there is room. A panic of it was reported when it happened.
        let _ = self.fifo.write_all(b"e");
        let _ = self.thread.take().map(JoinHandle::join);
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a FIFO, and opens it as a writer, too, so that it does not end with the last writer.
fn open_fifo(path: &Path) -> io::Result<File> {
    // Under its name it has a reader, or another process would remove it.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let unnamed = path.with_file_name(format!("new.{name}"));
    make_fifo(&unnamed)?;
    let fifo = File::options().read(true).write(true).open(&unnamed)?;
    fs::rename(unnamed, path)?;
    Ok(fifo)
}

#[cfg(target_os = "linux")]
fn make_fifo(path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
}

#[cfg(not(target_os = "linux"))]
fn make_fifo(path: &Path) -> io::Result<()> {
    let status = process::Command::new("mkfifo").args(["-m", "600"]).arg(path).status()?;
    status.success().then_some(()).ok_or_else(|| io::Error::other("mkfifo has failed"))
}

fn wake_all(wakers: &Mutex<Vec<Waker>>) {
    lock(wakers).retain(|wake| wake());
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_is_kept_beside_processes_that_remove_unused_ones() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::SeqCst) {
                    remove_unused(directory.path());
                }
            });
            let is_kept = (0..2000).all(|number| {
                let path = directory.path().join(format!("watch.{number}"));
                open_fifo(&path).is_ok_and(|_fifo| fs::remove_file(path).is_ok())
            });
            is_done.store(true, Ordering::SeqCst);
            assert!(is_kept);
        });
    }
}
