//! The server object: bound when it is made, run on whatever thread calls for it.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ucall_proto::http1::AccessRules;
use ucall_server::{Config, Counters, Mailbox, Message, Procedures, Stats};

use crate::engine::EngineKind;
use crate::handler::Interpreter;
use crate::procedure::{Procedure, Signature};
use crate::run::{Bounds, Ended, Station};
use crate::{options, parking};

/// Serves functions on one address. `ucall.server.Server` is its face.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Server {
    number: u64,
    engine: EngineKind,
    /// With the port that was picked.
    address: SocketAddr,
    config: Config,
    debug: bool,
    procedures: Arc<Procedures<Procedure>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Bound and not yet served.
    listener: Option<TcpListener>,
    is_running: bool,
    /// `stop()` came before there was anything to stop.
    stop_asked: bool,
    /// The worker, if there is one, running or between two bounded runs.
    worker: Option<(Mailbox, Arc<Counters>)>,
    /// Of the workers before it.
    past: Stats,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (engine, host, port, *, debug, allowed_hosts, allow_origins, limits))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        engine: &str,
        host: &str,
        port: u16,
        debug: bool,
        allowed_hosts: Vec<String>,
        allow_origins: Vec<String>,
        limits: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let engine = EngineKind::choose(py, engine)?;
        let address = py.detach(|| resolve(host, port))?;
        let access = AccessRules::new(address.ip().is_loopback(), &allowed_hosts, &allow_origins)
            .map_err(|invalid| PyValueError::new_err(invalid.to_string()))?;
        let mut config = Config::new(access);
        options::apply(&mut config, limits)?;
        let listener = bind(address)?;
        Ok(Self {
            number: MADE.fetch_add(1, Ordering::Relaxed),
            engine,
            address: listener.local_addr()?,
            config,
            debug,
            procedures: Arc::new(Procedures::new()),
            state: Mutex::new(State { listener: Some(listener), ..State::default() }),
        })
    }

    /// The port that is listened on.
    #[getter]
    fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address that is listened on, without the port.
    #[getter]
    fn host(&self) -> String {
        self.address.ip().to_string()
    }

    /// `"posix"` or `"uring"`.
    #[getter]
    fn engine(&self) -> &'static str {
        self.engine.name()
    }

    /// Whether a thread is in `run`.
    #[getter]
    fn is_running(&self) -> bool {
        self.state().is_running
    }

    /// Serves `function` under `name`, in place of what had that name. `signature` is what
    /// `ucall._signature.describe` returns.
    fn insert(
        &self,
        name: String,
        function: Py<PyAny>,
        signature: Option<&Bound<'_, PyList>>,
    ) -> PyResult<()> {
        let signature = signature.map(Signature::of_description).transpose()?;
        let procedure = Procedure { name: name.clone(), callable: function, signature };
        self.procedures.insert(&name, procedure);
        Ok(())
    }

    /// Serves on this thread until stopped, or for so many turns or seconds; negative numbers are
    /// no bounds. Calls `on_start` when connections are being accepted.
    fn run(
        &self,
        py: Python<'_>,
        max_cycles: i64,
        max_seconds: f64,
        on_start: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let bounds = Bounds::new(max_cycles, max_seconds)?;
        let Some(running) = Running::begin(self)? else { return Ok(()) };
        let mut station = match parking::take(self.number) {
            Some(station) => station,
            None => self.station(py)?,
        };
        running.has(&station);
        if let Some(on_start) = on_start {
            on_start.call0()?;
        }
        if station.run(py, bounds)? == Ended::Bounded {
            running.pause();
            parking::park(self.number, station);
        }
        Ok(())
    }

    /// Ends the run, from any thread. Before the first run it is remembered, and that run returns
    /// at once. Between two bounded runs it closes what is open.
    fn stop(&self) {
        let mut state = self.state();
        match &state.worker {
            Some((mailbox, _)) => mailbox.send(Message::Stop),
            None => state.stop_asked |= state.is_running || state.listener.is_some(),
        }
        if !state.is_running && state.worker.is_some() {
            drop(state);
            if let Some(station) = parking::take(self.number) {
                drop(station);
                self.state().forget_worker();
            }
        }
    }

    /// What was done so far, in all runs.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let state = self.state();
        let stats = state.stats();
        drop(state);
        let shown = PyDict::new(py);
        shown.set_item("calls", stats.calls)?;
        shown.set_item("connections", stats.connections)?;
        shown.set_item("accepted", stats.accepted)?;
        shown.set_item("bytes_received", stats.bytes_received)?;
        shown.set_item("bytes_sent", stats.bytes_sent)?;
        shown.set_item("turns", stats.turns)?;
        shown.set_item("system_calls", stats.system_calls)?;
        Ok(shown)
    }

    /// Every limit and its default, by name.
    #[staticmethod]
    fn default_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        options::defaults(py)
    }
}

