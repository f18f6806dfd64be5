//! The parts of an application's response, which take the way of a generator's items.

use pyo3::intern;
use pyo3::prelude::*;
use ucall_server::Token;

use super::state::{Progress, Waiter};
use super::stream::StreamedCall;
use crate::asyncio::tasks;
use crate::outcomes::DeferredOutcome;
use crate::procedure::Executor;

/// When the next part may be sent.
pub(crate) enum Room<'py> {
    /// Never: the call has ended.
    Ended,
    /// After this.
    Waits(Bound<'py, PyAny>),
}

impl StreamedCall {
    /// Sends a part, and leaves `text` empty. Returns whether the next one has to wait for
    /// [`StreamedCall::room`].
    pub(crate) fn put_part(&self, py: Python<'_>, text: &mut Vec<u8>) -> bool {
        let (first, progress) = {
            let mut state = self.stream.state();
            let push =
                |call: &mut super::call::StreamCall| call.waiting.push(text).then_some(call.token);
            let first = state.change_open(self.key, push).flatten();
            (first, state.progress(Executor::Task))
        };
        text.clear();
        if let Some(token) = first {
            self.stream.report_outcome(py, token, DeferredOutcome::Items);
        }
        progress != Progress::Continue
    }

    /// Has the worker go on with the body of the request.
    pub(crate) fn take_body(&self, py: Python<'_>) {
        self.stream.report_outcome(py, self.key.token, DeferredOutcome::TakesBody);
    }

    /// The task goes on after it has awaited [`StreamedCall::room`].
    pub(crate) fn begin_slice(&self) {
        self.stream.begin_slice();
    }

    /// When there is room for the next part.
    pub(crate) fn room<'py>(&self, py: Python<'py>, event_loop: &Py<PyAny>) -> PyResult<Room<'py>> {
        if self.stream.progress() == Progress::End {
            return Ok(Room::Ended);
        }
        let future = event_loop.bind(py).call_method0(intern!(py, "create_future"))?;
        match self.stream.set_waiter(Waiter::Future(future.clone().unbind())) {
            None => Ok(Room::Waits(future)),
            Some(_) => {
                let asyncio = py.import(intern!(py, "asyncio"))?;
                Ok(Room::Waits(asyncio.call_method1(intern!(py, "sleep"), (0,))?))
            }
        }
    }

    /// Ends the call with the last part.
    pub(crate) fn finish(&self, py: Python<'_>, text: Vec<u8>) -> PyResult<()> {
        if let Some(token) = self.close(py)? {
            self.stream.report_outcome(py, token, DeferredOutcome::Text(Ok(text.into())));
        }
        Ok(())
    }

    /// Takes no more parts. Returns the call, which is to be answered, unless it has ended.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<Option<Token>> {
        let Some(closed) = self.stream.close_call(self.key) else { return Ok(None) };
        if let Some(Waiter::Future(future)) = closed.waiter {
            tasks::set_done(future.bind(py))?;
        }
        Ok(Some(self.key.token))
    }
}
