//! Callbacks of the program, and how a worker runs them.

use std::ffi::c_void;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::http1::Head;
use ucall_proto::tls::TlsSession;
use ucall_proto::{
    AuthenticationError, Binary, Call as Request, CallOutcome, CallerIdentity, Reply, ResultFormat,
    ResultPart, RpcError,
};
use ucall_server::{
    CallId, CallMetrics, Caller, Deadline, Handler, Mailbox, MemoryBudget, Polled, Publisher,
    RunLimit, RunningCall, SeriesIndex, Token, Turn,
};

use crate::auth::User;
use crate::call::Call;
use crate::call_handle::{CallHandle, LiveSlot};
use crate::callback_handler::CallbackHandler;
use crate::deferred::Outcome;
use crate::parted_params::PartedParams;

/// `ucall_callback_t`. "unwind" because a C++ exception may leave it. Such an exception ends the
/// process at this boundary; without "unwind" the behaviour would be undefined.
pub type Function = unsafe extern "C-unwind" fn(CallHandle, *mut c_void);

/// A registered function of the program.
pub(crate) struct Callback {
    pub(crate) name: Arc<str>,
    pub(crate) function: Function,
    pub(crate) tag: *mut c_void,
    /// The series of its calls in the metrics of each thread; empty without metrics.
    pub(crate) series: Box<[SeriesIndex]>,
}

