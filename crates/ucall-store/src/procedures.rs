//! The native procedures of a store.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_proto::{CallOutcome, Reply, RpcError};
use ucall_server::{
    NativeCall, NativeContext, NativeHandler, NativeModule, NativeOutcomes, NativeProcedure, Token,
};

use crate::database::{Snapshot, now_ms};
use crate::descriptions::describe;
use crate::error::StoreError;
use crate::operation::{Operation, Outcome, check_key};
use crate::store::{OpenStore, Store};
use crate::{params, reply};

/// Reads the params of a write.
type ReadOperation = fn(Option<&[u8]>) -> Result<Operation, StoreError>;

/// What the procedures do, in the order of their descriptions.
const ACTIONS: [Action; 7] = [
    Action::Get,
    Action::Write(params::put),
    Action::Write(params::delete),
    Action::Write(params::cas),
    Action::Write(params::increment),
    Action::Scan,
    Action::Write(params::batch),
];

#[derive(Clone, Copy)]
enum Action {
    Get,
    Scan,
    Write(ReadOperation),
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

    fn handler(&self, outcomes: Arc<NativeOutcomes>) -> Box<dyn NativeHandler> {
        let store = self.store.open();
        Box::new(StoreHandler { store, snapshot: None, writes: Vec::new(), outcomes })
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
    outcomes: Arc<NativeOutcomes>,
}

impl NativeHandler for StoreHandler {
    fn call(&mut self, index: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let request = call.request;
        let ran = match ACTIONS.get(index) {
            Some(Action::Get) => self.get(request.params, reply),
            Some(Action::Scan) => self.scan(request.params, reply),
            Some(Action::Write(read)) => return self.write(*read, call, reply),
            None => Err(StoreError::Failed("no such procedure".to_owned())),
        };
        if let Err(error) = ran {
            reply.error(&error.to_rpc());
        }
        CallOutcome::Done
    }

    fn turn_ended(&mut self, _: Instant, _: &mut dyn NativeContext) {
        self.snapshot = None;
        if let (false, Ok(store)) = (self.writes.is_empty(), &self.store) {
            let writes = mem::take(&mut self.writes).into_iter();
            let (tokens, operations): (Vec<_>, Vec<_>) = writes.unzip();
            let outcomes = self.outcomes.clone();
            let reply = move |written: Vec<_>| {
                outcomes.send_all(tokens.into_iter().zip(written.into_iter().map(result)).collect())
            };
            store.submit(operations, Box::new(reply));
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
        match store.database.get(snapshot, &key, now_ms())? {
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

    fn begin_write(&mut self, read: ReadOperation, call: NativeCall<'_>) -> Result<(), RpcError> {
        let store = self.store.as_ref().map_err(StoreError::to_rpc)?;
        let operation = read(call.request.params).map_err(|error| error.to_rpc())?;
        operation.validate(store.options()).map_err(|error| error.to_rpc())?;
        let token = call.defer(operation.held_bytes())?;
        self.writes.push((token, operation));
        Ok(())
    }
}
