//! The native procedures of a store.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::{CallOutcome, Reply, Reservation, RpcError};
use ucall_server::{
    NativeCall, NativeContext, NativeHandler, NativeModule, NativeOutcome, NativeOutcomes,
    NativeProcedure, Token,
};

use crate::database::Snapshot;
use crate::descriptions::describe;
use crate::error::StoreError;
use crate::operation::{Operation, Outcome, check_key};
use crate::store::{OpenStore, Store};
use crate::watch::WorkerWatchers;
use crate::{params, reply};

/// Reads the params of a write.
type ReadOperation = fn(Option<&[u8]>) -> Result<Operation, StoreError>;

/// What the procedures do, in the order of their descriptions.
const ACTIONS: [Action; 8] = [
    Action::Get,
    Action::Write(params::put),
    Action::Write(params::delete),
    Action::Write(params::cas),
    Action::Write(params::increment),
    Action::Scan,
    Action::Write(params::batch),
    Action::Watch,
];

#[derive(Clone, Copy)]
enum Action {
    Get,
    Scan,
    Write(ReadOperation),
    Watch,
}

/// The native procedures of one store, `NAME.get` and so on.
#[derive(Debug)]
pub struct StoreModule {
    store: Arc<Store>,
    procedures: Vec<NativeProcedure>,
}

impl StoreModule {
    /// The procedures of a store by this name.
    pub fn new(name: &str, store: Arc<Store>) -> Self {
        Self { store, procedures: describe(name) }
    }
}

impl NativeModule for StoreModule {
    fn procedures(&self) -> &[NativeProcedure] {
        &self.procedures
    }

    fn handler(&self, outcomes: Arc<NativeOutcomes>, now: Instant) -> Box<dyn NativeHandler> {
        let store = self.store.open();
        let watchers = WorkerWatchers::new(outcomes.clone(), now);
        Box::new(StoreHandler { store, snapshot: None, writes: Vec::new(), watchers, outcomes })
    }
}

/// The procedures of a store for one worker.
struct StoreHandler {
    /// The error is every call's.
    store: Result<Arc<OpenStore>, StoreError>,
    /// Of this turn.
    snapshot: Option<Snapshot>,
    /// The writes of this turn.
    writes: Vec<(Token, Operation)>,
    watchers: WorkerWatchers,
    outcomes: Arc<NativeOutcomes>,
}

impl NativeHandler for StoreHandler {
    fn call(&mut self, index: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let request = call.request;
        let ran = match ACTIONS.get(index) {
            Some(Action::Get) => self.get(request.params, reply),
            Some(Action::Scan) => self.scan(request.params, reply),
            Some(Action::Write(read)) => return self.write(*read, call, reply),
            Some(Action::Watch) => return self.watch(call, reply),
            None => Err(StoreError::Failed("no such procedure".to_owned())),
        };
        if let Err(error) = ran {
            reply.error(&error.to_rpc());
        }
        CallOutcome::Done
    }

    fn cancel(&mut self, token: Token, _: Instant) {
        if let Ok(store) = &self.store {
            self.watchers.remove(store, token);
        }
    }

    fn set_paused(&mut self, token: Token, is_paused: bool) {
        self.watchers.set_paused(token, is_paused);
    }

    fn deadline(&self) -> Option<Instant> {
        self.watchers.due()
    }

    fn turn_ended(&mut self, now: Instant, context: &mut dyn NativeContext) {
        self.snapshot = None;
        if let (false, Ok(store)) = (self.writes.is_empty(), &self.store) {
            let writes = mem::take(&mut self.writes).into_iter();
            let (tokens, operations): (Vec<_>, Vec<_>) = writes.unzip();
            let outcomes = self.outcomes.clone();
            let reply = move |written: Vec<_>| {
                let replies = written.into_iter().map(result).map(NativeOutcome::Reply);
                outcomes.send_all(tokens.into_iter().zip(replies))
            };
            store.submit(operations, Box::new(reply));
        }
        if let Ok(store) = &self.store {
            let has_memory = || context.reserve(&mut Reservation::default(), 1);
            self.watchers.send_changes(store, now, has_memory);
        }
    }
}

