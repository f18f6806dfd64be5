//! A server: it binds its address when it runs, on the thread that calls `run`.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ucall_engine::xdp::QueueShare;
use ucall_engine::{Listener, Sharing};
use ucall_proto::http1::{AccessRules, CallPaths, TrustedProxies};
use ucall_server::{
    CallMetrics, CookieKey, Counters, Drain, Message, Procedures, ProtectedResource, RouteAccess,
    WorkerConfig, XdpConfig,
};

use crate::asyncio::loop_driver::LoopDriver;
use crate::asyncio::runner::{Bounds, RunEnd};
use crate::asyncio::suspended_workers;
use crate::auth::OwnAuthentications;
use crate::batch_sizes::BatchSizes;
use crate::callbacks::Callbacks;
use crate::engine;
use crate::ffi;
use crate::hook_options::HookOptions;
use crate::listen_address::ListenAddress;
use crate::listening_socket::ListeningSocket;
use crate::options::CallLimits;
use crate::procedure::{
    BatchOptions, CallMode, Procedure, SharedProcedure, Signature, StreamRules,
};
use crate::server_state::{self, RunGuard, ServerState};
use crate::shared_counters::SharedCounters;
use crate::signals::SignalHandlers;
use crate::tls::TlsSettings;
use crate::udp::Udp;
use crate::worker_peers::WorkerPeers;
use crate::{mcp, options, pool, session};

