//! The server object: bound when it is made, run on whatever thread calls for it.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ucall_engine::{Address, Listener, UnixFile};
use ucall_proto::http1::AccessRules;
use ucall_server::{Config, Counters, Drain, Mailbox, Message, Procedures, Stats, Tls};

use crate::batch::Sizes;
use crate::engine::EngineKind;
use crate::ffi;
use crate::handler::Interpreter;
use crate::options::Rules;
use crate::procedure::{How, Procedure, Signature};
use crate::pump::Pump;
use crate::run::{Bounds, Ended, Station};
use crate::shared::SharedCounters;
use crate::signals::Taken;
use crate::tls::Described;
use crate::{options, parking, pool};

/// Serves functions on one address. `ucall.server.Server` is its face.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Server {
    number: u64,
    config: Config,
    rules: Rules,
    debug: bool,
    /// Tells who a request comes from, if the program wants to know.
    guard: Option<Py<PyAny>>,
    /// How long a call may take, unless its function says otherwise.
    timeout: Option<Duration>,
    procedures: Arc<Procedures<Arc<Procedure>>>,
    /// How large batches were.
    batch_sizes: Arc<Sizes>,
    state: Mutex<State>,
}

struct State {
    engine: EngineKind,
    /// With the port that was picked, once it is bound.
    address: Address,
    /// Bound and not yet served.
    listener: Option<Listener>,
    tls: Option<Arc<Tls>>,
    /// The file of a Unix socket that was bound here.
    file: Option<UnixFile>,
    is_running: bool,
    /// `stop()` came before there was anything to stop.
    stop_asked: bool,
    /// The worker, if there is one, running or between two bounded runs.
    worker: Option<(Mailbox, Arc<Counters>)>,
    /// Of the workers before it.
    past: Stats,
    /// Those of all processes, and the page that this one writes to.
    shared: Option<(Py<SharedCounters>, Option<Arc<Counters>>)>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        engine, host, port, *, uds_mode, bound, debug, allowed_hosts, allow_origins, guard,
        challenge, timeout_ms, limits, tls
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        engine: &str,
        host: &str,
        port: u16,
        uds_mode: u32,
        bound: bool,
        debug: bool,
        allowed_hosts: Vec<String>,
        allow_origins: Vec<String>,
        guard: Option<Py<PyAny>>,
        challenge: Option<String>,
        timeout_ms: Option<f64>,
        limits: &Bound<'_, PyDict>,
        tls: Option<Described>,
    ) -> PyResult<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let engine = EngineKind::choose(py, engine)?;
        let address = py.detach(|| Address::resolve(host, port, uds_mode))?;
        let access = AccessRules::new(address.is_loopback(), &allowed_hosts, &allow_origins)
            .map_err(|invalid| PyValueError::new_err(invalid.to_string()))?;
        let mut config = Config::new(access);
        config.challenge = challenge;
        let mut rules = Rules::default();
        options::apply(&mut config, &mut rules, limits)?;
        let procedures = Arc::new(Procedures::new());
        if guard.is_some() {
            procedures.want_peers();
        }
        let mut state = State::new(engine, address, tls.map(Described::load).transpose()?);
        if bound {
            py.detach(|| state.bind())?;
        }
        Ok(Self {
            number: MADE.fetch_add(1, Ordering::Relaxed),
            config,
            rules,
            debug,
            guard,
            timeout: options::timeout(timeout_ms)?,
            procedures,
            batch_sizes: Arc::default(),
            state: Mutex::new(state),
        })
    }

    /// Changes what it was made with, before it first runs: the engine, the address, TLS, or a
    /// socket that is bound and listens, to be taken over.
    #[pyo3(signature = (
        *, engine = None, host = None, port = None, uds_mode = None, descriptor = None, tls = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn configure(
        &self,
        py: Python<'_>,
        engine: Option<&str>,
        host: Option<&str>,
        port: Option<u16>,
        uds_mode: Option<u32>,
        descriptor: Option<RawFd>,
        tls: Option<Described>,
    ) -> PyResult<()> {
        let tls = tls.map(Described::load).transpose()?;
        let engine = engine.map(|name| EngineKind::choose(py, name)).transpose()?;
        let before = self.state().address.clone();
        let host = host.map_or_else(|| before.host(), str::to_owned);
        let port = port.unwrap_or(before.port());
        let mode = uds_mode.unwrap_or(before.mode());
        let address = py.detach(|| Address::resolve(&host, port, mode))?;
        let mut state = self.state();
        if state.is_running || state.worker.is_some() {
            return Err(PyRuntimeError::new_err("the server runs already"));
        }
        state.engine = engine.unwrap_or(state.engine);
        state.tls = tls.or_else(|| state.tls.take());
        if let Some(descriptor) = descriptor {
            // SAFETY: the caller gives the descriptor away.
            let listener = Listener::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
            if let Some(address) = listener.local_address()? {
                state.address = Address::Tcp(address);
            }
            state.listener = Some(listener);
        } else if address != before {
            state.unbind();
            state.address = address;
        }
        Ok(())
    }

    /// Binds and listens, unless it does already.
    fn bind(&self, py: Python<'_>) -> PyResult<()> {
        // It may have to wait, and lets go of the state before it asks for the interpreter again.
        py.detach(|| {
            let mut state = self.state();
            match state.listener.is_none() && state.worker.is_none() {
                true => state.bind(),
                false => Ok(()),
            }
        })
    }

    /// Closes the socket that nothing was served on yet, so that others may bind its address.
    fn unbind(&self) {
        self.state().unbind();
    }

    /// The port that is listened on.
    #[getter]
    fn port(&self) -> u16 {
        self.state().address.port()
    }

    /// The address that is listened on, without the port; or `unix:` and a path.
    #[getter]
    fn host(&self) -> String {
        self.state().address.host()
    }

    /// The permissions of a Unix socket's file; 0 for TCP.
    #[getter]
    fn uds_mode(&self) -> u32 {
        self.state().address.mode()
    }

    /// `"posix"` or `"uring"`.
    #[getter]
    fn engine(&self) -> &'static str {
        self.state().engine.name()
    }

    /// `"https"` or `"http"`.
    #[getter]
    fn scheme(&self) -> &'static str {
        if self.state().tls.is_some() { "https" } else { "http" }
    }

    /// Whether a thread is in `run`.
    #[getter]
    fn is_running(&self) -> bool {
        self.state().is_running
    }

    /// Serves `function` under `name`, in place of what had that name. `signature` is what
    /// `ucall._signature.describe` returns, `encode` replaces what JSON has no word for. `how` is
    /// the name of a way to run; `batch` the largest size, the longest wait in milliseconds, and
    /// how many run at once.
    #[pyo3(signature = (name, function, signature, encode, *, how, timeout_ms, batch))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn insert(
        &self,
        name: String,
        function: Py<PyAny>,
        signature: Option<&Bound<'_, PyList>>,
        encode: Py<PyAny>,
        how: &str,
        timeout_ms: Option<f64>,
        batch: Option<(usize, f64, usize)>,
    ) -> PyResult<()> {
        let procedure = Procedure {
            name: name.clone(),
            callable: function,
            signature: signature.map(Signature::of_description).transpose()?,
            encode,
            how: How::of_description(how, batch)?,
            timeout: options::timeout(timeout_ms)?.or(self.timeout),
            is_known_slow: AtomicBool::new(false),
        };
        if procedure.takes_context() {
            self.procedures.want_peers();
        }
        self.procedures.insert(&name, Arc::new(procedure));
        Ok(())
    }

    /// Serves on this thread until stopped, or for so many turns or seconds; negative numbers are
    /// no bounds. `conduct` is called with a `Pump`, and turns it.
    fn run(
        &self,
        py: Python<'_>,
        max_cycles: i64,
        max_seconds: f64,
        conduct: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let bounds = Bounds::new(max_cycles, max_seconds)?;
        let Some(running) = Running::begin(self)? else { return Ok(()) };
        let (mut station, listener) = match parking::take(self.number) {
            Some(station) => (station, None),
            None => self.station(py, false)?,
        };
        running.has(&station);
        let taken = station.take_signals(py)?;
        let pump = Bound::new(py, Pump::new(station, bounds, listener))?;
        let conducted = ffi::call(conduct, [pump.as_any()]);
        let given_back = taken.map_or(Ok(()), Taken::give_back);
        let station = pump.borrow().take();
        conducted?;
        if let Some((station, Some(Ended::Bounded))) = station {
            running.pause();
            parking::park(self.number, station);
        }
        given_back
    }

    /// Serves within an event loop that runs on this thread: gives a `Pump` for it to turn, which
    /// `leave` takes back. `None` when `stop()` came before.
    fn enter(&self, py: Python<'_>) -> PyResult<Option<Pump>> {
        let bounds = Bounds::new(-1, -1.0)?;
        let Some(running) = Running::begin(self)? else { return Ok(None) };
        let (station, listener) = self.station(py, true)?;
        running.has(&station);
        running.goes_on();
        Ok(Some(Pump::new(station, bounds, listener)))
    }

    /// Takes a `Pump` back, and closes what is open.
    fn leave(&self, pump: &Bound<'_, Pump>) {
        drop(pump.borrow().take());
        drop(Running::of(self));
    }

    /// Whether this thread is one of those that run functions of this server.
    #[getter]
    fn is_served_here(&self) -> bool {
        pool::server_of_this_thread() == Some(self.number)
    }

    /// Lets the run drain, from any thread: nothing is accepted, calls that run may finish, what
    /// comes is refused; or served, if somebody else accepts already.
    fn drain(&self, serving: bool) {
        let drain = if serving { Drain::Serving } else { Drain::Refusing };
        if let Some((mailbox, _)) = &self.state().worker {
            mailbox.send(Message::Drain(drain));
        }
    }

    /// Ends the run, from any thread: at once, or when it has drained. Before the first run it is
    /// remembered, and that run returns at once. Between two bounded runs it closes what is open.
    fn stop(&self, at_once: bool) {
        let mut state = self.state();
        match &state.worker {
            Some((mailbox, _)) if at_once => mailbox.send(Message::Stop),
            Some((mailbox, _)) => mailbox.send(Message::Drain(Drain::Refusing)),
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
        shown.set_item("batches", self.shown_batches(py)?)?;
        Ok(shown)
    }

    /// Counts from the next run on where other processes do, on a page of its own; or only tells
    /// what they have counted.
    #[pyo3(signature = (counters, place = None))]
    fn share_counters(&self, counters: Py<SharedCounters>, place: Option<usize>) {
        let page = place.and_then(|place| counters.get().page(place));
        let page = page.map(|page| Arc::new(Counters::shared(page)));
        self.state().shared = Some((counters, page));
    }

    /// Every limit and its default, by name.
    #[staticmethod]
    fn default_limits(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        options::defaults(py)
    }
}

