//! What Python keeps of each deferred call.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::ResultFormat;
use ucall_server::{CallId, DeferredCalls, LoggedCall, Reservation, RunPermit, RunningCall, Token};

use crate::background::{BackgroundRecord, CallState};
use crate::job_input::JobInput;
use crate::metrics::WaitingCall;
use crate::outcomes::DeferredOutcome;
use crate::procedure::Procedure;
use crate::streams::{ItemTarget, Stream, StreamPosition};

/// The deferred calls and the running batches of one worker.
pub(crate) type Calls = DeferredCalls<Entry, DeferredOutcome>;

/// A call or a batch that runs.
pub(crate) struct Entry {
    pub(crate) procedure: Arc<Procedure>,
    pub(crate) kind: EntryKind,
}

pub(crate) enum EntryKind {
    Call(Deferred),
    /// A batch of these calls.
    Batch(Vec<Token>),
    /// The task or thread of a generator.
    Stream(Arc<Stream>),
    /// A function that runs after the reply to its call.
    Background(BackgroundRecord),
}

/// A call that will be answered later.
pub(crate) struct Deferred {
    /// A task or a future, which can be cancelled.
    pub(crate) future: Option<Py<PyAny>>,
    /// Shared with its context, if it has one.
    pub(crate) state: Option<Arc<CallState>>,
    pub(crate) retained: RetainedParams,
    pub(crate) items: CallItems,
    /// How its result is written.
    pub(crate) results: ResultFormat,
    /// Counts the call, if that is measured.
    pub(crate) running: Option<RunningCall>,
    /// Its line in the access log.
    pub(crate) logged: Option<LoggedCall>,
    pub(crate) _permit: RunPermit,
}

/// The way of a call's items to its caller, if its function is a generator.
pub(crate) struct CallItems {
    pub(crate) caller: Option<CallId>,
    pub(crate) target: ItemTarget,
    /// Set when the generator exists.
    pub(crate) stream: Option<StreamPosition>,
}

/// What a call keeps of its request until it ends or is cancelled.
pub(crate) enum RetainedParams {
    /// The call runs, and its params stay reserved.
    Params { _reserved: Reservation },
    /// The arguments for a batch, until it starts.
    Arguments { arguments: Option<BatchArguments>, _reserved: Reservation },
    /// The input for a thread.
    Input(Arc<JobInput>),
}

/// The arguments of a call that waits for its batch.
pub(crate) struct BatchArguments {
    pub(crate) arguments: Vec<Py<PyAny>>,
    /// Counts the wait, if that is measured.
    pub(crate) _waiting: Option<WaitingCall>,
}

impl Entry {
    pub(crate) fn call(&mut self) -> Option<&mut Deferred> {
        match &mut self.kind {
            EntryKind::Call(call) => Some(call),
            EntryKind::Batch(_) | EntryKind::Stream(_) | EntryKind::Background(_) => None,
        }
    }
}

impl Deferred {
    /// The arguments for a batch, once.
    pub(crate) fn take_arguments(&mut self) -> Option<Vec<Py<PyAny>>> {
        match &mut self.retained {
            RetainedParams::Arguments { arguments, .. } => arguments.take().map(|it| it.arguments),
            _ => None,
        }
    }

    /// Cancels the call: reports that to its code, and releases its params.
    pub(crate) fn cancel(&mut self) {
        if let Some(state) = &self.state {
            state.cancel();
        }
        if let RetainedParams::Input(input) = &self.retained {
            drop(input.take());
        }
        self.retained = RetainedParams::Params { _reserved: Reservation::default() };
    }
}
