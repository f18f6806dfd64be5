//! Calls of native procedures, which async hooks await and the worker runs.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::RpcError;
use ucall_server::{CallId, NativeRequest};

use super::Deferral;
use crate::awaited_call::AwaitedCall;
use crate::errors;
use crate::functions::Functions;
use crate::hooks::CallTarget;

/// The calls of native procedures that hooks make.
#[derive(Default)]
pub(super) struct NativeCalls {
    /// The requests that the worker has not taken.
    requests: VecDeque<NativeRequest>,
    /// Those without an outcome.
    awaited: HashMap<CallId, Arc<AwaitedCall>>,
    /// The number of calls so far.
    count: u64,
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
        self.natives.awaited.insert(inner.id, awaited.clone());
        self.natives.requests.push_back(NativeRequest::Call(Box::new(inner)));
        Ok(())
    }

    /// Cancels the native procedure that a hook does not await any more.
    pub(super) fn cancel_native(&mut self, call: CallId) {
        if self.natives.awaited.remove(&call).is_none() {
            return;
        }
        let requests = &mut self.natives.requests;
        match requests.iter().position(|request| request.id() == call) {
            Some(index) => drop(requests.remove(index)),
            None => requests.push_back(NativeRequest::Cancel(call)),
        }
    }

    /// Whether hooks await native procedures.
    pub(crate) fn awaits_natives(&self) -> bool {
        !self.natives.awaited.is_empty()
    }

    /// What the worker is to do for hooks.
    #[inline]
    pub(crate) fn next_native(&mut self) -> Option<NativeRequest> {
        self.natives.requests.pop_front()
    }

    /// Passes the outcome of a native procedure to the hook that awaits it.
    #[cold]
    pub(crate) fn native_replied(
        &mut self,
        functions: &mut Functions,
        call: CallId,
        reply: Result<&[u8], RpcError>,
    ) {
        if let Some(awaited) = self.natives.awaited.remove(&call) {
            self.finish_awaited(functions.attach(), &awaited, reply);
        }
    }

    /// The worker has dropped the native calls of a connection that has closed.
    pub(super) fn drop_natives(&mut self, functions: &mut Functions, connection: Id) {
        self.natives.requests.retain(|request| request.id().connection != connection);
        let calls = self.natives.awaited.keys().filter(|call| call.connection == connection);
        for call in calls.copied().collect::<Vec<_>>() {
            self.native_replied(functions, call, Err(errors::aborted("the caller has left")));
        }
    }
}
