//! The watchers of one worker: streams of the changes of a key, or of keys with a prefix.
//!
//! A watcher is a position in the log of changes, which the worker reads at the end of a turn. So a
//! slow caller costs no memory: its stream pauses, and its position stays. If the log has lost the
//! changes after that position meanwhile, the stream ends with an error. Each watcher gets a copy
//! of a change, so a turn sends a few of them, and none while the worker holds too much memory.

use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ucall_proto::RpcError;
use ucall_server::{NativeOutcome, NativeOutcomes, Token};

use crate::error::StoreError;
use crate::operation::{Operation, Outcome};
use crate::reply::{write_change, write_watched};
use crate::store::OpenStore;

/// Bytes of items that a turn sends to one watcher, and to all.
const WATCHER_BYTES_MAX: usize = 64 << 10;
const TURN_BYTES_MAX: usize = 1 << 20;
/// Changes that a turn reads.
const TURN_CHANGES_MAX: usize = 1_000;
/// The pause while there is no memory, as nothing reports that there is.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(10);

/// The keys whose changes are watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Filter {
    Key(Vec<u8>),
    Prefix(Vec<u8>),
}

#[derive(Debug)]
struct Watcher {
    filter: Filter,
    /// The version of the last change that it has got; `None` until it is registered.
    position: Option<u64>,
    is_paused: bool,
    /// Bytes of its items in this turn.
    sent: usize,
}

/// A watcher that is registered, since which version, or why it is not.
type Started = (Token, Result<u64, StoreError>);

/// The watchers of one worker.
pub(crate) struct WorkerWatchers {
    watchers: HashMap<Token, Watcher>,
    /// Another thread appends.
    started: Arc<Mutex<Vec<Started>>>,
    /// The commit up to which all watchers that take changes have got them.
    seen: Option<usize>,
    /// Whether there was a commit since the log was read. LMDB counts a commit before readers see
    /// it, for as long as the disk takes, so its count alone would spin or miss the change.
    is_woken: Arc<AtomicBool>,
    outcomes: Arc<NativeOutcomes>,
    has_waker: bool,
    /// No changes are sent before this time, because the worker holds too much memory.
    pause_until: Option<Instant>,
    /// When the last turn began. What is due then is due at once.
    now: Instant,
}

impl Filter {
    fn matches(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(watched) => watched == key,
            Self::Prefix(prefix) => key.starts_with(prefix),
        }
    }
}

impl Watcher {
    fn is_ready(&self) -> bool {
        self.position.is_some() && !self.is_paused && self.sent < WATCHER_BYTES_MAX
    }
}

impl WorkerWatchers {
    pub(crate) fn new(outcomes: Arc<NativeOutcomes>, now: Instant) -> Self {
        Self {
            watchers: HashMap::new(),
            started: Arc::default(),
            seen: None,
            is_woken: Arc::default(),
            outcomes,
            has_waker: false,
            pause_until: None,
            now,
        }
    }

    /// Begins a stream, whose first item reports that it has begun.
    pub(crate) fn start(
        &mut self,
        store: &OpenStore,
        token: Token,
        filter: Filter,
    ) -> Result<(), StoreError> {
        let all = &store.database.watchers;
        if !mem::replace(&mut self.has_waker, true) {
            let (outcomes, is_woken) = (Arc::downgrade(&self.outcomes), self.is_woken.clone());
            let wake = move || {
                is_woken.store(true, Ordering::SeqCst);
                outcomes.upgrade().map(|outcomes| outcomes.wake()).is_some()
            };
            all.add_waker(Box::new(wake));
        }
        all.add().map_err(|error| StoreError::Failed(format!("cannot watch: {error}")))?;
        let (position, is_paused, sent) = (None, false, 0);
        self.watchers.insert(token, Watcher { filter, position, is_paused, sent });
        let (started, outcomes) = (self.started.clone(), self.outcomes.clone());
        let reply = move |written: Vec<Result<Outcome, StoreError>>| {
            let since = written.into_iter().next().map(|written| match written? {
                Outcome::Version(version) => Ok(version),
                _ => Err(crate::database::corrupt()),
            });
            let since = since.unwrap_or_else(|| Err(crate::database::corrupt()));
            started.lock().unwrap_or_else(PoisonError::into_inner).push((token, since));
            outcomes.wake();
        };
        store.submit(vec![Operation::Watch], Box::new(reply));
        Ok(())
    }

