//! The table of procedures and routes.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use ucall_buffer::has_same_ends;
use ucall_proto::InferenceModel;
use ucall_proto::http1::{CallPaths, Methods};

use crate::inference::{self, InferenceTable};
use crate::mcp::{self, McpTable, Tool};
use crate::metrics::MetricsReader;
use crate::native::{NativeModule, NativeTable};
use crate::protected_resource::ProtectedResource;
use crate::routes::{BodyRules, RouteAccess, RouteTable, RouteTarget};
use crate::{health, metrics};

/// One version of the table.
#[derive(Debug)]
pub(crate) struct ProcedureTable<P> {
    entries: Vec<(Box<[u8]>, Arc<P>)>,
    indices: HashMap<Box<[u8]>, usize, FixedState>,
    /// Apart from the others, so that a call of those does not check which it is.
    natives: NativeTable,
    routes: RouteTable<P>,
    /// Answers calls of methods that are not in the table.
    unknown: Option<Arc<P>>,
    /// Has the hooks around native procedures, if there are any.
    native_hooks: Option<Arc<P>>,
    /// `None` if the server has no MCP.
    mcp: Option<McpTable<P>>,
    /// `None` if the server has no models.
    inference: Option<Arc<InferenceTable>>,
}

impl<P> Default for ProcedureTable<P> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            indices: HashMap::default(),
            natives: NativeTable::default(),
            routes: RouteTable::default(),
            unknown: None,
            native_hooks: None,
            mcp: None,
            inference: None,
        }
    }
}

impl<P> Clone for ProcedureTable<P> {
    fn clone(&self) -> Self {
        Self {
            entries: self.entries.clone(),
            indices: self.indices.clone(),
            natives: self.natives.clone(),
            routes: self.routes.clone(),
            unknown: self.unknown.clone(),
            native_hooks: self.native_hooks.clone(),
            mcp: self.mcp.clone(),
            inference: self.inference.clone(),
        }
    }
}

impl<P> ProcedureTable<P> {
    fn insert(&mut self, name: &[u8], procedure: Arc<P>) {
        self.natives.remove(name);
        match self.indices.get(name) {
            Some(&index) => self.entries[index].1 = procedure,
            None => {
                self.indices.insert(name.into(), self.entries.len());
                self.entries.push((name.into(), procedure));
            }
        }
    }

    fn insert_native(&mut self, module: Arc<dyn NativeModule>, timeout: Option<Duration>) {
        for procedure in module.procedures() {
            self.remove(procedure.name.as_bytes());
        }
        self.natives.insert(module, timeout);
    }

    fn remove(&mut self, name: &[u8]) {
        let Some(removed) = self.indices.remove(name) else { return };
        self.entries.remove(removed);
        for index in self.indices.values_mut() {
            *index -= usize::from(*index > removed);
        }
    }
}

/// The procedures of one server. Workers share it with the threads that register procedures.
///
/// Each worker caches the table, and checks once a turn, without a lock, for a newer version. So a
/// call costs one hash of its method's name, or one comparison if the name is that of the last
/// call.
#[derive(Debug)]
pub struct Procedures<P> {
    table: Mutex<Arc<ProcedureTable<P>>>,
    version: AtomicU64,
    wants_peers: AtomicBool,
    call_paths: CallPaths,
}

impl<P> Default for Procedures<P> {
    fn default() -> Self {
        Self {
            table: Mutex::new(Arc::new(ProcedureTable::default())),
            version: AtomicU64::new(0),
            wants_peers: AtomicBool::new(false),
            call_paths: CallPaths::default(),
        }
    }
}

impl<P> Procedures<P> {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table of a server whose calls are at these paths.
    pub fn at(call_paths: CallPaths) -> Self {
        Self { call_paths, ..Self::default() }
    }

    /// Registers `procedure` as `name`, and replaces the procedure of that name, if any.
    pub fn insert(&self, name: &str, procedure: P) {
        self.change(|table| table.insert(name.as_bytes(), Arc::new(procedure)));
    }

    /// Adds a procedure unless there are `max` others, native ones aside. Returns whether it did.
    pub fn insert_within(&self, name: &str, procedure: P, max: usize) -> bool {
        let mut is_within = false;
        self.change(|table| {
            let indices = &table.indices;
            is_within = indices.len() < max || indices.contains_key(name.as_bytes());
            if is_within {
                table.insert(name.as_bytes(), Arc::new(procedure));
            }
        });
        is_within
    }

