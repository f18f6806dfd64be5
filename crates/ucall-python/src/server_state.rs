//! The state of a server that changes: its address, its worker, and whether it runs.

use std::cell::Cell;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use ucall_engine::xdp::{QueueShare, XdpProgram};
use ucall_engine::{Address, Bound, EngineKind, Listener, UnixFile};
use ucall_server::{
    AccessLog, CallMetrics, Counters, Message, MetricsPage, MetricsReader, ServerMessage,
    ServerMetrics, Stats, Tls,
};

use crate::asyncio::runner::WorkerRunner;
use crate::bind::bind;
use crate::callbacks::Callbacks;
use crate::listen_address::ListenAddress;
use crate::shared_counters::SharedCounters;
use crate::tls::TlsSettings;
use crate::udp::Udp;
use crate::worker_peers::{RunningWorker, WorkerPeers};

/// How many ports to try that must be free for TCP and UDP.
const PORT_ATTEMPTS: usize = 16;

pub(crate) struct ServerState {
    pub(crate) engine: EngineKind,
    pub(crate) address: ListenAddress,
    /// Bound and not yet served.
    pub(crate) listener: Option<Listener>,
    /// Whether runs bind the address; otherwise `adopt` makes their connections.
    pub(crate) binds: bool,
    pub(crate) tls: Option<Arc<Tls>>,
    /// The files of TLS that the first run reads.
    pub(crate) tls_settings: Option<TlsSettings>,
    pub(crate) udp: Option<Udp>,
    /// The program that a supervisor has attached for all workers, and this one's share of queues.
    pub(crate) xdp: Option<(Arc<XdpProgram>, QueueShare)>,
    /// The file of a Unix socket that was bound here.
    pub(crate) file: Option<UnixFile>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) is_running: bool,
    /// `stop()` was called before the first run, or before its worker was made.
    pub(crate) stop_requested: bool,
    /// Whether a run has begun.
    pub(crate) has_run: bool,
    /// The worker, running or between two bounded runs.
    pub(crate) worker: Option<RunningWorker>,
    /// The counts of earlier workers.
    pub(crate) past_stats: Stats,
    /// The counters of all processes, and the page that this one writes to.
    pub(crate) shared: Option<(Py<SharedCounters>, Option<Arc<Counters>>)>,
    /// The metrics of this process' calls, if the server has metrics.
    pub(crate) metrics: Option<Arc<CallMetrics>>,
    /// The page of this process' calls through NATS, if it has one.
    pub(crate) broker_page: Option<&'static MetricsPage>,
    /// The other worker processes.
    pub(crate) peers: Option<WorkerPeers>,
    pub(crate) callbacks: Callbacks,
    /// What finds the errors of exceptions, if the program has handlers.
    pub(crate) find_error: Option<Py<PyAny>>,
}

impl ServerState {
    pub(crate) fn new(
        engine: EngineKind,
        address: ListenAddress,
        tls_settings: Option<TlsSettings>,
    ) -> Self {
        Self {
            engine,
            address,
            listener: None,
            binds: true,
            file: None,
            access_log: None,
            tls: None,
            tls_settings,
            udp: None,
            xdp: None,
            is_running: false,
            stop_requested: false,
            has_run: false,
            worker: None,
            past_stats: Stats::default(),
            shared: None,
            metrics: None,
            broker_page: None,
            peers: None,
            callbacks: Callbacks::default(),
            find_error: None,
        }
    }

    /// Whether sockets are to be bound before the next worker is made.
    pub(crate) fn is_unbound(&self) -> bool {
        self.listener.is_none() && self.worker.is_none()
    }

    /// The address to bind; `None` if runs bind none.
    pub(crate) fn address_to_bind(&self) -> Option<ListenAddress> {
        self.binds.then(|| self.address.clone())
    }