impl Server {
    /// A worker for this thread, and the socket that it is to listen on.
    fn station(&self, py: Python<'_>, is_guest: bool) -> PyResult<(Station, Option<Listener>)> {
        self.bind(py)?;
        let (engine, tls, listener, page) = {
            let mut state = self.state();
            let page = state.shared.as_ref().and_then(|(_, page)| page.clone());
            (state.engine, state.tls.clone(), state.listener.take(), page)
        };
        let engine = if is_guest { engine.for_guest() } else { engine };
        let (rules, sizes) = (self.rules.clone(), self.batch_sizes.clone());
        let guard = self.guard.as_ref().map(|guard| guard.clone_ref(py));
        let interpreter = Interpreter::new(py, self.number, self.debug, guard, rules, sizes)?;
        let (procedures, mut config) = (self.procedures.clone(), self.config.clone());
        config.access.bind(self.state().address.is_loopback());
        config.tls = tls;
        let mut drive = engine.worker(interpreter, procedures, config)?;
        if let Some(page) = page {
            drive.count_on(page);
        }
        Ok((Station::new(drive)?, listener))
    }

    fn shown_batches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sizes = self.batch_sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = PyDict::new(py);
        for (name, counts) in &*sizes {
            shown.set_item(name, counts.clone())?;
        }
        Ok(shown)
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
    fn new(engine: EngineKind, address: Address, tls: Option<Arc<Tls>>) -> Self {
        Self {
            engine,
            address,
            listener: None,
            file: None,
            tls,
            is_running: false,
            stop_asked: false,
            worker: None,
            past: Stats::default(),
            shared: None,
        }
    }