// SAFETY: the header asks the program that a callback may run, with its tag, on every thread that
// serves.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Handler for CallbackHandler {
    type Procedure = Callback;

    #[inline(always)]
    fn call(
        &mut self,
        callback: &Callback,
        request: &Request<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let deadline = Deadline::of(request, self.call_timeout, self.turn_began);
        if let Some(deadline) = deadline
            && deadline.has_passed(Instant::now())
        {
            reply.error(&deadline.error());
            return CallOutcome::Done;
        }
        let slot = &raw const self.slot;
        let call = Call::new(&callback.name, request, caller, reply, self, deadline);
        // SAFETY: the program promised that the function may be called with its tag. It cannot take
        // a turn of this worker, which would run another call. All fields of the call are borrowed:
        // there is nothing to drop.
        let outcome = unsafe {
            let run = |handle| (callback.function)(handle, callback.tag);
            LiveSlot::run(slot, call, run, Call::warn_unwound).outcome()
        };
        self.buffers.reset();
        outcome
    }

    fn set_binary(&mut self, binary: Option<&Binary>) {
        let parts = binary.and_then(|binary| binary.parts.clone());
        self.parted = parts.map(|parts| Box::new(PartedParams::new(parts)));
        self.takes_parts = binary.is_some_and(|binary| binary.results == ResultFormat::Parts);
        // A notification leaves those of its reply, which nobody gets.
        self.result_parts.clear();
    }

    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        mem::take(&mut self.result_parts)
    }

    fn call_rejected(&mut self, callback: Option<&Callback>, error: &RpcError) {
        let series = callback.and_then(|callback| self.series(callback));
        if let Some(metrics) = &self.metrics {
            let series = series.unwrap_or(SeriesIndex::OTHER);
            metrics.record(series, self.turn_began.elapsed(), Some(error.code));
        }
    }

    fn metrics(&self) -> Option<Arc<CallMetrics>> {
        self.metrics.clone()
    }

    fn series(&self, callback: &Callback) -> Option<SeriesIndex> {
        callback.series.get(usize::from(self.thread)).copied()
    }

    fn set_running(&mut self, running: RunningCall) {
        if let Some(state) = self.last_deferred.take().and_then(|token| self.calls.find(token)) {
            state.set_running(running);
        }
    }

    fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.calls.outcomes().set_mailbox(mailbox);
    }

    fn set_publisher(&mut self, publisher: Arc<Publisher>) {
        self.publisher = Some(publisher);
    }

    #[inline]
    fn requires_authentication(&self) -> bool {
        self.auth.is_some()
    }

    fn authenticate(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
        caller: &Caller,
    ) -> Result<CallerIdentity, AuthenticationError> {
        let auth = self.auth.ok_or(AuthenticationError::Failed)?;
        Ok(Arc::new(auth.authenticate(head, session, caller)?))
    }

    fn set_identity(&mut self, identity: &CallerIdentity) {
        if let Some(user) = identity.downcast_ref::<User>() {
            self.user = *user;
        }
    }

    fn cancel(&mut self, connection: Id) {
        for token in self.calls.of_connection(connection) {
            if let Some(state) = self.calls.remove(token) {
                state.record(Some(RpcError::REQUEST_CANCELLED), self.turn_began);
                state.cancel();
            }
        }
    }

    fn cancel_call(&mut self, call: CallId) {
        let token = self.calls.token_of(call);
        if let Some(state) = token.and_then(|token| self.calls.remove(token)) {
            state.record(Some(RpcError::REQUEST_CANCELLED), self.turn_began);
            state.cancel();
        }
    }

    fn pause_stream(&mut self, call: CallId) {
        self.set_paused(call, true);
    }

    fn resume_stream(&mut self, call: CallId) {
        self.set_paused(call, false);
    }

    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            let polled = match outcome {
                Outcome::Reply(reply) => self.take_reply(token, reply, text),
                Outcome::Parts(result, parts) => {
                    let reply = self.take_reply(token, Ok(result), text);
                    reply.map(|(id, _)| (id, Polled::Parts(parts)))
                }
                Outcome::Item(item) => self.take_item(token, item, text),
            };
            if polled.is_some() {
                return polled;
            }
        }
    }

    #[inline]
    fn turn_began(&mut self, now: Instant) {
        self.turn_began = now;
    }

    #[inline]
    fn turn_ended(&mut self, now: Instant) {
        if self.calls.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.expire(now);
        }
        if !self.taken_items.is_empty() {
            self.release_items();
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let due = match self.taken_items.is_empty() {
            true => self.calls.next_deadline(),
            false => Some(self.turn_began),
        };
        match self.control.next_line_at() {
            Some(line) => due.map(|due| due.min(line)).or(Some(line)),
            None => due,
        }
    }

    #[inline]
    fn ends_turns(&mut self, turn: &Turn) -> bool {
        self.control.write_line_if_due();
        turn.stopped || self.control.stop.is_ending()
    }

    fn run_limit(&self) -> RunLimit {
        self.calls.limit().clone()
    }

    fn abandon(&mut self) {
        self.abandon_all();
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.calls.budget().clone()
    }

    fn warn(&mut self, line: &str) {
        self.log.warn(line);
    }
}

impl CallbackHandler {
    fn take_reply(
        &mut self,
        token: Token,
        reply: Result<Vec<u8>, RpcError>,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Polled)> {
        let (id, state) = self.calls.finish(token, self.turn_began)?;
        state.record(reply.as_ref().err().map(|error| error.code), self.turn_began);
        state.end();
        Some((id?, reply.map(|result| *text = result).into()))
    }

    /// The next item of a stream, unless that has ended.
    fn take_item(
        &mut self,
        token: Token,
        item: Vec<u8>,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Polled)> {
        let id = self.calls.caller_of(token)?;
        let state = self.calls.find(token)?;
        let overflow = state.stream.as_ref()?.overflow;
        self.taken_items.push((state.clone(), item.len()));
        *text = item;
        Some((id, Polled::Item(overflow)))
    }

    fn set_paused(&mut self, call: CallId, is_paused: bool) {
        let token = self.calls.token_of(call);
        let state = token.and_then(|token| self.calls.find(token)).cloned();
        if let Some(stream) = state.as_ref().and_then(|state| state.stream.as_ref()) {
            stream.set_paused(is_paused);
        }
    }
}