    /// Ends a stream, if it is one of these.
    pub(crate) fn remove(&mut self, store: &OpenStore, token: Token) {
        if self.watchers.remove(&token).is_some() && store.database.watchers.remove() {
            store.submit(vec![Operation::Unwatch], Box::new(drop));
        }
    }

    /// Ends all streams without a reply.
    pub(crate) fn clear(&mut self, store: &OpenStore) {
        let tokens: Vec<_> = self.watchers.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.remove(store, token));
    }

    pub(crate) fn set_paused(&mut self, token: Token, is_paused: bool) {
        if let Some(watcher) = self.watchers.get_mut(&token) {
            watcher.is_paused = is_paused;
            self.seen = None;
        }
    }

    /// When there is something to send, if there is. Asked before each wait: a turn may have taken
    /// the wake-up of a commit after its calls had ended.
    pub(crate) fn due(&self) -> Option<Instant> {
        let is_ready = || self.watchers.values().any(Watcher::is_ready);
        let is_new = || self.seen.is_none() || self.is_woken.load(Ordering::SeqCst);
        if self.watchers.is_empty() {
            None
        } else if !self.lock_started().is_empty() {
            Some(self.now)
        } else {
            (is_ready() && is_new()).then(|| self.pause_until.unwrap_or(self.now))
        }
    }

    fn lock_started(&self) -> MutexGuard<'_, Vec<Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends changes that were committed since the last turn, if there is memory for them.
    pub(crate) fn send_changes(
        &mut self,
        store: &OpenStore,
        now: Instant,
        has_memory: impl FnOnce() -> bool,
    ) {
        self.now = now;
        if self.watchers.is_empty() {
            return;
        }
        self.take_started(store);
        let is_ready = self.watchers.values().any(Watcher::is_ready);
        if !is_ready {
            return;
        }
        self.pause_until = (!has_memory()).then(|| now + SHORTAGE_PAUSE);
        if self.pause_until.is_some() {
            return;
        }
        self.is_woken.store(false, Ordering::SeqCst);
        if self.seen == Some(store.database.last_commit()) {
            return;
        }
        match self.read_log(store) {
            Ok(seen) => self.seen = seen,
            Err(error) => self.end_all(store, &error.to_rpc()),
        }
        self.watchers.values_mut().for_each(|watcher| watcher.sent = 0);
    }

    fn take_started(&mut self, store: &OpenStore) {
        let started = mem::take(&mut *self.lock_started());
        for (token, since) in started {
            let Some(watcher) = self.watchers.get_mut(&token) else { continue };
            match since {
                Ok(version) => {
                    watcher.position = Some(version);
                    self.seen = None;
                    let mut item = Vec::new();
                    write_watched(&mut item, version);
                    self.outcomes.send(token, NativeOutcome::Item(item));
                }
                Err(error) => self.end(store, token, error.to_rpc()),
            }
        }
    }

    /// The commit that was read; `None` if there is more to read.
    fn read_log(&mut self, store: &OpenStore) -> Result<Option<usize>, StoreError> {
        let snapshot = store.database.snapshot()?;
        let ready = self.watchers.values().filter(|watcher| watcher.is_ready());
        let from = ready.filter_map(|watcher| watcher.position).min().unwrap_or_default();
        let (mut read, mut item, mut missed, mut sent) = (0, Vec::new(), Vec::new(), 0);
        let (watchers, outcomes) = (&mut self.watchers, &self.outcomes);
        store.database.changes_after(&snapshot, from, |version, change| {
            item.clear();
            let ready = watchers.iter_mut().filter(|(_, watcher)| watcher.is_ready());
            for (token, watcher) in ready.filter(|(_, it)| it.position < Some(version)) {
                if watcher.position != Some(version - 1) {
                    missed.push((*token, watcher.position.take()));
                    continue;
                }
                if sent >= TURN_BYTES_MAX {
                    return false;
                }
                watcher.position = Some(version);
                if watcher.filter.matches(change.key) {
                    if item.is_empty() {
                        write_change(&mut item, version, &change);
                    }
                    watcher.sent += item.len();
                    sent += item.len();
                    outcomes.send(*token, NativeOutcome::Item(item.clone()));
                }
            }
            read += 1;
            read < TURN_CHANGES_MAX
        })?;
        let is_read = read < TURN_CHANGES_MAX && sent < TURN_BYTES_MAX;
        if is_read {
            let last = Some(store.database.version(&snapshot)?);
            let behind = watchers.iter_mut().filter(|(_, it)| it.is_ready() && it.position < last);
            missed.extend(behind.map(|(token, watcher)| (*token, watcher.position.take())));
        }
        let is_read = is_read && watchers.values().all(|it| it.sent < WATCHER_BYTES_MAX);
        for (token, position) in missed {
            self.end(store, token, missed_changes(position.unwrap_or_default()));
        }
        Ok(is_read.then_some(snapshot.id()))
    }

    fn end_all(&mut self, store: &OpenStore, error: &RpcError) {
        let tokens: Vec<_> = self.watchers.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.end(store, token, error.clone()));
    }

    fn end(&mut self, store: &OpenStore, token: Token, error: RpcError) {
        self.remove(store, token);
        self.outcomes.send(token, NativeOutcome::Reply(Err(error)));
    }
}

