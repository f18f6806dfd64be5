//! The program's health checks, and the log of a drain.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_proto::{Call, CallOutcome, Reply};
use ucall_server::{Caller, DrainReport, RunPermit};

use crate::arguments::Failure;
use crate::calls::RetainedParams;
use crate::deferral::{CallStart, Deferral};
use crate::functions::Functions;
use crate::procedure::SharedProcedure;

/// Answers `/readyz`. The function returns the response as bytes, or a
/// `concurrent.futures.Future` of them.
pub(crate) fn check_ready(
    py: Python<'_>,
    deferral: &mut Deferral,
    functions: &mut Functions,
    procedure: &SharedProcedure,
    call: &Call<'_>,
    caller: &Caller,
    reply: &mut Reply<'_>,
) -> CallOutcome {
    let checked = procedure.callable.bind(py).call0();
    let answered = checked.map_err(Failure::Raised).and_then(|response| {
        if let Ok(response) = response.cast::<PyBytes>() {
            reply.response().extend_from_slice(response.as_bytes());
            return Ok(CallOutcome::Done);
        }
        let permit = RunPermit::uncounted();
        let (deadline, request, body, origin) = (None, None, None, None);
        let start = CallStart { procedure, call, caller, deadline, permit, request, body, origin };
        let retained = RetainedParams::Params { _reserved: Default::default() };
        let token = deferral.insert_call(functions, start, None, retained);
        deferral.watch_future(&response, token, false)?;
        Ok(CallOutcome::Deferred)
    });
    answered.unwrap_or_else(|failure| {
        reply.error(&functions.fail_call(procedure, call, caller, failure, reply));
        CallOutcome::Done
    })
}

/// The line of the log for a step of a drain, while `calls` run.
pub(crate) fn drain_line(report: DrainReport, calls: usize) -> String {
    match report {
        DrainReport::Delayed(delay) => {
            format!("not ready any more: draining in {} s", delay.as_secs_f64())
        }
        DrainReport::Began { connections } => {
            format!("draining: {connections} connections, {calls} running calls")
        }
        DrainReport::Ended { abandoned: 0 } => "drained".to_owned(),
        DrainReport::Ended { abandoned } => {
            format!("drained: {abandoned} calls were cancelled after drain_timeout_s")
        }
    }
}

/// The response of `/readyz` as bytes; `problem` is why the program is not ready, or None.
#[pyfunction]
pub(crate) fn readiness<'py>(py: Python<'py>, problem: Option<&str>) -> Bound<'py, PyBytes> {
    PyBytes::new(py, &ucall_server::readiness(problem))
}
