//! The functions that are served, by name.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

/// Names and what runs under them, as they were at one moment.
pub(crate) type Table<P> = HashMap<Box<[u8]>, Arc<P>, FixedState>;

/// The functions of one server, shared by its workers and whoever registers more.
///
/// Each worker keeps the table it saw last and looks once a turn, without a lock, whether there is
/// a newer one; so a call costs one hash of its method's name.
#[derive(Debug)]
pub struct Procedures<P> {
    table: Mutex<Arc<Table<P>>>,
    version: AtomicU64,
    wants_peers: AtomicBool,
}

impl<P> Default for Procedures<P> {
    fn default() -> Self {
        Self {
            table: Mutex::new(Arc::new(Table::default())),
            version: AtomicU64::new(0),
            wants_peers: AtomicBool::new(false),
        }
    }
}

impl<P> Procedures<P> {
    /// No functions yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves `procedure` under `name`, in place of what had that name before.
    pub fn insert(&self, name: &str, procedure: P) {
        let mut table = self.lock();
        let mut changed = Table::clone(&table);
        changed.insert(name.as_bytes().into(), Arc::new(procedure));
        *table = Arc::new(changed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// From now on, calls tell the address that they come from. It costs a system call a
    /// connection.
    pub fn want_peers(&self) {
        self.wants_peers.store(true, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Whether something is served under `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.lock().contains_key(name.as_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Table<P>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The table that one worker saw last.
#[derive(Debug)]
pub(crate) struct View<P> {
    procedures: Arc<Procedures<P>>,
    table: Arc<Table<P>>,
    version: u64,
    pub(crate) wants_peers: bool,
}

impl<P> View<P> {
    pub(crate) fn new(procedures: Arc<Procedures<P>>) -> Self {
        let mut view =
            Self { procedures, table: Arc::default(), version: u64::MAX, wants_peers: false };
        view.refresh();
        view
    }

    /// Takes the newest table, if there is a newer one.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let version = self.procedures.version.load(Ordering::Acquire);
        if version != self.version {
            self.version = version;
            self.table = self.procedures.lock().clone();
            self.wants_peers = self.procedures.wants_peers.load(Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&P> {
        self.table.get(name).map(Arc::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_sees_what_is_added_and_replaced_at_its_next_look() {
        let procedures = Arc::new(Procedures::new());
        procedures.insert("a", 1);
        let mut view = View::new(procedures.clone());
        assert_eq!((view.find(b"a"), view.find(b"b")), (Some(&1), None));
        procedures.insert("b", 2);
        procedures.insert("a", 3);
        assert_eq!((view.find(b"a"), view.find(b"b")), (Some(&1), None));
        view.refresh();
        assert_eq!((view.find(b"a"), view.find(b"b")), (Some(&3), Some(&2)));
        assert!(procedures.contains("b") && !procedures.contains("c"));
    }
}
