//! Sessions as the interpreter of a worker uses them: from a call to the end of its connection.

use pyo3::prelude::*;
use ucall_engine::Id;

use crate::ffi::variables::run_in;
use crate::handler::Interpreter;
use crate::session::Channel;

impl Interpreter {
    /// The connection of a call; without `encode` of a request before its call.
    pub(crate) fn channel(
        &self,
        py: Python<'_>,
        connection: Id,
        is_http: bool,
        encode: Option<&Py<PyAny>>,
    ) -> Option<Channel> {
        let sessions = self.sessions.clone()?;
        Some(Channel::new(py, sessions, connection, is_http, encode))
    }

    /// Calls what the session of a closed connection has registered.
    #[cold]
    pub(crate) fn end_session(&mut self, py: Python<'_>, connection: Id) {
        let Some(sessions) = &self.sessions else { return };
        for callback in sessions.remove(connection) {
            let called = self
                .own_variables(py)
                .and_then(|variables| run_in(&variables, || callback.call0(py)));
            if let Err(error) = called {
                let logged = self.report.on_close_failed(py, &error);
                self.note_interrupt(logged);
            }
        }
    }
}