impl Drop for StoreHandler {
    fn drop(&mut self) {
        // A forked child must not use the store.
        if let Ok(store) = &self.store
            && store.check_process().is_ok()
        {
            self.watchers.clear(store);
        }
    }
}

/// The result of a write, or its error.
fn result(written: Result<Outcome, StoreError>) -> Result<Vec<u8>, RpcError> {
    let mut text = Vec::new();
    reply::write_outcome(&mut text, &written.map_err(|error| error.to_rpc())?);
    Ok(text)
}

impl StoreHandler {
    fn get(&mut self, params: Option<&[u8]>, reply: &mut Reply<'_>) -> Result<(), StoreError> {
        let key = params::get(params)?;
        check_key("key", &key)?;
        let (store, snapshot) = self.read()?;
        match store.database.get(snapshot, &key, store.database.now_ms())? {
            Some(entry) => reply::write_entry(reply.result(), &entry),
            None => reply.result().extend_from_slice(b"null"),
        }
        Ok(())
    }

    fn scan(&mut self, params: Option<&[u8]>, reply: &mut Reply<'_>) -> Result<(), StoreError> {
        let scan = params::scan(params)?;
        let (store, snapshot) = self.read()?;
        let out = reply.result();
        out.extend_from_slice(br#"{"entries":["#);
        let mut is_first = true;
        let cursor = store.scan_with(snapshot, &scan, |key, entry| {
            if !mem::take(&mut is_first) {
                out.push(b',');
            }
            reply::write_item(out, key, &entry);
        })?;
        out.extend_from_slice(br#"],"cursor":"#);
        reply::write_cursor(out, cursor.as_deref());
        out.push(b'}');
        Ok(())
    }

    /// The newest state. One snapshot serves all reads of a turn, unless there was a commit: a
    /// caller that has the answer to its write must read it, even from another process.
    fn read(&mut self) -> Result<(&OpenStore, &Snapshot), StoreError> {
        let store = self.store.as_ref().map_err(StoreError::clone)?;
        let is_newest = |snapshot: &Snapshot| store.database.is_newest(snapshot);
        let snapshot = match self.snapshot.take().filter(is_newest) {
            Some(snapshot) => snapshot,
            None => store.database.snapshot()?,
        };
        Ok((store, self.snapshot.insert(snapshot)))
    }

    fn write(
        &mut self,
        read: ReadOperation,
        call: NativeCall<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        match self.begin_write(read, call) {
            Ok(()) => CallOutcome::Deferred,
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }

    fn watch(&mut self, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        match self.begin_watch(call) {
            Ok(outcome) => outcome,
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }

    fn begin_watch(&mut self, call: NativeCall<'_>) -> Result<CallOutcome, RpcError> {
        let store = self.store.as_ref().map_err(StoreError::to_rpc)?;
        let filter = params::watch(call.request.params).map_err(|error| error.to_rpc())?;
        if call.request.id.is_none() {
            return Ok(CallOutcome::Done);
        }
        if !call.request.takes_items() {
            return Err(RpcError::items_required());
        }
        let token = call.defer(0)?;
        if let Err(error) = self.watchers.start(store, token, filter) {
            self.outcomes.send(token, NativeOutcome::Reply(Err(error.to_rpc())));
        }
        Ok(CallOutcome::Stream)
    }

    fn begin_write(&mut self, read: ReadOperation, call: NativeCall<'_>) -> Result<(), RpcError> {
        let store = self.store.as_ref().map_err(StoreError::to_rpc)?;
        let operation = read(call.request.params).map_err(|error| error.to_rpc())?;
        operation.validate(store.options()).map_err(|error| error.to_rpc())?;
        let token = call.defer(operation.held_bytes())?;
        self.writes.push((token, operation));
        Ok(())
    }
}
