//! What Python keeps of each deferred call.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::ResultFormat;
use ucall_server::{CallId, DeferredCalls, LoggedCall, Reservation, RunPermit, RunningCall};

use crate::asgi::{Exchange, MountedTask};
use crate::awaited_call::AwaitedCall;
use crate::background::{BackgroundJob, BackgroundRecord, CallState};
use crate::batch_inputs::TaskGroups;
use crate::ffi::DropAttached;
use crate::job_input::JobInput;
use crate::origin::CallOrigin;
use crate::outcomes::DeferredOutcome;
use crate::procedure::SharedProcedure;
use crate::request_body::ArrivingBody;
use crate::streams::{ItemTarget, Stream, StreamedCall};

/// The deferred calls and the running batches of one worker.
pub(crate) type Calls = DeferredCalls<Entry, DeferredOutcome>;

/// A call or a batch that runs. The worker may drop it without the interpreter's lock, once a call
/// has neither a future nor a stream.
pub(crate) struct Entry {
    pub(crate) procedure: SharedProcedure,
    pub(crate) kind: EntryKind,
}

pub(crate) enum EntryKind {
    Call(Deferred),
    /// A batch that runs in a thread, which reports the outcomes of its calls.
    Batch,
    /// A batch whose function is async.
    BatchTask(TaskGroups),
    /// The task or thread of a generator.
    Stream(Arc<Stream>),
    /// A function that runs after the reply to its call.
    Background(BackgroundRecord),
    /// The task of a mounted application.
    Mounted(MountedTask),
}

/// A call that will be answered later.
pub(crate) struct Deferred {
    /// A task or a future, which can be cancelled.
    pub(crate) future: Option<Py<PyAny>>,
    /// Shared with its context, if it has one.
    pub(crate) state: Option<Arc<CallState>>,
    pub(crate) retained: RetainedParams,
    pub(crate) items: CallItems,
    /// Set if a mounted application answers it.
    pub(crate) exchange: Option<Arc<DropAttached<Exchange>>>,
    /// Set if a function of a route receives its body while it arrives.
    pub(crate) body: Option<Arc<DropAttached<ArrivingBody>>>,
    /// How its result is written.
    pub(crate) results: ResultFormat,
    /// Counts the call, if that is measured.
    pub(crate) running: Option<RunningCall>,
    /// Its line in the access log.
    pub(crate) logged: Option<LoggedCall>,
    /// Set if an async hook awaits it.
    pub(crate) awaited: Option<Arc<AwaitedCall>>,
    /// Who has made the call, for the log.
    pub(crate) origin: Option<Arc<CallOrigin>>,
    pub(crate) _permit: RunPermit,
}

/// The way of a call's items to its caller, if its function is a generator.
pub(crate) struct CallItems {
    pub(crate) caller: Option<CallId>,
    pub(crate) target: ItemTarget,
    /// Set when the generator exists.
    pub(crate) stream: Option<StreamedCall>,
}

/// What a call keeps of its request until it ends or is cancelled.
pub(crate) enum RetainedParams {
    /// The call runs, and its params stay reserved.
    Params { _reserved: Reservation },
    /// The input for a thread or a batch.
    Input(Arc<JobInput>),
}

impl Entry {
    pub(crate) fn call(&mut self) -> Option<&mut Deferred> {
        match &mut self.kind {
            EntryKind::Call(call) => Some(call),
            EntryKind::Batch
            | EntryKind::BatchTask(_)
            | EntryKind::Stream(_)
            | EntryKind::Background(_)
            | EntryKind::Mounted(_) => None,
        }
    }
}

impl Deferred {
    /// Whether it has objects, which are dropped with the interpreter's lock.
    pub(crate) fn has_objects(&self) -> bool {
        self.future.is_some() || self.has_stream_objects()
    }

    /// Whether its generator has.
    pub(crate) fn has_stream_objects(&self) -> bool {
        self.items.stream.as_ref().is_some_and(|call| call.stream.has_objects())
    }

    /// Cancels the call: reports that to its code, and releases its params. Returns the functions
    /// that were to run after its reply.
    pub(crate) fn cancel(&mut self) -> Vec<BackgroundJob> {
        let jobs = self.state.as_ref().map(|state| state.cancel()).unwrap_or_default();
        if let Some(awaited) = &self.awaited {
            awaited.cancel();
        }
        if let RetainedParams::Input(input) = &self.retained {
            drop(input.take());
        }
        self.retained = RetainedParams::Params { _reserved: Reservation::default() };
        jobs
    }
}
