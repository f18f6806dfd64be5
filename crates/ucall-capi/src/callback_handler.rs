//! Runs callbacks: the handler of one worker.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::{Call as Request, CallOutcome, Reply};
use ucall_server::{Caller, Handler, MemoryBudget};

use crate::call::Call;
use crate::deferred_calls::{Deadline, DeferredCalls};
use crate::params::ParamBuffers;

/// `ucall_callback_t`. An exception of C++ may come out of it, which ends the process at the edge:
/// without "unwind" nothing would say what it does.
pub type Function = unsafe extern "C-unwind" fn(*mut Call<'static, 'static>, *mut c_void);

/// A registered function of the program.
pub(crate) struct Callback {
    pub(crate) name: Box<str>,
    pub(crate) function: Function,
    pub(crate) tag: *mut c_void,
}

// SAFETY: whoever registers a callback promises that it may run with its tag on every thread that
// serves; the header says so.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

/// What one worker needs to run callbacks.
pub(crate) struct CallbackHandler {
    pub(crate) deferred_calls: DeferredCalls,
    /// Lent to each call in turn.
    pub(crate) buffers: ParamBuffers,
}

impl CallbackHandler {
    pub(crate) fn new(deferred_calls: DeferredCalls) -> Self {
        Self { deferred_calls, buffers: ParamBuffers::default() }
    }
}

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
        let requested = request.head.and_then(|head| head.timeout_ms()).map(Duration::from_millis);
        let deadline = self.deferred_calls.deadline_of(requested);
        if let Some(passed) = deadline.filter(Deadline::has_passed) {
            reply.error(&passed.error());
            return CallOutcome::Done;
        }
        let outcome = {
            let call = Call::new(callback, request, caller, reply, self, deadline);
            // What it has is all borrowed: there is nothing to drop.
            let mut call = ManuallyDrop::new(call);
            // SAFETY: the program promised that the function may be called with its tag. The call
            // lives until it returns, and the header forbids to use it longer.
            unsafe { (callback.function)((&raw mut *call).cast(), callback.tag) };
            call.outcome()
        };
        self.buffers.reset();
        outcome
    }

    fn cancel(&mut self, connection: Id) {
        self.deferred_calls.cancel(connection);
    }

    #[inline]
    fn turn_ended(&mut self, now: Instant) {
        if self.deferred_calls.has_deadlines() {
            self.deferred_calls.expire(now);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.deferred_calls.next_deadline()
    }

    fn running(&self) -> usize {
        self.deferred_calls.running()
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.deferred_calls.budget.clone()
    }

    fn warn(&mut self, line: &str) {
        self.deferred_calls.log.warn(line);
    }
}
