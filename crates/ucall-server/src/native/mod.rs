//! Native procedures: procedures in Rust, which a worker calls without its handler.
//!
//! A [`NativeModule`] is a set of them that share state. Each worker makes a [`NativeHandler`] of
//! each module, on its own thread, and calls it there; no other thread uses it. A handler answers a
//! call at once, or defers it and sends the outcome later, from any thread. Work for many calls,
//! such as a commit, it does once a turn ([`NativeHandler::turn_ended`]). Then it also connects
//! sockets on the worker's engine and sends on them ([`NativeContext`]); it gets their events in
//! later turns.

mod handlers;
mod inner;
mod sockets;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::{Call, CallOutcome, Reply, RpcError};

use self::handlers::{DeferredCall, NativeCalls};
pub(crate) use self::handlers::{NativeHandlers, NativeTable};
pub(crate) use self::inner::is_inner;
pub use self::inner::{InnerCall, NativeRequest};
pub use self::sockets::NativeContext;
pub(crate) use self::sockets::{NativeLimits, NativeSockets};
use crate::caller::Caller;
use crate::deadline::Deadline;
use crate::deferred_calls::{OutcomeQueue, RunPermit, Token};
use crate::metrics::{CallMetrics, RunningCall, SeriesIndex};

/// The queue of one worker that takes the outcomes of deferred native calls.
pub type NativeOutcomes = OutcomeQueue<NativeOutcome>;

/// An outcome of a deferred native call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NativeOutcome {
    /// The JSON text of an item, for a call that is a [`CallOutcome::Stream`].
    Item(Vec<u8>),
    /// The JSON text of the result, or an error. The call has ended.
    Reply(Result<Vec<u8>, RpcError>),
}

impl From<Result<Vec<u8>, RpcError>> for NativeOutcome {
    fn from(reply: Result<Vec<u8>, RpcError>) -> Self {
        Self::Reply(reply)
    }
}

/// Native procedures that share state, as those of one store do.
pub trait NativeModule: Send + Sync + fmt::Debug {
    /// Its procedures, which do not change. A call names one by its index.
    fn procedures(&self) -> &[NativeProcedure];

    /// A handler for one worker, made on the thread of that worker, after any fork, in a turn that
    /// began at `now`.
    fn handler(&self, outcomes: Arc<NativeOutcomes>, now: Instant) -> Box<dyn NativeHandler>;
}

/// The description of one native procedure.
#[derive(Clone, Debug)]
pub struct NativeProcedure {
    /// The name that calls have. A name that ends in `*` is that of all calls whose methods begin
    /// with the rest; other names and longer beginnings come first.
    pub name: String,
    /// One sentence.
    pub summary: &'static str,
    /// The JSON Schema of the params by name, an object whose `properties` are in the order of the
    /// params by position.
    pub params: &'static str,
    /// The JSON Schema of the result.
    pub result: &'static str,
    /// The JSON Schema of an item, if it is a stream.
    pub item: Option<&'static str>,
}

/// Runs the procedures of a module for one worker.
pub trait NativeHandler {
    /// Runs a call of the procedure at `index`: writes the reply; or copies what it needs of the
    /// call, defers it, returns [`CallOutcome::Deferred`], and sends the outcome later. If the call
    /// [takes items](Call::takes_items), it may return [`CallOutcome::Stream`] instead, and send
    /// items before.
    fn call(&mut self, index: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome;

    /// The calls that follow are parts of `document`, whose memory the handler may keep instead of
    /// copies; `None` after the last of them. Only long documents are shared.
    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        let _ = document;
    }

    /// A deferred call has ended without its outcome: its connection has closed, its caller has
    /// cancelled it, or its deadline has passed by `now`.
    fn cancel(&mut self, token: Token, now: Instant) {
        let _ = (token, now);
    }

    /// The reader of a stream is slow: no more items until it is not paused. Those that were sent
    /// may follow.
    fn set_paused(&mut self, token: Token, is_paused: bool) {
        let _ = (token, is_paused);
    }

    /// All calls of a turn have begun. Called no later than at [`NativeHandler::deadline`].
    fn turn_ended(&mut self, now: Instant, context: &mut dyn NativeContext) {
        let _ = (now, context);
    }

    /// A [`NativeContext::connect`] has ended: with a socket, or why there is none.
    fn connected(&mut self, attempt: Id, socket: io::Result<Id>) {
        let _ = (attempt, socket);
    }

    /// Bytes have arrived on a socket of the handler, by `now`. It may decrypt them in place.
    fn received(&mut self, socket: Id, bytes: &mut [u8], now: Instant) {
        let _ = (socket, bytes, now);
    }

    /// A send has ended, so the socket takes another.
    fn sent(&mut self, socket: Id) {
        let _ = socket;
    }

    /// The peer has closed a socket of the handler, or it has failed. It is closed now.
    fn disconnected(&mut self, socket: Id, error: io::Error) {
        let _ = (socket, error);
    }

    /// When [`NativeHandler::turn_ended`] is due, even without events.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// One call of a native procedure.
pub struct NativeCall<'a> {
    /// The call: its params and its id.
    pub request: &'a Call<'a>,
    /// Its caller.
    pub caller: &'a Caller,
    /// When it must be answered, which has not passed. The worker replies to a deferred call then.
    pub deadline: Option<Deadline>,
    /// When this turn began.
    pub now: Instant,
    module: usize,
    calls: &'a mut NativeCalls,
    /// What measures the call.
    measured: Option<(&'a Arc<CallMetrics>, SeriesIndex)>,
    /// The call that was deferred last.
    deferred: &'a mut Option<Token>,
}

impl NativeCall<'_> {
    /// Defers the call, which keeps `held_bytes` of memory. Its outcome goes to the handler's
    /// [`NativeOutcomes`] with this token; the outcome of a notification is dropped.
    ///
    /// # Errors
    /// The reply to a call past the limit on running calls.
    pub fn defer(self, held_bytes: usize) -> Result<Token, RpcError> {
        let call_id = self.caller.call_id(self.request);
        // The call with the hooks has a permit.
        let permit = match is_inner(call_id) {
            true => RunPermit::uncounted(),
            false => self.calls.admit(self.caller.own_connection())?,
        };
        let reserved = self.calls.budget().reserve_large(held_bytes);
        let caller = self.request.id.map(|_| call_id);
        let running = |(metrics, series): (&Arc<CallMetrics>, SeriesIndex)| {
            RunningCall::new(metrics.clone(), series, self.now)
        };
        let call = DeferredCall {
            module: self.module,
            running: self.measured.map(running),
            logged: None,
            _permit: permit,
            _reserved: reserved,
        };
        let token = self.calls.insert(caller, self.deadline, self.now, call);
        *self.deferred = Some(token);
        Ok(token)
    }
}