    /// Registers the procedures of a native module, and replaces those of their names, if any.
    /// `timeout` limits the duration of their calls.
    pub fn insert_native(&self, module: Arc<dyn NativeModule>, timeout: Option<Duration>) {
        self.change(|table| table.insert_native(module, timeout));
    }

    /// Removes the procedure `name`; `false` if there is none, or it is native. Workers may still
    /// run it.
    pub fn remove(&self, name: &str) -> bool {
        let is_known = self.lock().indices.contains_key(name.as_bytes());
        if is_known {
            self.change(|table| table.remove(name.as_bytes()));
        }
        is_known
    }

    /// Has `procedure` answer calls of methods that are neither registered nor native, nor
    /// reserved for the protocol: `rpc.` and `$/`.
    pub fn set_unknown(&self, procedure: P) {
        self.change(|table| table.unknown = Some(Arc::new(procedure)));
    }

    /// Has `procedure` answer calls of native procedures. It may have the worker run them by
    /// [`Handler::next_native`](crate::Handler::next_native).
    pub fn set_native_hooks(&self, procedure: P) {
        self.change(|table| {
            table.natives.set_hooked();
            table.native_hooks = Some(Arc::new(procedure));
        });
    }

    /// Has `procedure` answer HTTP requests other than calls: those of a path and these methods. A
    /// path that ends in `*` means all that begin with the rest, and a segment `{name}` any that is
    /// not empty; exact paths come first, then those with such segments, then longer beginnings.
    pub fn insert_route(
        &self,
        path: &str,
        methods: Methods,
        access: RouteAccess,
        body: BodyRules,
        procedure: P,
    ) {
        let target = RouteTarget::Procedure(procedure);
        self.change(|table| table.routes.insert(path, methods, access, target, body));
    }

    /// Has `procedure` answer the HTTP requests below a path that nothing else answers, without
    /// authentication and without rules for browsers. `prefix` is the path without a `/` at the
    /// end.
    pub fn mount(&self, prefix: &str, procedure: P) {
        self.change(|table| table.routes.mount(prefix, procedure));
    }

    /// Removes the routes of a path.
    pub fn remove_routes(&self, path: &str) {
        self.change(|table| table.routes.remove(path));
    }

    /// Has the worker answer `/healthz` and `/readyz`, also while it drains or is overloaded. When
    /// the server itself is ready, [`Handler::check_ready`](crate::Handler::check_ready) runs
    /// `checks`.
    pub fn insert_health_checks(&self, checks: Option<P>) {
        let (get, public) = (Methods::GET, RouteAccess::Public);
        self.insert_target(health::LIVE, get, public, RouteTarget::Live);
        self.insert_target(health::READY, get, public, RouteTarget::Ready(checks));
    }

    /// Has the worker answer `/metrics`.
    pub fn insert_metrics(&self, reader: MetricsReader) {
        let (get, access) = (Methods::GET, RouteAccess::Authenticated);
        self.insert_target(metrics::PATH, get, access, RouteTarget::Metrics(reader));
    }

    /// Has the worker answer a method of the Model Context Protocol: over HTTP at `/mcp` below each
    /// path of calls, and
    /// beside the functions over raw TCP. The procedure gets two params: those of the request, and
    /// its version.
    pub fn insert_mcp_method(&self, name: &str, procedure: P) {
        self.change_mcp(|table| table.insert_method(name, procedure));
    }

    /// Replaces the tools of the Model Context Protocol.
    pub fn set_tools(&self, tools: Vec<Tool>) {
        self.change_mcp(|table| table.set_tools(tools));
    }

    /// Has the worker answer the Open Inference Protocol at `/v2`. When the server itself is ready,
    /// [`Handler::check_ready`](crate::Handler::check_ready) runs `checks` for `/v2/health/ready`.
    pub fn insert_inference(&self, checks: Option<P>) {
        let (get, public) = (Methods::GET, RouteAccess::Public);
        let both = get.union(Methods::CALLS);
        self.insert_target(inference::LIVE, get, public, RouteTarget::InferenceLive);
        self.insert_target(inference::READY, get, public, RouteTarget::InferenceReady(checks));
        for path in inference::PATHS {
            let access = RouteAccess::Authenticated;
            self.insert_target(path, both, access, RouteTarget::Inference);
        }
    }

