//! Runs batches in a process, on its main thread.

use std::io::{self, ErrorKind};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_proto::{Binary, ResultFormat, RpcError};
use ucall_server::Reservation;
use ucall_server::process_batches::{
    CallResult, Encoded, FunctionTimes, MessageKind, ProcessInbox, ReceivedCall, encode_times,
    read_batch,
};

use super::origin;
use crate::batch_inputs::{BatchWriter, Returned, Written, run_inputs};
use crate::convert::Scratch;
use crate::errors;
use crate::ffi::DropAttached;
use crate::interpreter_shutdown::{register_process, run_tracked};
use crate::job_input::{CallContext, Contents, InputParams};
use crate::procedure::{CallMode, Procedure, Signature};
use crate::report::Report;

/// A function as the process describes it: its name, itself, its signature, its encoder, and the
/// seconds of its batches by their weights.
type Description<'py> = (String, Py<PyAny>, Bound<'py, PyList>, Py<PyAny>, Vec<(u64, f64)>);

/// Runs the batches that the server sends over the first socket and counts over the second, until
/// it closes them. `failure` says why the process cannot run any; then it returns at once.
#[pyfunction]
#[pyo3(signature = (sockets, functions, failure, *, debug, max_reply_bytes, find_error))]
pub(crate) fn run_batches(
    py: Python<'_>,
    sockets: (RawFd, RawFd),
    functions: Vec<Description<'_>>,
    failure: Option<&str>,
    debug: bool,
    max_reply_bytes: usize,
    find_error: Option<Py<PyAny>>,
) -> PyResult<()> {
    register_process();
    // SAFETY: the caller gives the descriptors away.
    let owned = |descriptor| unsafe { UnixStream::from_raw_fd(descriptor) };
    let (socket, semaphore) = (owned(sockets.0), owned(sockets.1));
    let seconds = functions.iter().map(|(.., times)| times);
    let times: FunctionTimes = seconds.map(|times| durations(times)).collect();
    let procedure = |(name, function, signature, encode, _): Description<'_>| {
        let signature = Some(Signature::from_description(&signature)?);
        Ok(Procedure::new(name, function, signature, encode, CallMode::Thread))
    };
    let mut runner = Runner {
        procedures: functions.into_iter().map(procedure).collect::<PyResult<_>>()?,
        report: Report::import(py, debug, find_error)?,
        reply_bytes_max: max_reply_bytes,
        scratch: Scratch::default(),
    };
    let inbox = py.detach(|| ProcessInbox::new(socket, semaphore));
    match inbox.and_then(|inbox| runner.serve(py, inbox, &times, failure)) {
        Err(error) if is_end(error.kind()) => Ok(()),
        Err(error) => Err(PyOSError::new_err(error.to_string())),
        Ok(()) => Ok(()),
    }
}

fn durations(seconds: &[(u64, f64)]) -> Vec<(u64, Duration)> {
    let time = |(weight, seconds): &(u64, f64)| {
        Some((*weight, Duration::try_from_secs_f64(*seconds).ok()?))
    };
    seconds.iter().filter_map(time).collect()
}

/// Whether the server has ended, or has closed the socket.
fn is_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
}

struct Runner {
    procedures: Vec<Procedure>,
    report: Report,
    reply_bytes_max: usize,
    scratch: Scratch,
}

impl Runner {
    fn serve(
        &mut self,
        py: Python<'_>,
        mut inbox: ProcessInbox,
        times: &[Vec<(u64, Duration)>],
        failure: Option<&str>,
    ) -> io::Result<()> {
        if let Some(failure) = failure {
            return inbox.send(MessageKind::Failed, 0, &Encoded::text(failure.as_bytes()));
        }
        inbox.send(MessageKind::Ready, 0, &Encoded::text(&encode_times(times)))?;
        let mut next = py.detach(|| inbox.begin())?;
        loop {
            let (number, message) = next;
            let results = self.run(py, &message)?;
            // The last views of the memory of the inputs, unless the function has kept some.
            drop(message);
            next = py.detach(|| {
                inbox.send(MessageKind::Results, number, &Encoded::results(&results))?;
                inbox.begin()
            })?;
        }
    }

    /// Runs a batch; returns the results in the order of its calls.
    fn run(
        &mut self,
        py: Python<'_>,
        message: &Bytes,
    ) -> io::Result<Vec<Result<CallResult, RpcError>>> {
        let batch = read_batch(message).map_err(|_| io::Error::from(ErrorKind::InvalidData))?;
        let procedure = self.procedures.get(batch.head.function);
        let procedure = procedure.ok_or(ErrorKind::InvalidData)?;
        let mut results: Vec<_> = batch.calls.iter().map(|_| Err(errors::internal())).collect();
        let inputs = batch.calls.into_iter().map(|call| contents(py, procedure, call).into());
        let inputs = inputs.enumerate();
        let mut writer = BatchWriter::new(&self.report, procedure, self.reply_bytes_max);
        let written = |writer: &mut BatchWriter<'_>, returned: Option<Returned<_>>| {
            writer.written_of(py, returned)
        };
        let run = || run_inputs(py, &mut writer, inputs, &mut self.scratch, written);
        for (index, written) in run_tracked(py, run) {
            if let Some(result) = results.get_mut(index) {
                *result = call_result(written);
            }
        }
        Ok(results)
    }
}

fn contents(py: Python<'_>, procedure: &Procedure, call: ReceivedCall) -> Contents {
    let ReceivedCall { params, parts, results, origin } = call;
    let received = origin::decode(&procedure.name, &origin);
    let (origin, context) = received.map(|it| (it.origin, it.context)).unzip();
    // What makes the spans gets `None` for a call that has none.
    let context = procedure.takes_context().then(|| match context.flatten() {
        Some(context) => CallContext::Call(Box::new(context)),
        None => CallContext::Object(DropAttached::new(py.None())),
    });
    let is_plain = parts.is_none() && results == ResultFormat::Json;
    Contents {
        params: params.map(InputParams::Own),
        binary: (!is_plain).then_some(Binary { parts, results }),
        context,
        identity: None,
        awaited: None,
        origin: origin.map(Arc::new),
        waiting: None,
        permit: None,
        _reserved: Reservation::default(),
    }
}

fn call_result(written: Written) -> Result<CallResult, RpcError> {
    written.map(|result| CallResult { text: result.text.into(), parts: result.parts })
}