fn missed_changes(version: u64) -> RpcError {
    RpcError::new(RpcError::OVERLOADED, "Changes missed").expected(&format!(
        "the caller has read too slowly: the changes after version {version} are gone \
         (max_watch_bytes)"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use ucall_proto::MemoryBudget;
    use ucall_server::{DeferredCalls, RunLimit};

    use super::*;
    use crate::{Expiry, Store, StoreOptions, Value};

    const WATCHERS: usize = 3;

    #[test]
    fn a_turn_sends_few_bytes_and_none_without_memory() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path().into(), StoreOptions::default()).open().unwrap();
        let limit = RunLimit::new(WATCHERS, "max_running_calls");
        let mut calls =
            DeferredCalls::<(), NativeOutcome>::with_limit(limit, MemoryBudget::default());
        let now = Instant::now();
        let mut watchers = WorkerWatchers::new(calls.outcomes().clone(), now);
        for _ in 0..WATCHERS {
            let token = calls.insert(None, None, now, ());
            watchers.start(&store, token, Filter::Prefix(Vec::new())).unwrap();
        }
        while watchers.lock_started().len() < WATCHERS {
            thread::yield_now();
        }
        let mut sent = |watchers: &mut WorkerWatchers, has_memory| {
            watchers.send_changes(&store, now, || has_memory);
            std::iter::from_fn(|| calls.next_outcome()).count()
        };
        assert_eq!(sent(&mut watchers, true), WATCHERS, "each is told that it watches");
        let value = Value::Json(vec![b'1'; TURN_BYTES_MAX / 2]);
        let put = Operation::Put { key: "a".into(), value, expiry: Expiry::Never, version: None };
        let (is_written, written) = mpsc::channel();
        store.submit(vec![put], Box::new(move |_| is_written.send(()).unwrap()));
        written.recv().unwrap();
        assert_eq!(sent(&mut watchers, false), 0);
        assert_eq!(watchers.due(), Some(now + SHORTAGE_PAUSE));
        assert_eq!(sent(&mut watchers, true), 2);
        assert_eq!(watchers.due(), Some(now), "at once");
        assert_eq!(sent(&mut watchers, true), 1);
        assert_eq!((sent(&mut watchers, true), watchers.due()), (0, None));
    }
}
