//! Starts and ends the calls that async hooks await.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::{Binary, ResultFormat, RpcError};
use ucall_server::{Reservation, RunPermit, Token, Waiting, WaitsFor};

use super::Deferral;
use crate::awaited_call::{AwaitedCall, AwaitedStart, AwaitedWork};
use crate::calls::{CallItems, Deferred, EntryKind, RetainedParams};
use crate::errors;
use crate::ffi::DropAttached;
use crate::functions::Functions;
use crate::hooks::{CallTarget, HookedCall};
use crate::job_input::{CallContext, Contents, InputParams, JobInput};
use crate::origin::{CallOrigin, FailedCalls};
use crate::pool::{Job, Work};
use crate::procedure::{BatchRules, CallMode, SharedProcedure};
use crate::streams::{ItemTarget, rank};
use crate::timing::Timing;

impl Deferral {
    /// Starts a call. One that cannot start has its outcome at once.
    pub(super) fn begin_awaited(&mut self, functions: &mut Functions, start: AwaitedStart) {
        let AwaitedStart { call, work, awaited } = start;
        if awaited.is_cancelled() {
            return;
        }
        let py = functions.attach();
        let Ok(call) = call.bind(py).cast_exact::<HookedCall>() else { return };
        let Ok(call) = call.get().target() else { return };
        let procedure = call.function().clone();
        let begun = match (work, procedure.mode) {
            (AwaitedWork::Thread { work, is_step }, _) => {
                self.run_awaited_in_thread(functions, procedure, work, is_step, &awaited)
            }
            (AwaitedWork::Function, _) if call.is_native() => {
                self.begin_native(functions.timing.turn_began(), call, &awaited)
            }
            (AwaitedWork::Function, CallMode::Batch(rules)) => {
                self.begin_awaited_in_batch(functions, procedure, rules, call, &awaited)
            }
            (AwaitedWork::Function, CallMode::Slots { count, .. }) => {
                self.begin_awaited_in_slots(functions, procedure, count, call, &awaited)
            }
            (AwaitedWork::Function, _) => Err(errors::internal()),
        };
        if let Err(error) = begun {
            self.finish_awaited(py, &awaited, Err(error));
        }
    }

    /// Passes the outcome of a call to its hook.
    pub(super) fn finish_awaited(
        &mut self,
        py: Python<'_>,
        awaited: &AwaitedCall,
        reply: Result<&[u8], RpcError>,
    ) {
        awaited.finish(py, reply);
        self.streams.push_callbacks();
    }

    /// Has a thread run a part of a function's call.
    fn run_awaited_in_thread(
        &mut self,
        functions: &mut Functions,
        procedure: SharedProcedure,
        work: Py<PyAny>,
        is_step: bool,
        awaited: &Arc<AwaitedCall>,
    ) -> Result<(), RpcError> {
        let mut permit = None;
        if !is_step {
            self.check_waiting(&procedure)?;
            permit = procedure.waiting_limit.as_ref().map(|limit| limit.permit());
        }
        let retained = RetainedParams::Params { _reserved: Reservation::default() };
        let token = self.insert_awaited(&functions.timing, &procedure, awaited, retained, None);
        let (work, awaited) = (DropAttached::new(work), awaited.clone());
        let work = Work::Awaited { work, awaited, permit };
        let submitted = self.submit(functions, Job { token, procedure: procedure.clone(), work });
        let calls = FailedCalls::default();
        submitted
            .map_err(|failure| functions.fail(&procedure, calls, failure, self.reply_bytes_max))
    }

    fn begin_awaited_in_batch(
        &mut self,
        functions: &mut Functions,
        procedure: SharedProcedure,
        rules: BatchRules,
        call: &CallTarget,
        awaited: &Arc<AwaitedCall>,
    ) -> Result<(), RpcError> {
        self.check_waiting(&procedure)?;
        let (params, parts) = call.params_and_parts();
        let origin = Arc::new(call.context().origin());
        if procedure.in_processes.is_some() {
            functions.find_user(&origin);
        }
        let weight = functions.weight_of(&procedure, params, parts).map_err(|failure| {
            let calls = FailedCalls::one(Some(&origin));
            functions.fail(&procedure, calls, failure, self.reply_bytes_max)
        })?;
        rules.check_weight(weight).map_err(errors::invalid_params)?;
        let input = self.awaited_input(functions, &procedure, call, awaited, &origin);
        let (timing, retained) = (&functions.timing, RetainedParams::Input(input.clone()));
        let token = self.insert_awaited(timing, &procedure, awaited, retained, Some(origin));
        let since = functions.timing.turn_began();
        let (deadline, priority) = (call.context().deadline_moment(), call.context().priority());
        // `check_waiting` has checked that it may wait.
        let waiting = Waiting { call: token, since, deadline, priority, weight };
        let _ = self.batches.push(&procedure, rules, waiting, input);
        Ok(())
    }