    fn bind(&mut self) -> PyResult<()> {
        let bound = bind(&self.address)?;
        (self.address, self.file) = (bound.address, bound.file);
        self.listener = Some(bound.listener);
        Ok(())
    }

    /// Closes what nothing was served on yet.
    fn unbind(&mut self) {
        (self.listener, self.file) = (None, None);
    }

    fn stats(&self) -> Stats {
        if let Some((shared, _)) = &self.shared {
            return shared.get().stats();
        }
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
        self.file = None;
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

    /// The run that [`Running::goes_on`] left.
    fn of(server: &'a Server) -> Self {
        Self { server, paused: std::cell::Cell::new(false) }
    }

    /// The run goes on beyond this call.
    fn goes_on(self) {
        std::mem::forget(self);
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

/// Binds and listens. The error has the system's number, as Python programs look for it.
pub(crate) fn bind(address: &Address) -> PyResult<ucall_engine::Bound> {
    address.bind(false).map_err(|error| {
        let number = match error.kind() {
            io::ErrorKind::AddrInUse => libc::EADDRINUSE,
            io::ErrorKind::AddrNotAvailable => libc::EADDRNOTAVAIL,
            io::ErrorKind::PermissionDenied => libc::EACCES,
            io::ErrorKind::TimedOut => libc::ETIMEDOUT,
            _ => return error.into(),
        };
        PyOSError::new_err((number, error.to_string()))
    })
}
