//! Answers the callers of deferred calls.

use std::time::Instant;

use ucall_proto::{ResultFormat, ResultPart, RpcError};
use ucall_server::{CallId, Polled};

use super::Deferral;
use crate::arguments::Failure;
use crate::asyncio::tasks;
use crate::calls::{Deferred, Entry, EntryKind};
use crate::errors;
use crate::functions::Functions;
use crate::origin::FailedCalls;
use crate::outcomes::DeferredOutcome;
use crate::procedure::{CallMode, Procedure, SharedProcedure};

impl Deferral {
    /// The next reply to a call that waits for one. The outcomes of other calls are dropped, and
    /// their exceptions logged.
    ///
    /// Attaches the thread for outcomes and calls that have objects.
    pub(crate) fn next_outcome(
        &mut self,
        functions: &mut Functions,
        text: &mut Vec<u8>,
    ) -> Option<(CallId, Polled)> {
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            if self.streams.take_reports(&mut self.calls, token) {
                // The reply comes after them.
                if !matches!(outcome, DeferredOutcome::Items) {
                    self.calls.push_front(std::iter::once((token, outcome)));
                }
                match self.streams.next_item(text) {
                    Some(report) => return Some(report),
                    None => continue,
                }
            }
            if let DeferredOutcome::TakesBody = outcome {
                match self.calls.caller_of(token) {
                    Some(caller) => return Some((caller, Polled::TakesBody)),
                    None => continue,
                }
            }
            if let DeferredOutcome::Items = outcome {
                let call = self.call(token);
                if let Some(awaited) = call.as_ref().and_then(|call| call.awaited.clone()) {
                    self.pass_items(functions, &awaited);
                    continue;
                }
                if call.is_some_and(|call| call.has_stream_objects()) {
                    functions.attach();
                }
                let turn_began = functions.timing.turn_began();
                self.streams.take_items(&mut self.calls, token, turn_began);
                match self.streams.next_item(text) {
                    Some(item) => return Some(item),
                    None => continue,
                }
            }
            let outcome = match outcome {
                DeferredOutcome::Begin(start) => {
                    self.begin_awaited(functions, *start);
                    continue;
                }
                DeferredOutcome::Cancel(awaited) => {
                    self.cancel_awaited(functions, &awaited);
                    continue;
                }
                DeferredOutcome::Take(awaited) => {
                    self.pass_items(functions, &awaited);
                    continue;
                }
                outcome => outcome,
            };
            let now = Instant::now();
            let finished = self.calls.finish(token, now);
            let Some((caller, Entry { procedure, kind })) = finished else {
                log_abandoned(functions, outcome);
                continue;
            };
            let replied = match kind {
                EntryKind::Call(call) => {
                    if call.has_objects() {
                        functions.attach();
                    }
                    let replied = self.reply(functions, &procedure, outcome, &call, text);
                    let has_failed = replied.is_err();
                    if let Some(awaited) = &call.awaited {
                        let reply = replied.map(|_| text.as_slice());
                        self.finish_awaited(functions.attach(), awaited, reply);
                        text.clear();
                        if has_failed {
                            self.end_failed(procedure);
                        }
                        continue;
                    }
                    if let Some(state) = &call.state {
                        self.end_state(functions, &procedure, state, replied.is_ok());
                    }
                    let error = replied.as_ref().err().map(|error| error.code);
                    if let Some(exchange) = &call.exchange {
                        Self::record_mounted(exchange, error, call.running, call.logged, now);
                    } else {
                        if let Some(running) = call.running {
                            running.record(error, now);
                        }
                        if let Some(logged) = call.logged {
                            logged.end(error, if caller.is_some() { text.len() } else { 0 });
                        }
                    }
                    if has_failed {
                        self.end_failed(procedure);
                    }
                    replied
                }
                EntryKind::Batch => {
                    // Who has run its batches has recorded their ends.
                    drop(procedure);
                    self.batches.forget_unused();
                    self.begin_batches(functions, now);
                    continue;
                }
                EntryKind::BatchTask(groups) => {
                    self.finish_batch_task(functions, &procedure, groups, outcome);
                    continue;
                }
                EntryKind::Stream(stream) => {
                    let py = functions.attach();
                    self.finish_stream_entry(py, functions, &stream, outcome);
                    continue;
                }
                EntryKind::Mounted(record) => {
                    let py = functions.attach();
                    self.end_mounted(py, functions, &procedure, &record, outcome);
                    continue;
                }
                EntryKind::Background(record) => {
                    let py = functions.attach();
                    Self::end_job(py, functions, &record, outcome);
                    continue;
                }
            };
            match caller {
                Some(id) => {
                    return Some((
                        id,
                        match replied {
                            Ok(parts) if !parts.is_empty() => Polled::Parts(parts),
                            replied => replied.map(drop).into(),
                        },
                    ));
                }
                None => text.clear(),
            }
        }
    }

    /// Drops the function of a failed call. If the function was replaced and this was its last
    /// call, no batch ends later that would drop its queue.
    #[cold]
    pub(super) fn end_failed(&mut self, procedure: SharedProcedure) {
        if let CallMode::Batch(_) = procedure.mode {
            drop(procedure);
            self.batches.forget_unused();
        }
    }

    fn reply(
        &self,
        functions: &mut Functions,
        procedure: &Procedure,
        outcome: DeferredOutcome,
        call: &Deferred,
        text: &mut Vec<u8>,
    ) -> Result<Vec<ResultPart>, RpcError> {
        let future = match outcome {
            DeferredOutcome::Text(written) => {
                written?.move_to(text);
                return Ok(Vec::new());
            }
            DeferredOutcome::Parts(result) => {
                result.text.move_to(text);
                return Ok(result.parts);
            }
            DeferredOutcome::Future(future) => future,
            // `next_outcome` takes these before.
            DeferredOutcome::Items
            | DeferredOutcome::TakesBody
            | DeferredOutcome::Begin(_)
            | DeferredOutcome::Cancel(_)
            | DeferredOutcome::Take(_) => return Ok(Vec::new()),
        };
        let (py, len_max) = (functions.attach(), self.reply_bytes_max);
        let result = tasks::result_of(future.bind(py)).map_err(Failure::Raised);
        let written = result.and_then(|it| match call.results {
            ResultFormat::Json => procedure
                .write_item(text, len_max, &it)
                .map(|()| Vec::new())
                .map_err(Failure::Result),
            _ => {
                let written =
                    procedure.written(&it, len_max, call.results).map_err(Failure::Result)?;
                written.text.move_to(text);
                Ok(written.parts)
            }
        });
        let calls = FailedCalls::one(call.origin.as_deref());
        written.map_err(|failure| functions.report.fail(py, procedure, calls, failure, len_max))
    }
}

/// Logs the exception of a task whose call has ended before it.
fn log_abandoned(functions: &mut Functions, outcome: DeferredOutcome) {
    let DeferredOutcome::Future(future) = outcome else { return };
    let py = functions.attach();
    if let Err(error) = tasks::result_of(future.bind(py))
        && !errors::is_cancelled(py, &error)
    {
        functions.report.log(|report| report.abandoned(py, &error));
    }
}
