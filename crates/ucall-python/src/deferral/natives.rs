//! Calls of native procedures, which async hooks await and the worker runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::{CallNumber, RpcError};
use ucall_server::{CallId, NativeRequest};

use super::Deferral;
use crate::awaited_call::AwaitedCall;
use crate::errors;
use crate::functions::Functions;
use crate::hooks::CallTarget;

/// The calls of native procedures that hooks make.
#[derive(Default)]
pub(super) struct NativeCalls {
    /// The requests that the worker has not taken, also of calls that have ended since.
    requests: VecDeque<NativeRequest>,
    /// The calls without an outcome. Those of a connection are neighbours.
    awaited: BTreeMap<CallId, NativeCall>,
    /// The number of calls so far.
    count: u64,
}

struct NativeCall {
    awaited: Arc<AwaitedCall>,
    /// Whether the worker has taken its request.
    is_taken: bool,
}

impl Deferral {
    /// Has the worker run a native procedure.
    pub(super) fn begin_native(
        &mut self,
        now: Instant,
        call: &CallTarget,
        awaited: &Arc<AwaitedCall>,
    ) -> Result<(), RpcError> {
        self.natives.count += 1;
        let inner = call.context().native_call(self.natives.count, now);
        let inner = inner.ok_or_else(errors::internal)?;
        awaited.set_native(inner.id);
        let native = NativeCall { awaited: awaited.clone(), is_taken: false };
        self.natives.awaited.insert(inner.id, native);
        self.natives.requests.push_back(NativeRequest::Call(Box::new(inner)));
        Ok(())
    }

    /// Cancels the native procedure that a hook does not await any more.
    pub(super) fn cancel_native(&mut self, call: CallId) {
        let native = self.natives.awaited.remove(&call);
        if native.is_some_and(|native| native.is_taken) {
            self.natives.requests.push_back(NativeRequest::Cancel(call));
        }
    }

    /// Whether hooks await native procedures.
    pub(crate) fn awaits_natives(&self) -> bool {
        !self.natives.awaited.is_empty()
    }

    /// What the worker is to do for hooks.
    #[inline]
    pub(crate) fn next_native(&mut self) -> Option<NativeRequest> {
        while let Some(request) = self.natives.requests.pop_front() {
            let NativeRequest::Call(inner) = &request else { return Some(request) };
            if let Some(native) = self.natives.awaited.get_mut(&inner.id) {
                native.is_taken = true;
                return Some(request);
            }
        }
        None
    }

    /// Passes the outcome of a native procedure to the hook that awaits it.
    #[cold]
    pub(crate) fn native_replied(
        &mut self,
        functions: &mut Functions,
        call: CallId,
        reply: Result<&[u8], RpcError>,
    ) {
        if let Some(native) = self.natives.awaited.remove(&call) {
            self.finish_awaited(functions.attach(), &native.awaited, reply);
        }
    }

    /// The worker has dropped the native calls of a connection that has closed.
    pub(super) fn drop_natives(&mut self, functions: &mut Functions, connection: Id) {
        let first = CallId { connection, number: CallNumber { request: 0, item: 0 } };
        let calls = self.natives.awaited.range(first..).map(|(call, _)| *call);
        for call in calls.take_while(|it| it.connection == connection).collect::<Vec<_>>() {
            self.native_replied(functions, call, Err(errors::aborted("the caller has left")));
        }
    }
}