    /// Replaces the models of the Open Inference Protocol. `server` is the metadata of the server,
    /// as JSON text.
    pub fn set_models(&self, server: &str, models: Vec<InferenceModel>) {
        let inference = Some(Arc::new(InferenceTable::new(server, models)));
        self.change(|table| table.inference = inference);
    }

    fn change_mcp(&self, change: impl FnOnce(&mut McpTable<P>)) {
        self.change(|table| {
            if table.mcp.is_none() {
                for base in self.call_paths.bases() {
                    let (path, access) =
                        (format!("{base}{}", mcp::PATH), RouteAccess::Authenticated);
                    let (calls, body) = (Methods::CALLS, BodyRules::default());
                    table.routes.insert(&path, calls, access, RouteTarget::Mcp, body);
                }
            }
            change(table.mcp.get_or_insert_default());
        });
    }

    /// Has the worker answer the paths of a resource's metadata.
    pub fn insert_protected_resource(&self, resource: &Arc<ProtectedResource>) {
        for path in resource.paths() {
            let (get, public) = (Methods::GET, RouteAccess::Public);
            self.insert_target(&path, get, public, RouteTarget::Resource(resource.clone()));
        }
    }

    fn insert_target(
        &self,
        path: &str,
        methods: Methods,
        access: RouteAccess,
        target: RouteTarget<P>,
    ) {
        let body = BodyRules::default();
        self.change(|table| table.routes.insert(path, methods, access, target, body));
    }

    fn change(&self, change: impl FnOnce(&mut ProcedureTable<P>)) {
        let mut table = self.lock();
        let mut changed = ProcedureTable::clone(&table);
        change(&mut changed);
        let before = mem::replace(&mut *table, Arc::new(changed));
        self.version.fetch_add(1, Ordering::Release);
        drop(table);
        // Without the lock: to drop a procedure may take another lock, and run code of its own.
        drop(before);
    }