/// Serves functions on one address, for `ucall.server.Server`.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Server {
    pub(crate) number: u64,
    pub(crate) config: WorkerConfig,
    pub(crate) call_limits: CallLimits,
    pub(crate) debug: bool,
    /// The program's function that identifies callers.
    pub(crate) auth: Option<Py<PyAny>>,
    /// Those of functions that have one of their own.
    pub(crate) own_auth: OwnAuthentications,
    /// The limit of a call's duration, unless its function has one.
    pub(crate) timeout: Option<Duration>,
    pub(crate) procedures: Arc<Procedures<SharedProcedure>>,
    /// Counts batches by size.
    pub(crate) batch_sizes: Arc<BatchSizes>,
    pub(crate) state: Arc<Mutex<ServerState>>,
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (
        engine, host, port, *, uds_mode, paths, debug, allowed_hosts, allow_origins,
        trusted_proxies, auth, challenge, resource, timeout_ms, limits, tls, metrics, access_log,
        udp, xdp, dedupe, source_rate_max, peer_connections_max, cookie_secret, shared_memory,
        trusted
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        engine: &str,
        host: &str,
        port: u16,
        uds_mode: u32,
        paths: Vec<String>,
        debug: bool,
        allowed_hosts: Vec<String>,
        allow_origins: Vec<String>,
        trusted_proxies: Vec<String>,
        auth: Option<Py<PyAny>>,
        challenge: Option<String>,
        resource: Option<(Option<String>, Vec<String>, Vec<String>)>,
        timeout_ms: Option<f64>,
        limits: &Bound<'_, PyDict>,
        tls: Option<TlsSettings>,
        metrics: bool,
        access_log: Option<(String, f64)>,
        udp: Option<(Option<u16>, bool)>,
        xdp: Option<(String, bool)>,
        dedupe: bool,
        source_rate_max: Option<u32>,
        peer_connections_max: Option<u32>,
        cookie_secret: Option<[u8; CookieKey::SECRET_BYTES]>,
        shared_memory: bool,
        trusted: bool,
    ) -> PyResult<Self> {
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
        let engine = engine::choose(py, engine)?;
        let address = ListenAddress::new(host, port, uds_mode)?;
        let access = AccessRules::new(address.is_loopback(), &allowed_hosts, &allow_origins)
            .map_err(|invalid| PyValueError::new_err(invalid.to_string()))?;
        let mut config = WorkerConfig::new(access);
        config.challenge = challenge;
        let paths = CallPaths::new(&paths);
        config.resource = resource.map(|(address, servers, scopes)| {
            Arc::new(ProtectedResource::new(address.as_deref(), servers, scopes, &paths))
        });
        let mut call_limits = CallLimits::default();
        options::apply(&mut config, &mut call_limits, limits)?;
        let procedures = Arc::new(Procedures::at(paths.clone()));
        config.limits.call_paths = paths;
        let proxies = TrustedProxies::new(&trusted_proxies)
            .map_err(|invalid| PyValueError::new_err(invalid.to_string()))?;
        config.trusted_proxies = proxies.map(Arc::new);
        if auth.is_some() || config.trusted_proxies.is_some() || config.call_rates.is_some() {
            procedures.want_peers();
        }
        if !shared_memory {
            config.shared_bytes_max = 0;
        }
        config.trusts_shared_memory = trusted;
        let mut state = ServerState::new(engine, address, tls);
        config.datagrams.dedupe = dedupe;
        config.datagrams.source_rate_max = source_rate_max;
        config.peer_connections_max = peer_connections_max.map(|max| max as usize);
        config.datagrams.xdp = xdp.map(|(interface, polls)| XdpConfig::new(interface, polls));
        config.datagrams.cookie_key = cookie_secret.as_ref().map(CookieKey::new);
        state.udp = udp.map(|(port, allows_auth)| Udp::new(port, allows_auth));
        if let (Some(udp), Some(address)) = (&state.udp, state.address.known()) {
            udp.check(address, auth.is_some(), state.has_tls())?;
        }
        state.metrics = metrics.then(Arc::default);
        state.access_log = access_log.map(options::access_log).transpose()?;
        let state = Arc::new(Mutex::new(state));
        if let Some(resource) = &config.resource {
            procedures.insert_protected_resource(resource);
        }
        if metrics {
            procedures.insert_metrics(server_state::metrics_reader(&state));
        }
        Ok(Self {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            config,
            call_limits,
            debug,
            auth,
            own_auth: OwnAuthentications::default(),
            timeout: options::timeout(timeout_ms)?,
            procedures,
            batch_sizes: Arc::default(),
            state,
        })
    }

    /// Changes settings before the first run: the engine, the address, TLS, or a listening socket
    /// to take over, with whether another program has bound it.
    #[pyo3(signature = (
        *, engine = None, host = None, port = None, uds_mode = None, socket = None, tls = None,
        access_log = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn configure(
        &self,
        py: Python<'_>,
        engine: Option<&str>,
        host: Option<&str>,
        port: Option<u16>,
        uds_mode: Option<u32>,
        socket: Option<(RawFd, bool)>,
        tls: Option<TlsSettings>,
        access_log: Option<(String, f64)>,
    ) -> PyResult<()> {
        let tls = tls.map(TlsSettings::load).transpose()?;
        let access_log = access_log.map(options::access_log).transpose()?;
        let engine = engine.map(|name| engine::choose(py, name)).transpose()?;
        let mut state = self.state();
        let address = state.address.with(host, port, uds_mode)?;
        if state.is_running || state.worker.is_some() {
            return Err(PyRuntimeError::new_err("the server runs already"));
        }
        state.engine = engine.unwrap_or(state.engine);
        if tls.is_some() {
            (state.tls, state.tls_settings) = (tls, None);
        }
        state.access_log = access_log.or_else(|| state.access_log.take());
        if let Some((descriptor, is_inherited)) = socket {
            // SAFETY: the caller gives the descriptor away.
            let listener = Listener::from(unsafe { OwnedFd::from_raw_fd(descriptor) });
            let listener = if is_inherited { listener.inherited() } else { listener };
            let bound = ucall_engine::Bound::inherit(listener)?;
            state.address.set_bound(bound.address);
            state.listener = Some(bound.listener.shared(Sharing::Processes));
            if let Some(udp) = &mut state.udp {
                udp.is_shared = true;
            }
        } else {
            state.unbind();
            state.address = address;
        }
        Ok(())
    }

    /// Reads the files of TLS, unless it has. The worker looks for changes from then on.
    fn load_tls(&self, py: Python<'_>) -> PyResult<()> {
        let Some(settings) = self.state().tls_settings.clone() else { return Ok(()) };
        let loaded = py.detach(|| settings.load())?;
        let mut state = self.state();
        (state.tls, state.tls_settings) = (Some(loaded), None);
        Ok(())
    }

    /// Reads the files of TLS, binds and listens. Returns false if it does already.
    pub(crate) fn bind(&self, py: Python<'_>) -> PyResult<bool> {
        let Some(asked) = self.state().address_to_bind() else { return Ok(false) };
        self.load_tls(py)?;
        // Binding may block, and the state's lock is released before the interpreter's is taken
        // again.
        py.detach(|| {
            // Nothing is locked while a name server is asked.
            let address = if asked.is_inherited() { None } else { Some(asked.resolve()?) };
            let mut state = self.state();
            let is_due = state.is_unbound();
            match address {
                Some(address) if is_due => state.bind(&address)?,
                None if is_due => state.take(asked.bind()?)?,
                _ => {}
            }
            Ok(is_due)
        })
    }

    /// Gives up a socket that was not served yet, for other processes.
    fn unbind(&self) -> Option<ListeningSocket> {
        self.state().unbind().map(ListeningSocket::from)
    }

    /// The port that is listened on; None until the system has picked one.
    #[getter]
    fn port(&self) -> Option<u16> {
        self.state().address.port()
    }

    /// The port of UDP; None without UDP, or until the system has picked one.
    #[getter]
    fn udp_port(&self) -> Option<u16> {
        let state = self.state();
        state.udp.as_ref()?.port(state.address.port())
    }

    /// The address without the port, or `unix:` and a path; before the first run as asked for.
    #[getter]
    fn host(&self) -> String {
        self.state().address.host()
    }

    /// The permissions of a Unix socket's file.
    #[getter]
    fn uds_mode(&self) -> u32 {
        self.state().address.uds_mode()
    }

    /// `"posix"` or `"uring"`.
    #[getter]
    fn engine(&self) -> &'static str {
        self.state().engine.name()
    }

    /// `"https"` or `"http"`.
    #[getter]
    fn scheme(&self) -> &'static str {
        if self.state().has_tls() { "https" } else { "http" }
    }

    /// Whether a thread is in `run`.
    #[getter]
    fn is_running(&self) -> bool {
        self.state().is_running
    }

    /// Serves `function` under `name`, in place of an earlier function of that name. `signature` is
    /// what `ucall._functions.signatures.describe` returns; `encode` replaces objects that JSON
    /// does not have. `mode` names a call mode; `batch` has the rules of its batches. `stream` is,
    /// for a generator, whether calls are refused that do not take items one by one, and what
    /// happens to items for a slow reader. `max_waiting` calls may wait for a thread or a batch. An
    /// idempotent function may run again for a datagram. `auth`, with its challenge, is in place of
    /// the server's; none is asked if it `is_public`. Callers without all `scopes` are refused.
    /// `hooks` run around its calls.
    #[pyo3(signature = (
        name, function, signature, encode, *, mode, timeout_ms, max_waiting, batch, stream,
        is_idempotent, is_public, auth, scopes, hooks
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn insert(
        &self,
        py: Python<'_>,
        name: String,
        function: Py<PyAny>,
        signature: Option<&Bound<'_, PyList>>,
        encode: Py<PyAny>,
        mode: &str,
        timeout_ms: Option<f64>,
        max_waiting: Option<usize>,
        mut batch: Option<BatchOptions>,
        stream: Option<(bool, String)>,
        is_idempotent: bool,
        is_public: bool,
        auth: Option<(Py<PyAny>, String)>,
        scopes: Vec<String>,
        hooks: Option<HookOptions>,
    ) -> PyResult<()> {
        let mode = CallMode::from_description(mode, batch.as_ref(), max_waiting)?;
        let series = self.state().metrics.as_ref().map(|metrics| metrics.register(&name));
        self.config.resource.iter().for_each(|resource| resource.add_scopes(&scopes));
        let signature = signature.map(Signature::from_description).transpose()?;
        let procedure = Procedure {
            is_idempotent,
            waiting_limit: mode.waiting_limit(max_waiting),
            weigh: batch.as_mut().and_then(|batch| batch.weight.take()),
            series,
            stream: StreamRules::from_description(stream)?,
            is_plain: matches!(mode, CallMode::Inline)
                && scopes.is_empty()
                && auth.is_none()
                && !self.has_auth_function(py),
            access: self.own_auth.access(py, is_public, auth),
            scopes: scopes.into(),
            timeout: options::timeout(timeout_ms)?.or(self.timeout),
            ..Procedure::new(name.clone(), function, signature, encode, mode)
        };
        let procedure = match hooks {
            Some(hooks) => hooks.around(py, procedure)?,
            None => procedure,
        };
        if procedure.takes_context() || procedure.access.own().is_some() {
            self.procedures.want_peers();
        }
        self.procedures.insert(&name, procedure.shared());
        if let Some(worker) = &self.state().worker {
            // Its next turn drops the function that was replaced.
            worker.mailbox.send(Message::RunCalls);
        }
        Ok(())
    }

    /// Has the server answer a method of the Model Context Protocol: at `/mcp` over HTTP, and
    /// beside the functions over raw TCP. The function gets the params, a dict, and the version of
    /// the request, a str; what it returns is the result.
    #[pyo3(signature = (name, function, signature, encode, *, mode))]
    fn insert_mcp_method(
        &self,
        name: String,
        function: Py<PyAny>,
        signature: &Bound<'_, PyList>,
        encode: Py<PyAny>,
        mode: &str,
    ) -> PyResult<()> {
        let procedure = mcp::method(&name, function, signature, encode, mode, self.timeout)?;
        if procedure.takes_context() {
            self.procedures.want_peers();
        }
        self.procedures.insert_mcp_method(&name, procedure.shared());
        Ok(())
    }

    /// Has the server answer `/healthz` and `/readyz`, without authentication, and also while it
    /// drains or is overloaded. While it is ready itself, `check` returns what `readiness` does, or
    /// a future of that. It must not block.
    fn insert_health_checks(&self, py: Python<'_>, check: Py<PyAny>) {
        let (name, mode) = ("/readyz".to_owned(), CallMode::Future);
        let procedure = Procedure {
            route: Some(RouteAccess::Public.into()),
            ..Procedure::new(name, check, None, py.None(), mode)
        };
        self.procedures.insert_health_checks(Some(procedure.shared()));
    }

    /// Sets the callbacks of the next run: `on_drain` is called once, when a drain or its delay
    /// begins, and `beat` every `interval_s` seconds while the server takes turns.
    fn set_callbacks(
        &self,
        on_drain: Option<Py<PyAny>>,
        beat: Option<Py<PyAny>>,
        interval_s: Option<f64>,
    ) -> PyResult<()> {
        let interval = interval_s.map(Duration::try_from_secs_f64).transpose();
        let interval = interval.map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.state().callbacks.replace(Callbacks::new(on_drain, interval.zip(beat)));
        Ok(())
    }

    /// Serves on this thread until stopped, or for a number of turns or seconds; negative numbers
    /// are no bounds. Calls `run_server` with a `LoopDriver`, which it drives.
    fn run(
        &self,
        py: Python<'_>,
        max_cycles: i64,
        max_seconds: f64,
        run_server: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let bounds = Bounds::new(max_cycles, max_seconds)?;
        let Some(run_guard) = RunGuard::begin(&self.state)? else { return Ok(()) };
        let (mut runner, listener) = match suspended_workers::resume(self.number) {
            Some(runner) => (runner, None),
            None => self.runner(py, false)?,
        };
        run_guard.set_worker(&runner);
        let signal_handlers = runner.install_signal_handlers(py)?;
        let driver = Bound::new(py, LoopDriver::new(runner, bounds, listener))?;
        let outcome = ffi::call(run_server, [driver.as_any()]);
        let restored = signal_handlers.map_or(Ok(()), SignalHandlers::restore);
        let runner = driver.borrow().take();
        outcome?;
        if let Some((runner, Some(RunEnd::Bounded))) = runner {
            run_guard.suspend();
            suspended_workers::suspend(self.number, runner);
        }
        restored
    }

    /// Serves within an event loop that runs on this thread. Returns a `LoopDriver` to be driven,
    /// which `close_embedded` takes back; `None` if `stop()` came before.
    fn start_embedded(&self, py: Python<'_>) -> PyResult<Option<LoopDriver>> {
        let bounds = Bounds::new(-1, -1.0)?;
        let Some(run_guard) = RunGuard::begin(&self.state)? else { return Ok(None) };
        let (runner, listener) = self.runner(py, true)?;
        run_guard.set_worker(&runner);
        run_guard.keep_running();
        Ok(Some(LoopDriver::new(runner, bounds, listener)))
    }

    /// Takes a `LoopDriver` back, and closes what is open.
    fn close_embedded(&self, driver: &Bound<'_, LoopDriver>) {
        drop(driver.borrow().take());
        drop(RunGuard::of(&self.state));
    }

    /// Whether this thread runs functions of this server.
    #[getter]
    fn is_running_here(&self) -> bool {
        pool::server_of_this_thread() == Some(self.number)
    }

    /// Drains the run, from any thread: it accepts no connections, lets running calls finish, and
    /// rejects new ones. With `serving` it still answers open connections, because another process
    /// accepts new ones.
    fn drain(&self, serving: bool) {
        let message = match serving {
            true => Message::drain_with_idle_time(Drain::Serving),
            false => Message::drain(Drain::Refusing),
        };
        if let Some(worker) = &self.state().worker {
            worker.mailbox.send(message);
        }
    }

    /// Has the drain of this worker process end the listening socket of all: the kernel refuses
    /// connections from then on.
    fn stop_with_all(&self) {
        if let Some(worker) = &self.state().worker {
            worker.mailbox.send(Message::AllStop);
        }
    }

    /// Ends the run, from any thread: at once, or after a drain. Before the first run the stop is
    /// remembered, and that run returns at once. Between two bounded runs the next one ends.
    fn stop(&self, at_once: bool) {
        let mut state = self.state();
        match &state.worker {
            Some(worker) if at_once => worker.mailbox.send(Message::Stop),
            Some(worker) => worker.mailbox.send(Message::drain(Drain::Refusing)),
            None => state.stop_requested |= state.is_running || !state.has_run,
        }
    }

    /// Whether `stop()` came before the first run, which therefore returns at once.
    #[getter]
    fn is_stop_requested(&self) -> bool {
        self.state().stop_requested
    }

    /// Forgets a stop that came before the first run.
    fn forget_stop(&self) {
        self.state().stop_requested = false;
    }

    /// Whether this thread keeps the worker of a bounded run for the next one.
    #[getter]
    fn is_suspended_here(&self) -> bool {
        !self.state().is_running && suspended_workers::keeps(self.number)
    }

    /// Waits for the lines of the access log to be written, at most a second, unless the worker is
    /// kept for another run.
    fn flush_access_log(&self, py: Python<'_>) {
        let state = self.state();
        let access_log = state.access_log.clone().filter(|_| state.worker.is_none());
        drop(state);
        if let Some(access_log) = access_log {
            py.detach(|| access_log.flush(Duration::from_secs(1)));
        }
    }

    /// The counts of all runs so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.stats_dict(py)
    }

    /// Uses counters that processes share: from the next run on this one counts on the page
    /// `index`; without an index it only reads them.
    #[pyo3(signature = (counters, index = None))]
    fn share_counters(&self, counters: Py<SharedCounters>, index: Option<usize>) {
        let page = index.and_then(|index| counters.get().page(index));
        let page = page.map(|page| Arc::new(Counters::shared(page)));
        let metrics = index.and_then(|index| counters.get().metrics_page(index));
        if let (Some(page), Some(metrics)) = (metrics, &mut self.state().metrics) {
            *metrics = Arc::new(CallMetrics::shared(page, metrics));
        }
        self.state().broker_page = index.and_then(|index| counters.get().broker_page(index));
        self.state().shared = Some((counters, page));
    }

    /// Takes over the sockets of the next run. Each sender leads to the worker with the next page
    /// of the shared counters, from 1; this one has the page `index`.
    fn share_sockets(&self, receiver: Option<RawFd>, senders: Vec<RawFd>, index: Option<usize>) {
        self.state().peers = Some(WorkerPeers::new(receiver, senders, index));
    }

    /// Takes over the map of a program of XDP, which a supervisor has attached, for the next run.
    /// This one of `workers` processes has the queues whose number modulo `workers` is `worker`.
    fn share_xdp(
        &self,
        descriptor: RawFd,
        is_native: bool,
        worker: u32,
        workers: u32,
    ) -> PyResult<()> {
        // SAFETY: the caller gives the descriptor away.
        let sockets = unsafe { OwnedFd::from_raw_fd(descriptor) };
        self.take_xdp(sockets, is_native, QueueShare { worker, workers })
    }

    /// Sends a notification to the subscribers of `topic`, of this process and of other workers.
    fn publish(
        &self,
        topic: &str,
        method: &str,
        params: Option<&Bound<'_, PyAny>>,
        encode: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        session::check_topic(topic, self.config.topic_bytes_max)?;
        let max = self.call_limits.reply_bytes_max;
        self.state().publish(session::message(topic, method, params, encode, max)?);
        Ok(())
    }
}

impl Server {
    /// Locks the state, briefly, and never while Python code runs.
    pub(crate) fn state(&self) -> MutexGuard<'_, ServerState> {
        server_state::lock(&self.state)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(suspended_workers::resume(self.number));
    }
}
