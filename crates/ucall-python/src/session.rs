//! `ucall.Connection`: the session of a client, and the messages that the server starts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use hashbrown::HashMap;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use ucall_engine::Id;
use ucall_proto::RpcError;
use ucall_server::{Overflow, Publisher, ServerMessage, SubscribeError};

use crate::convert::{self, ConversionFault};
use crate::ffi::DropAttached;
use crate::procedure::SharedProcedure;

/// The sessions of one worker's connections.
pub(crate) struct Sessions {
    publisher: Arc<Publisher>,
    message_bytes_max: usize,
    /// The sessions that were used, of connections that are open.
    connections: Mutex<HashMap<Id, Py<Connection>>>,
}

impl Sessions {
    pub(crate) fn new(publisher: Arc<Publisher>, message_bytes_max: usize) -> Self {
        Self { publisher, message_bytes_max, connections: Mutex::default() }
    }

    /// The session of a connection, if it was used.
    fn find(&self, py: Python<'_>, connection: Id) -> Option<Py<Connection>> {
        self.lock().get(&connection).map(|found| found.clone_ref(py))
    }

    /// Has the worker report the end of the connection, soon if it is closed.
    fn insert(&self, connection: Id, session: Py<Connection>) {
        let replaced = self.lock().insert(connection, session);
        drop(replaced);
        self.publisher.attach(connection);
    }