impl Server {
    /// A worker for this thread, listening.
    fn station(&self, py: Python<'_>) -> PyResult<Station> {
        let listener = match self.state().listener.take() {
            Some(listener) => listener,
            None => bind(self.address)?,
        };
        let interpreter = Interpreter::new(py, self.debug)?;
        let (procedures, config) = (self.procedures.clone(), self.config.clone());
        let drive = self.engine.worker(interpreter, procedures, config)?;
        Ok(Station::new(drive, listener)?)
    }

    /// The state. The lock is held for moments only, and never while Python code runs.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(parking::take(self.number));
    }
}

impl State {
    fn stats(&self) -> Stats {
        let Some((_, counters)) = &self.worker else { return self.past };
        let mut stats = counters.stats();
        stats.calls += self.past.calls;
        stats.accepted += self.past.accepted;
        stats.bytes_received += self.past.bytes_received;
        stats.bytes_sent += self.past.bytes_sent;
        stats.turns += self.past.turns;
        stats.system_calls += self.past.system_calls;
        stats
    }

    /// The worker is gone, and its connections with it.
    fn forget_worker(&mut self) {
        self.past = self.stats();
        self.past.connections = 0;
        self.worker = None;
    }
}

/// Claims the server for one run, until dropped.
struct Running<'a> {
    server: &'a Server,
    paused: std::cell::Cell<bool>,
}

impl<'a> Running<'a> {
    /// `None` when `stop()` came before.
    fn begin(server: &'a Server) -> PyResult<Option<Self>> {
        let mut state = server.state();
        if state.is_running {
            return Err(PyRuntimeError::new_err("the server runs already"));
        }
        if std::mem::take(&mut state.stop_asked) {
            return Ok(None);
        }
        state.is_running = true;
        drop(state);
        Ok(Some(Self { server, paused: std::cell::Cell::new(false) }))
    }

    /// Tells other threads where to reach the worker.
    fn has(&self, station: &Station) {
        let mut state = self.server.state();
        let mailbox = station.drive.mailbox();
        if std::mem::take(&mut state.stop_asked) {
            mailbox.send(Message::Stop);
        }
        state.worker = Some((mailbox, station.drive.counters()));
    }

    /// The worker stays when this run ends.
    fn pause(&self) {
        self.paused.set(true);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.server.state();
        state.is_running = false;
        if !self.paused.get() {
            state.forget_worker();
        }
    }
}

/// The address to bind. Names may have several: IPv4 comes first, which `localhost` mostly means.
fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut addresses: Vec<_> = (host, port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    addresses.first().copied().ok_or_else(none)
}

/// Binds and listens. The error has the system's number, as Python programs look for it.
fn bind(address: SocketAddr) -> PyResult<TcpListener> {
    ucall_engine::bind(address, false).map_err(|error| {
        let number = match error.kind() {
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            _ => return error.into(),
        };
        PyOSError::new_err((number, error.to_string()))
    })
}
