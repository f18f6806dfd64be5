//! The thread that commits the writes of all workers of a process together.
//!
//! All writes that wait are one transaction: while it is written to the disk, the next ones
//! gather. If it fails, each write is tried alone, so that one that is too large fails alone.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::database::{Database, corrupt};
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
        let millis = expires_at.ok()???.saturating_sub(self.database.now_ms());
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
        let written = match self.commit(operations.iter().flatten(), EXPIRED_MAX) {
            Ok(written) => written,
            Err(_) => {
                self.make_room();
                operations.iter().flatten().map(|alone| self.commit_one(alone)).collect()
            }
        };
        let mut written = written.into_iter();
        for (reply, operations) in replies.into_iter().zip(&operations) {
            reply(written.by_ref().take(operations.len()).collect());
        }
    }

    fn commit_one(&self, operation: &Operation) -> Written {
        self.commit(std::iter::once(operation), 0)?.pop().unwrap_or_else(|| Err(corrupt()))
    }

    /// Runs operations in one transaction, which removes up to `expired_max` expired entries, too.
    ///
    /// # Errors
    /// Nothing was written.
    fn commit<'a>(
        &self,
        operations: impl Iterator<Item = &'a Operation>,
        expired_max: usize,
    ) -> Result<Vec<Written>, StoreError> {
        let mut writer = self.database.write()?;
        let mut written = Vec::new();
        for operation in operations {
            match operation.apply(&mut writer) {
                Err(failed @ StoreError::Failed(_)) => return Err(failed),
                outcome => written.push(outcome),
            }
        }
        writer.remove_expired(expired_max)?;
        writer.check_growth()?;
        writer.commit()?;
        Ok(written)
    }

    /// Its errors are those of the next write, whose caller gets them.
    fn maintain(&self) {
        let _ = self.database.file.check();
        let _ = self.database.clear_stale_readers();
        while let Ok(1..) = self.remove_expired() {}
    }

    /// Gives a full file the pages of expired and deleted entries. Its errors are those of the next
    /// write.
    fn make_room(&self) {
        let mut removed = 0;
        while removed < EXPIRED_MAX
            && let Ok(count @ 1..) = self.remove_expired()
        {
            removed += count;
        }
        let _ = self.free_pages();
    }

    /// Removes expired entries: one at least, if there is one. A transaction copies the pages that
    /// it changes, and a full file has room for few.
    fn remove_expired(&self) -> Result<usize, StoreError> {
        let mut count = EXPIRED_MAX;
        loop {
            match self.remove_up_to(count) {
                Err(_) if count > 1 => count /= 4,
                Err(_) => break,
                removed => return removed,
            }
        }
        self.free_pages()?;
        self.remove_up_to(1)
    }

    /// Commits no change. The pages that a transaction has freed are used again after the next one.
    fn free_pages(&self) -> Result<(), StoreError> {
        self.database.write()?.commit()
    }

    fn remove_up_to(&self, count: usize) -> Result<usize, StoreError> {
        let mut writer = self.database.write()?;
        let removed = writer.remove_expired(count)?;
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

    use ucall_server::EngineClock;

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
        put(committer, b"k", VALUE_BYTES, Expiry::Never).expect("written");
    }

    fn put(committer: &Committer, key: &[u8], bytes: usize, expiry: Expiry) -> Written {
        let (key, value) = (key.to_vec(), Value::Bytes(vec![0; bytes]));
        write(committer, Operation::Put { key, value, expiry, version: None })
    }

    fn write(committer: &Committer, operation: Operation) -> Written {
        let (sender, receiver) = mpsc::channel();
        let reply = move |written| sender.send(written).expect("sent");
        committer.submit(vec![operation], Box::new(reply));
        receiver.recv().expect("an outcome").pop().expect("one")
    }

    /// Fills the file with entries that expire after this time and up to 100 ms more.
    fn fill(committer: &Committer, bytes: usize, after_ms: u64) {
        let full = (0_u32..).find_map(|key| {
            let expiry = Expiry::AfterMs(after_ms + u64::from(key % 100));
            put(committer, &key.to_be_bytes(), bytes, expiry).err()
        });
        assert_eq!(full.expect("a full file").to_string(), "the store has grown to max_bytes");
    }

    fn small_store(bytes_max: usize, clock: EngineClock) -> (tempfile::TempDir, Committer) {
        let directory = tempfile::TempDir::new().expect("a directory");
        let durability = Durability::None;
        let options = StoreOptions { durability, bytes_max, clock, ..StoreOptions::default() };
        let database = Database::open(directory.path(), &options).expect("a store");
        let committer = Committer::start(Arc::new(database), MAINTENANCE_INTERVAL);
        (directory, committer.expect("a thread"))
    }

    #[test]
    fn a_deleted_value_makes_room_in_a_full_file() {
        // The longer ones do not fit into the room that only deletions have.
        for (bytes_max, bytes) in [(1 << 20, 300 << 10), (10 << 20, 3 << 20)] {
            let (_directory, committer) = small_store(bytes_max, EngineClock::default());
            let never = Expiry::Never;
            let full = (0_u8..4).find_map(|key| put(&committer, &[key], bytes, never).err());
            assert_eq!(full.expect("a full file").to_string(), "the store has grown to max_bytes");
            for key in 0_u8..3 {
                let deleted = write(&committer, Operation::Delete { key: vec![key] });
                assert_eq!(deleted.expect("deleted"), Outcome::Deleted(true));
                put(&committer, &[key], bytes, never).expect("there is room");
            }
        }
    }

    #[test]
    fn a_full_file_has_room_when_its_entries_have_expired() {
        for bytes in [500, 1_000, 10_000] {
            let clock = EngineClock::stopped();
            let (_directory, committer) = small_store(1 << 20, clock.clone());
            fill(&committer, bytes, 1_000);
            let refused = put(&committer, b"one more", bytes, Expiry::Never);
            refused.expect_err("none has expired");
            clock.advance(Duration::from_millis(1_100));
            for key in 0..100_000 / bytes as u32 {
                let key = key.to_le_bytes();
                put(&committer, &key, bytes, Expiry::Never).expect("there is room");
            }
        }
    }

    #[test]
    fn a_store_that_only_reads_notices_a_removed_directory() {
        let directory = tempfile::TempDir::new().expect("a directory");
        drop(database(directory.path()));
        let options = StoreOptions { is_read_only: true, ..StoreOptions::default() };
        let database = Arc::new(Database::open(directory.path(), &options).expect("a store"));
        let _committer = Committer::start(database.clone(), Duration::ZERO).expect("a thread");
        database.snapshot().expect("it is there");
        fs::remove_dir_all(directory.path()).expect("removed");
        let until = Instant::now() + Duration::from_secs(20);
        while database.snapshot().is_ok() {
            assert!(Instant::now() < until, "it is not noticed");
            thread::yield_now();
        }
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