    /// Removes the session of a connection that has closed; returns what it has registered.
    pub(crate) fn remove(&self, connection: Id) -> Vec<Py<PyAny>> {
        let session = self.lock().remove(&connection);
        session.map(|session| std::mem::take(&mut *session.get().callbacks())).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Id, Py<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection of one call.
pub(crate) struct Channel {
    sessions: Arc<DropAttached<Sessions>>,
    connection: Id,
    /// Whether the connection takes messages that answer no call.
    takes_messages: bool,
    /// The function of the call, by which objects are replaced that JSON does not have.
    procedure: Option<SharedProcedure>,
    session: Mutex<Option<DropAttached<Py<Connection>>>>,
}

impl Channel {
    /// The connection of a call; without `procedure` of a request before its call.
    pub(crate) fn new(
        sessions: Arc<DropAttached<Sessions>>,
        connection: Id,
        is_http: bool,
        procedure: Option<SharedProcedure>,
    ) -> Self {
        let takes_messages = procedure.is_some() && !is_http;
        Self { sessions, connection, takes_messages, procedure, session: Mutex::default() }
    }

    /// The connection.
    pub(crate) fn connection(&self) -> Id {
        self.connection
    }

    /// Keeps the session that the connection has by now, also once it is closed.
    pub(crate) fn find_session(&self, py: Python<'_>) {
        if let Some(session) = self.sessions.find(py, self.connection) {
            self.keep(session);
        }
    }

    fn keep(&self, session: Py<Connection>) {
        let mut kept = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(DropAttached::new(session));
    }

    /// The session, which is made now if the connection has none.
    pub(crate) fn session(&self, py: Python<'_>) -> PyResult<Py<Connection>> {
        let known = self.known_session(py).or_else(|| self.sessions.find(py, self.connection));
        if let Some(known) = known {
            return Ok(known);
        }
        let session = Py::new(py, Connection::new(py, self))?;
        self.sessions.insert(self.connection, session.clone_ref(py));
        self.keep(session.clone_ref(py));
        Ok(session)
    }

    fn known_session(&self, py: Python<'_>) -> Option<Py<Connection>> {
        let known = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().map(|known| known.clone_ref(py))
    }

    pub(crate) fn notify(
        &self,
        py: Python<'_>,
        method: &str,
        params: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.check(py)?;
        let none = py.None();
        let procedure = self.procedure.as_ref();
        let encode = procedure.map_or(&none, |procedure| &procedure.encode).bind(py);
        let message = message("", method, params, encode, self.sessions.message_bytes_max)?;
        self.sessions.publisher.notify(self.connection, message);
        Ok(())
    }

    pub(crate) fn subscribe(&self, py: Python<'_>, topic: &str, overflow: &str) -> PyResult<()> {
        self.check(py)?;
        let overflow = match overflow {
            "drop_oldest" => Overflow::DropOldest,
            "drop_newest" => Overflow::DropNewest,
            "close" => Overflow::Close,
            _ => {
                let expected = "overflow: expected 'drop_oldest', 'drop_newest' or 'close'";
                return Err(PyValueError::new_err(format!("{expected}, got {overflow:?}")));
            }
        };
        let subscribed = self.sessions.publisher.subscribe(self.connection, topic, overflow);
        subscribed.map_err(|error| refused(py, error).unwrap_or_else(|failure| failure))
    }

    pub(crate) fn unsubscribe(&self, py: Python<'_>, topic: &str) -> PyResult<()> {
        self.check(py)?;
        self.sessions.publisher.unsubscribe(self.connection, topic);
        Ok(())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        match self.takes_messages {
            true => Ok(()),
            false => Err(no_channel(py).unwrap_or_else(|failure| failure)),
        }
    }
}

/// `ucall.NoChannelError`.
pub(crate) fn no_channel(py: Python<'_>) -> PyResult<PyErr> {
    let class = py.import("ucall.errors")?.getattr("NoChannelError")?;
    let reason = "messages of the server need a WebSocket or raw TCP: call over one of them";
    Ok(PyErr::from_value(class.call1((reason,))?))
}

/// The client has asked for too much, so it gets the error.
fn refused(py: Python<'_>, error: SubscribeError) -> PyResult<PyErr> {
    let class = py.import("ucall.errors")?.getattr("RPCError")?;
    let raised = match error {
        SubscribeError::TooManySubscriptions(max) => {
            let data = PyDict::new(py);
            data.set_item("max_subscriptions", max)?;
            class.call1((RpcError::OVERLOADED, "Overloaded", data))?
        }
        SubscribeError::OutOfMemory => {
            let data = PyDict::new(py);
            data.set_item("max_held_bytes", error.to_string())?;
            class.call1((RpcError::OVERLOADED, "Overloaded", data))?
        }
        _ => class.call1((RpcError::INVALID_PARAMS, "Invalid params", error.to_string()))?,
    };
    Ok(PyErr::from_value(raised))
}

/// Refuses a long topic of the program.
pub(crate) fn check_topic(topic: &str, bytes_max: usize) -> PyResult<()> {
    if topic.len() <= bytes_max {
        return Ok(());
    }
    let expected = format!("topic: expected at most {bytes_max} bytes (max_topic_bytes)");
    Err(PyValueError::new_err(expected))
}

/// A message of the server. `params` is a list, a tuple or a dict.
pub(crate) fn message(
    topic: &str,
    method: &str,
    params: Option<&Bound<'_, PyAny>>,
    encode: &Bound<'_, PyAny>,
    len_max: usize,
) -> PyResult<ServerMessage> {
    let Some(params) = params else { return Ok(ServerMessage::new(topic, method, None)) };
    let is_structured = params.is_instance_of::<PyList>()
        || params.is_instance_of::<PyTuple>()
        || params.is_instance_of::<PyDict>();
    if !is_structured {
        let class = params.get_type().name()?;
        let expected = "params: expected a list, a tuple or a dict (JSON-RPC 2.0, 4.2)";
        return Err(PyTypeError::new_err(format!("{expected}, got {class}")));
    }
    let mut text = Vec::new();
    convert::write_with(&mut text, len_max, params, encode).map_err(|fault| match fault {
        ConversionFault::Value(mismatch) => PyValueError::new_err(mismatch.describe("params")),
        ConversionFault::TooLarge => {
            PyValueError::new_err("params: larger than a reply may be (max_reply_bytes)")
        }
        ConversionFault::Raised(error) => *error,
    })?;
    Ok(ServerMessage::new(topic, method, Some(&text)))
}

/// The connection of a client: ``ctx.connection``.
#[pyclass(frozen, module = "ucall")]
pub(crate) struct Connection {
    id: Id,
    sessions: Weak<DropAttached<Sessions>>,
    data: Py<PyDict>,
    on_close: Mutex<Vec<Py<PyAny>>>,
}

impl Connection {
    fn new(py: Python<'_>, channel: &Channel) -> Self {
        Self {
            id: channel.connection,
            sessions: Arc::downgrade(&channel.sessions),
            data: PyDict::new(py).unbind(),
            on_close: Mutex::default(),
        }
    }

    fn callbacks(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.on_close.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Connection {
    /// A number that no other connection of this process has or had while the server runs.
    #[getter]
    fn id(&self) -> u64 {
        u64::from(self.id.generation) << 32 | u64::from(self.id.index)
    }

    /// The session's own data, for the functions of the program.
    #[getter]
    fn data(&self, py: Python<'_>) -> Py<PyDict> {
        self.data.clone_ref(py)
    }

    /// Registers a function to be called, without arguments, after the connection has closed; soon
    /// if it is closed already. Runs on the server's thread, so it must not block. Returns the
    /// function. What it raises is logged.
    #[pyo3(signature = (callback, /))]
    fn on_close(slf: &Bound<'_, Self>, callback: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if !callback.bind(py).is_callable() {
            return Err(PyTypeError::new_err("on_close: expected a function"));
        }
        let connection = slf.get();
        connection.callbacks().push(callback.clone_ref(py));
        if let Some(sessions) = connection.sessions.upgrade() {
            sessions.insert(connection.id, slf.clone().unbind());
        }
        Ok(callback)
    }

    fn __repr__(&self) -> String {
        format!("<ucall.Connection {}>", self.id())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.data)?;
        match self.on_close.try_lock() {
            Ok(callbacks) => callbacks.iter().try_for_each(|callback| visit.call(callback)),
            Err(_) => Ok(()),
        }
    }
}