    /// Sets [`Caller::peer`](crate::Caller::peer) from now on, at one system call a connection.
    pub fn want_peers(&self) {
        self.wants_peers.store(true, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The procedure `name`, unless it is a native one.
    pub fn get(&self, name: &str) -> Option<Arc<P>> {
        let table = self.lock();
        let index = *table.indices.get(name.as_bytes())?;
        table.entries.get(index).map(|(_, procedure)| procedure.clone())
    }

    /// Whether there is a procedure `name`.
    pub fn contains(&self, name: &str) -> bool {
        let table = self.lock();
        table.indices.contains_key(name.as_bytes()) || table.natives.contains(name.as_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Arc<ProcedureTable<P>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version of the table that a worker uses.
pub(crate) struct ProcedureCache<P> {
    procedures: Arc<Procedures<P>>,
    table: Arc<ProcedureTable<P>>,
    /// The index of the last procedure that was found, which is likely the next.
    last: Cell<usize>,
    version: u64,
    pub(crate) wants_peers: bool,
}

impl<P> ProcedureCache<P> {
    pub(crate) fn new(procedures: Arc<Procedures<P>>) -> Self {
        let mut cache = Self {
            procedures,
            table: Arc::default(),
            last: Cell::new(0),
            version: u64::MAX,
            wants_peers: false,
        };
        cache.refresh();
        cache
    }

    /// Loads the newest version of the table; `true` if it is another one.
    #[inline(always)]
    pub(crate) fn refresh(&mut self) -> bool {
        let version = self.procedures.version.load(Ordering::Acquire);
        let is_new = version != self.version;
        if is_new {
            self.reload(version);
        }
        is_new
    }

    #[cold]
    fn reload(&mut self, version: u64) {
        self.version = version;
        // The table before is dropped without the lock, as in `change`.
        let table = self.procedures.lock().clone();
        self.table = table;
        self.wants_peers = self.procedures.wants_peers.load(Ordering::Relaxed);
    }

    /// The native procedures.
    pub(crate) fn natives(&self) -> &NativeTable {
        &self.table.natives
    }

    /// What answers calls of methods that there are not.
    pub(crate) fn unknown(&self) -> Option<&P> {
        self.table.unknown.as_deref()
    }

    /// What answers calls of native procedures, if hooks are around them.
    pub(crate) fn native_hooks(&self) -> Option<&P> {
        self.table.native_hooks.as_deref()
    }

    /// The procedures of the handler.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &P> {
        self.table.entries.iter().map(|(_, procedure)| &**procedure)
    }

    pub(crate) fn mcp(&self) -> Option<&McpTable<P>> {
        self.table.mcp.as_ref()
    }

    pub(crate) fn inference(&self) -> Option<&InferenceTable> {
        self.table.inference.as_deref()
    }

    pub(crate) fn routes(&self) -> &RouteTable<P> {
        &self.table.routes
    }

    #[inline(always)]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&P> {
        match self.table.entries.get(self.last.get()) {
            Some((known, procedure)) if is_same(known, name) => Some(procedure),
            _ => self.find_other(name),
        }
    }

    #[inline(never)]
    fn find_other(&self, name: &[u8]) -> Option<&P> {
        let ProcedureTable { entries, indices, .. } = &*self.table;
        let index = *indices.get(name)?;
        self.last.set(index);
        entries.get(index).map(|(_, procedure)| procedure.as_ref())
    }
}

/// Whether two names are equal. For short names, a call of memcmp would cost more.
#[inline(always)]
fn is_same(known: &[u8], name: &[u8]) -> bool {
    if known.len() != name.len() {
        return false;
    }
    match name.len() {
        2..=4 => has_same_ends::<2>(known, name),
        5..=8 => has_same_ends::<4>(known, name),
        9..=16 => has_same_ends::<8>(known, name),
        _ => known == name,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Weak, mpsc};

    use super::*;

    #[test]
    fn a_cache_sees_changes_at_its_next_refresh() {
        let procedures = Arc::new(Procedures::new());
        procedures.insert("a", 1);
        let mut cache = ProcedureCache::new(procedures.clone());
        assert_eq!((cache.find(b"a"), cache.find(b"b")), (Some(&1), None));
        procedures.insert("b", 2);
        procedures.insert("a", 3);
        assert_eq!((cache.find(b"a"), cache.find(b"b")), (Some(&1), None));
        cache.refresh();
        assert_eq!((cache.find(b"a"), cache.find(b"b")), (Some(&3), Some(&2)));
        for _ in 0..2 {
            assert_eq!(
                (cache.find(b"b"), cache.find(b"a"), cache.find(b"c")),
                (Some(&2), Some(&3), None)
            );
        }
        assert!(procedures.contains("b") && !procedures.contains("c"));
        assert!(procedures.remove("a") && !procedures.remove("a"));
        cache.refresh();
        assert_eq!((cache.find(b"b"), cache.find(b"a")), (Some(&2), None));
    }

    /// Notes whether the table is locked when it is dropped.
    struct Probe {
        procedures: Weak<Procedures<Probe>>,
        was_locked: mpsc::Sender<bool>,
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            let Some(procedures) = self.procedures.upgrade() else { return };
            let _ = self.was_locked.send(procedures.table.try_lock().is_err());
        }
    }

    #[test]
    fn a_replaced_procedure_is_dropped_without_the_lock() {
        let (sender, was_locked) = mpsc::channel();
        let procedures = Arc::new(Procedures::new());
        let probe =
            || Probe { procedures: Arc::downgrade(&procedures), was_locked: sender.clone() };
        procedures.insert("a", probe());
        procedures.insert("a", probe());
        assert_eq!(was_locked.try_recv(), Ok(false), "by the thread that replaces it");
        let mut cache = ProcedureCache::new(procedures.clone());
        procedures.insert("a", probe());
        assert!(was_locked.try_recv().is_err(), "the cache has it");
        cache.refresh();
        assert_eq!(was_locked.try_recv(), Ok(false), "by the worker");
    }

    #[test]
    fn names_of_any_length_are_equal_only_if_each_byte_is() {
        for len in 0..40 {
            let name = vec![b'n'; len];
            assert!(is_same(&name, &name.clone()) && !is_same(&name, &vec![b'n'; len + 1]));
            for at in 0..len {
                let mut other = name.clone();
                other[at] = b'm';
                assert!(!is_same(&name, &other), "{at} of {len}");
            }
        }
    }
}