    fn begin_awaited_in_slots(
        &mut self,
        functions: &mut Functions,
        procedure: SharedProcedure,
        count: usize,
        call: &CallTarget,
        awaited: &Arc<AwaitedCall>,
    ) -> Result<(), RpcError> {
        self.check_waiting(&procedure)?;
        let origin = Arc::new(call.context().origin());
        let input = self.awaited_input(functions, &procedure, call, awaited, &origin);
        let (timing, retained) = (&functions.timing, RetainedParams::Input(input.clone()));
        let token = self.insert_awaited(timing, &procedure, awaited, retained, Some(origin));
        let rank = rank(functions.timing.turn_began(), call.context().priority());
        self.enqueue_in_slots(&procedure, count, token, input, rank);
        Ok(())
    }

    /// Copies the input of a call that waits for a batch or a slot.
    fn awaited_input(
        &self,
        functions: &mut Functions,
        procedure: &SharedProcedure,
        call: &CallTarget,
        awaited: &Arc<AwaitedCall>,
        origin: &Arc<CallOrigin>,
    ) -> Arc<JobInput> {
        let (params, parts) = call.params_and_parts();
        let context = procedure.takes_context().then(|| call.context_object(functions.attach()));
        let binary = parts
            .map(|parts| Binary { parts: Some(parts.clone()), results: ResultFormat::default() });
        Arc::new(JobInput::new(Contents {
            params: params.map(InputParams::copied),
            binary,
            context: context.map(|context| CallContext::Object(DropAttached::new(context))),
            identity: None,
            awaited: Some(awaited.clone()),
            origin: Some(origin.clone()),
            waiting: functions.timing.waiting_call(WaitsFor::Batch, procedure.series),
            permit: None,
            _reserved: self.calls.budget().reserve_large(params.map_or(0, <[u8]>::len)),
        }))
    }

    /// Inserts a call without a caller, which the call of the hook counts for.
    fn insert_awaited(
        &mut self,
        timing: &Timing,
        procedure: &SharedProcedure,
        awaited: &Arc<AwaitedCall>,
        retained: RetainedParams,
        origin: Option<Arc<CallOrigin>>,
    ) -> Token {
        let target = match procedure.is_stream() {
            true => ItemTarget::Hook,
            false => ItemTarget::Nowhere,
        };
        let call = Deferred {
            future: None,
            state: None,
            retained,
            items: CallItems { caller: None, target, stream: None },
            results: ResultFormat::default(),
            running: None,
            logged: None,
            awaited: Some(awaited.clone()),
            origin,
            exchange: None,
            body: None,
            _permit: RunPermit::uncounted(),
        };
        let token = self.insert_entry(timing, procedure, EntryKind::Call(call));
        awaited.set_token(token);
        token
    }

    /// Passes the items of a call that wait to its hook, if that awaits some; after the last ones
    /// how the call has ended.
    pub(super) fn pass_items(&mut self, functions: &mut Functions, awaited: &AwaitedCall) {
        if !awaited.is_awaited() {
            return;
        }
        let py = functions.attach();
        let call = awaited.token().and_then(|token| self.call(token));
        match call.and_then(|call| call.items.stream.clone()) {
            Some(stream) => awaited.pass(py, self.streams.take_items_for_hook(stream, awaited)),
            None => awaited.pass(py, awaited.take_items()),
        }
        self.streams.push_callbacks();
    }

    /// Cancels a call whose hook does not await it any more.
    pub(super) fn cancel_awaited(&mut self, functions: &mut Functions, awaited: &AwaitedCall) {
        awaited.cancel();
        if let Some(call) = awaited.native() {
            self.cancel_native(call);
        }
        if let Some(token) = awaited.token() {
            self.abandon(functions, token, None);
            // Of a task that is cancelled.
            self.streams.push_callbacks();
        }
    }
}