    /// Whether connections are, or will be, encrypted.
    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some() || self.tls_settings.is_some()
    }

    /// Binds and listens.
    pub(crate) fn bind(&mut self, address: &Address) -> PyResult<()> {
        let mut bound = bind(address)?;
        if let Some(udp) = &mut self.udp {
            // A port that the system has picked for TCP may be in use for UDP.
            for _ in 0..PORT_ATTEMPTS {
                if address.port() != 0 || udp.bind(&bound.address).is_ok() {
                    break;
                }
                bound = bind(address)?;
            }
        }
        self.take(bound)
    }

    /// Takes over a socket that listens.
    pub(crate) fn take(&mut self, bound: Bound) -> PyResult<()> {
        if let Some(udp) = &mut self.udp {
            udp.bind(&bound.address)?;
        }
        self.address.set_bound(bound.address);
        self.file = bound.file;
        self.listener = Some(bound.listener);
        Ok(())
    }

    /// Gives up the socket that was bound and not served yet, if there is one. That of UDP is
    /// closed.
    pub(crate) fn unbind(&mut self) -> Option<Bound> {
        let listener = self.listener.take()?;
        if let Some(udp) = &mut self.udp {
            udp.socket = None;
        }
        let (address, file) = (self.address.known()?.clone(), self.file.take());
        Some(Bound { listener, address, file })
    }

    pub(crate) fn publish(&self, message: ServerMessage) {
        if let (Some(peers), Some((counters, _))) = (&self.peers, &self.shared) {
            peers.send(counters.get(), &message);
        }
        if let Some(worker) = &self.worker {
            worker.publisher.publish(message);
        }
    }

    /// Removes the worker, whose connections are closed.
    pub(crate) fn remove_worker(&mut self) {
        self.past_stats = self.stats().without_connections();
        self.worker = None;
        self.file = None;
    }
}

/// Locks the state, briefly, and never while Python code runs.
pub(crate) fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the metrics that a server shows at `/metrics`.
pub(crate) fn metrics_reader(state: &Arc<Mutex<ServerState>>) -> MetricsReader {
    let state = state.clone();
    MetricsReader::new(move || server_metrics(&lock(&state)))
}

/// The metrics of all workers.
pub(crate) fn server_metrics(state: &ServerState) -> ServerMetrics {
    let mut metrics = ServerMetrics::default();
    metrics.has_interpreter = true;
    metrics.calls = state.metrics();
    metrics.stats = state.stats();
    metrics.is_tls = state.has_tls();
    metrics
}

/// Marks the server as running, until dropped.
pub(crate) struct RunGuard<'a> {
    state: &'a Mutex<ServerState>,
    suspended: Cell<bool>,
}

impl<'a> RunGuard<'a> {
    /// `None` if `stop()` came before.
    pub(crate) fn begin(state: &'a Mutex<ServerState>) -> PyResult<Option<Self>> {
        let mut locked = lock(state);
        if locked.is_running {
            return Err(PyRuntimeError::new_err("the server runs already"));
        }
        if mem::take(&mut locked.stop_requested) {
            return Ok(None);
        }
        (locked.is_running, locked.has_run) = (true, true);
        drop(locked);
        Ok(Some(Self { state, suspended: Cell::new(false) }))
    }

    /// The guard of the run that [`RunGuard::keep_running`] released.
    pub(crate) fn of(state: &'a Mutex<ServerState>) -> Self {
        Self { state, suspended: Cell::new(false) }
    }

    /// Lets the run go on after this call.
    pub(crate) fn keep_running(self) {
        mem::forget(self);
    }

    /// Publishes the worker's mailbox and counters to other threads.
    pub(crate) fn set_worker(&self, runner: &WorkerRunner) {
        let mut state = lock(self.state);
        let worker = RunningWorker {
            mailbox: runner.worker.mailbox(),
            counters: runner.worker.counters(),
            publisher: runner.worker.publisher(),
        };
        if mem::take(&mut state.stop_requested) {
            worker.mailbox.send(Message::Stop);
        }
        state.worker = Some(worker);
    }

    /// Keeps the worker when this run ends.
    pub(crate) fn suspend(&self) {
        self.suspended.set(true);
    }
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        let mut state = lock(self.state);
        state.is_running = false;
        if !self.suspended.get() {
            state.remove_worker();
        }
    }
}
