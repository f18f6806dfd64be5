//! The thread that commits the writes of all workers of a process together.
//!
//! All writes that wait are one transaction: while it is written to the disk, the next ones
//! gather. If it fails, each write is tried alone, so that one that is too large fails alone.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::database::{Database, corrupt, now_ms};
use crate::error::StoreError;
use crate::operation::{Operation, Outcome};

/// The outcome of one operation.
pub(crate) type Written = Result<Outcome, StoreError>;
/// Takes the outcomes of a request, in the order of its operations.
pub(crate) type ReplySink = Box<dyn FnOnce(Vec<Written>) + Send>;

/// How often the readers of dead processes and, without writes, expired entries are removed.
pub(crate) const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// Expired entries that one transaction removes.
const EXPIRED_MAX: usize = 256;

/// Operations whose outcomes go the same way.
struct Request {
    operations: Vec<Operation>,
    reply: ReplySink,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// Whether a watched entry may expire earlier than known.
    is_woken: bool,
    is_closed: bool,
}

struct Shared {
    database: Arc<Database>,
    maintenance_interval: Duration,
    queue: Mutex<Queue>,
    has_requests: Condvar,
}

/// The thread, which ends with its last write when this is dropped.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    pub(crate) fn start(
        database: Arc<Database>,
        maintenance_interval: Duration,
    ) -> Result<Self, StoreError> {
        let (queue, has_requests) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { database, maintenance_interval, queue, has_requests });
        let woken = Arc::downgrade(&shared);
        shared.database.watchers.add_waker(Box::new(move || {
            woken.upgrade().map(|shared: Arc<Shared>| shared.wake()).is_some()
        }));
        let run = shared.clone();
        let thread = thread::Builder::new().name("ucall-store".to_owned()).spawn(move || run.run());
        Ok(Self { shared, thread: Some(thread?) })
    }

    /// Has operations run in this order. `reply` is called on the committer's thread after they are
    /// durable.
    pub(crate) fn submit(&self, operations: Vec<Operation>, reply: ReplySink) {
        self.shared.lock().requests.push_back(Request { operations, reply });
        self.shared.has_requests.notify_one();
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.has_requests.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut maintained = Instant::now();
        // After a failure, entries expire with the next write.
        let mut has_failed = false;
        while let Some(requests) =
            self.next_requests(maintained + self.maintenance_interval, has_failed)
        {
            has_failed &= requests.is_empty();
            if !requests.is_empty() {
                self.commit_all(requests);
            }
            if maintained.elapsed() >= self.maintenance_interval {
                self.maintain();
                maintained = Instant::now();
            } else if !has_failed && self.next_expiry().is_some_and(|expiry| expiry.is_zero()) {
                has_failed = self.remove_expired().is_err();
            }
        }
    }

    /// The time until the next entry expires, if there are watchers in this process.
    fn next_expiry(&self) -> Option<Duration> {
        let is_watched = self.database.watchers.count() > 0;
        let expires_at = is_watched.then(|| self.database.next_expiry()).transpose();
        let millis = expires_at.ok()???.saturating_sub(now_ms());
        Some(Duration::from_millis(millis))
    }

    fn wake(&self) {
        self.lock().is_woken = true;
        self.has_requests.notify_one();
    }

    /// All requests that wait; perhaps none, by `until`; `None` at the end.
    fn next_requests(&self, until: Instant, has_failed: bool) -> Option<VecDeque<Request>> {
        let mut queue = self.lock();
        if queue.requests.is_empty() && !queue.is_closed && !mem::take(&mut queue.is_woken) {
            let timeout = until.saturating_duration_since(Instant::now());
            let expiry = if has_failed { None } else { self.next_expiry() };
            let timeout = expiry.map_or(timeout, |expiry| expiry.min(timeout));
            let waited = self.has_requests.wait_timeout(queue, timeout);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        match queue.is_closed && queue.requests.is_empty() {
            true => None,
            false => Some(mem::take(&mut queue.requests)),
        }
    }

    fn commit_all(&self, requests: VecDeque<Request>) {
        let (replies, operations): (Vec<_>, Vec<_>) =
            requests.into_iter().map(|request| (request.reply, request.operations)).unzip();
        let written = match self.commit(operations.iter().flatten()) {
            Ok(written) => written,
            Err(_) => operations.iter().flatten().map(|alone| self.commit_one(alone)).collect(),
        };
        let mut written = written.into_iter();
        for (reply, operations) in replies.into_iter().zip(&operations) {
            reply(written.by_ref().take(operations.len()).collect());
        }
    }

    fn commit_one(&self, operation: &Operation) -> Written {
        self.commit(std::iter::once(operation))?.pop().unwrap_or_else(|| Err(corrupt()))
    }

    /// Runs operations in one transaction.
    ///
    /// # Errors
    /// Nothing was written.
    fn commit<'a>(
        &self,
        operations: impl Iterator<Item = &'a Operation>,
    ) -> Result<Vec<Written>, StoreError> {
        let mut writer = self.database.write()?;
        let mut written = Vec::new();
        for operation in operations {
            match operation.apply(&mut writer) {
                Err(failed @ StoreError::Failed(_)) => return Err(failed),
                outcome => written.push(outcome),
            }
        }
        writer.remove_expired(EXPIRED_MAX)?;
        writer.commit()?;
        Ok(written)
    }

    /// Its errors are those of the next write, whose caller gets them.
    fn maintain(&self) {
        let _ = self.database.clear_stale_readers();
        while let Ok(EXPIRED_MAX) = self.remove_expired() {}
    }

    fn remove_expired(&self) -> Result<usize, StoreError> {
        let mut writer = self.database.write()?;
        let removed = writer.remove_expired(EXPIRED_MAX)?;
        if removed > 0 {
            writer.commit()?;
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs;
    use std::io::{BufRead, BufReader, stdin};
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use super::*;
    use crate::entry::Value;
    use crate::operation::Expiry;
    use crate::options::{Durability, StoreOptions};

    const PATH: &str = "UCALL_STORE_TO_READ";
    const VALUE_BYTES: usize = 100_000;

    fn database(path: &std::path::Path) -> Arc<Database> {
        let options = StoreOptions { durability: Durability::None, ..StoreOptions::default() };
        Arc::new(Database::open(path, &options).expect("a store"))
    }

    fn overwrite(committer: &Committer) {
        let (value, expiry) = (Value::Bytes(vec![0; VALUE_BYTES]), Expiry::Never);
        let put = Operation::Put { key: b"k".to_vec(), value, expiry, version: None };
        let (sender, receiver) = mpsc::channel();
        committer.submit(vec![put], Box::new(move |written| sender.send(written).expect("sent")));
        receiver.recv().expect("an outcome").pop().expect("one").expect("written");
    }

    #[test]
    #[ignore = "runs in a process of its own, which dies"]
    fn a_reader_that_dies() {
        let database = database(env::var_os(PATH).expect("the path").as_ref());
        let _snapshot = database.snapshot().expect("a snapshot");
        println!("\nreading");
        let _ = stdin().read_line(&mut String::new());
    }

    #[test]
    fn a_reader_that_was_killed_does_not_keep_old_pages() {
        let directory = tempfile::TempDir::new().expect("a directory");
        let database = database(directory.path());
        let mut reader = Command::new(env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "committer::tests::a_reader_that_dies"])
            .env(PATH, directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(reader.stdout.take().expect("its output")).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "reading"));
        reader.kill().expect("it runs");
        reader.wait().expect("it has ended");
        let committer = Committer::start(database, Duration::ZERO).expect("a thread");
        (0..100).for_each(|_| overwrite(&committer));
        let file = fs::metadata(directory.path().join("data.mdb")).expect("the file");
        assert!(file.len() < 10 * VALUE_BYTES as u64, "it has {} bytes", file.len());
    }
}
