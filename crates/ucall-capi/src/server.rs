//! A server, and the threads that drive it.
//!
//! Each thread has a [`WorkerSlot`] with a worker and a listening socket of its own. The worker is
//! created when the thread first drives it, because a ring belongs to the thread that created it.
//! The driving thread holds the lock of its slot. So any other thread, and a callback that calls
//! back into the server, is rejected, and [`Server::shut_down`] waits for all threads.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use ucall_engine::{Address, Bound, EngineKind, Listener, UnixFile};
use ucall_server::{AnyWorker, Procedures, ServerMessage, WorkerConfig};

use crate::callback::Callback;
use crate::callback_handler::CallbackHandler;
use crate::config::Config;
use crate::engine;
use crate::log::Log;
use crate::stop::StopSignal;
use crate::turn_control::TurnControl;

/// A server, to which `ucall_server_t` points. The program and each driving thread share it.
pub struct Server {
    engine: EngineKind,
    address: Address,
    /// A Unix socket: all threads share one.
    shared: Option<Listener>,
    /// The file of the Unix socket, removed with the server.
    _file: Option<UnixFile>,
    settings: ServerSettings,
    worker_config: WorkerConfig,
    procedures: Arc<Procedures<Callback>>,
    /// The number of registered names.
    procedures_len: Mutex<u16>,
    slots: Box<[WorkerSlot]>,
    // Dropped after the workers, which watch the descriptor of its stop signal.
    control: TurnControl,
}

/// The parts of the configuration that are needed after the start.
struct ServerSettings {
    queue_depth: u16,
    callbacks_max: u16,
    deferred_max: usize,
    call_timeout: Option<Duration>,
}

/// The slot of one thread.
struct WorkerSlot {
    state: Mutex<SlotState>,
    /// The number of the thread that drives the worker; 0 if none does.
    driving_thread: AtomicU64,
}

enum SlotState {
    /// Without a worker yet. The first slot has its socket from the start.
    Empty(Option<Listener>),
    Running(WorkerRunner),
    Closed,
}

/// How many turns a thread takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunMode {
    OneTurn,
    /// All turns until the server is stopped.
    UntilStopped,
}

/// A worker, and the number of the thread that created it and drives it.
struct WorkerRunner {
    worker: AnyWorker<CallbackHandler>,
    owner: u64,
}

// SAFETY: a worker has no thread-local memory, and its lock admits one thread at a time. Only its
// owner drives it. Another thread may drop it; an engine that the kernel ties to its thread then
// leaks the buffers that the kernel may still write to.
unsafe impl Send for WorkerRunner {}

impl Server {
    /// A bound server. Sets the values in force in `config`.
    ///
    /// # Safety
    /// The strings in `config` are what the header says.
    pub(crate) unsafe fn new(config: &mut Config) -> Result<Self, String> {
        config.apply_defaults()?;
        // SAFETY: passed on to our caller.
        let (log, address) = unsafe { (config.log()?, config.address()?) };
        // SAFETY: as above.
        let worker_config = unsafe { config.worker_config(&address)? };
        let log = Arc::new(Log::new(log.0, log.1));
        let engine = engine::choose(config.engine, &log)?;
        let stop = StopSignal::new().map_err(|error| format!("cannot make a pipe: {error}"))?;
        let Bound { listener, address, file } = bind(&address, config.max_threads > 1)?;
        config.set_effective(engine::number(engine), &address);
        let shared = shared(&address, &listener)?;
        let mut listener = Some(listener);
        let slots = (0..config.max_threads).map(|_| WorkerSlot::new(listener.take())).collect();
        Ok(Self {
            engine,
            address,
            shared,
            _file: file,
            settings: ServerSettings {
                queue_depth: config.queue_depth,
                callbacks_max: config.max_callbacks,
                deferred_max: config.max_deferred_calls as usize,
                call_timeout: config.call_timeout(),
            },
            worker_config,
            procedures: Arc::new(Procedures::new()),
            procedures_len: Mutex::new(0),
            slots,
            control: TurnControl::new(stop, log),
        })
    }

    /// Registers a callback, and replaces the callback of its name, if any.
    pub(crate) fn add(&self, callback: Callback) -> Result<(), String> {
        let mut len = self.procedures_len.lock().unwrap_or_else(PoisonError::into_inner);
        let name = callback.name.clone();
        if !self.procedures.contains(&name) {
            if *len >= self.settings.callbacks_max {
                return Err(format!("max_callbacks: {len} procedures are registered already"));
            }
            *len += 1;
        }
        self.procedures.insert(&name, callback);
        Ok(())
    }

    /// Publishes a message to the subscribers of its topic; `false` if that is too long.
    pub(crate) fn publish(&self, topic: &str, message: &ServerMessage) -> bool {
        let is_allowed = topic.len() <= self.worker_config.topic_bytes_max;
        if is_allowed {
            self.control.publish(message);
        }
        is_allowed
    }

    /// Requests the stop, on any thread or in a signal handler.
    pub(crate) fn stop(&self) {
        self.control.stop.request();
    }

    /// Stops the server, waits for its other threads, and closes all connections.
    pub(crate) fn shut_down(&self) {
        self.stop();
        let thread = this_thread();
        for slot in &self.slots {
            // A thread whose callback frees the server stops after the callback returns.
            if slot.driving_thread.load(Ordering::Acquire) != thread {
                *slot.lock() = SlotState::Closed;
            }
        }
        self.control.log.close();
    }

    /// Acquires the slot of that number for this thread.
    pub(crate) fn acquire_slot(&self, number: u16) -> Result<SlotGuard<'_>, String> {
        let Some(slot) = self.slots.get(usize::from(number)) else {
            let max = self.slots.len();
            return Err(format!("thread {number}: expected a number below max_threads, {max}"));
        };
        let state = match slot.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A panic has ended the worker within a turn.
                *poisoned.into_inner() = SlotState::Closed;
                return Err(format!("thread {number}: its worker has failed"));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(format!("thread {number}: another call serves with it already"));
            }
        };
        let thread = this_thread();
        if let SlotState::Running(runner) = &*state
            && runner.owner != thread
        {
            return Err(format!("thread {number}: it belongs to the first thread that served"));
        }
        slot.driving_thread.store(thread, Ordering::Release);
        Ok(SlotGuard { server: self, slot, state, thread })
    }

    /// A listening socket for a thread other than the first.
    fn another_listener(&self) -> io::Result<Listener> {
        match &self.shared {
            Some(listener) => listener.try_clone(),
            None => Ok(self.address.bind(true)?.listener),
        }
    }

    fn worker(&self, listener: Option<Listener>) -> Result<AnyWorker<CallbackHandler>, String> {
        let settings = &self.settings;
        let log = self.control.log.clone();
        let handler = CallbackHandler::new(
            log,
            settings.call_timeout,
            settings.deferred_max,
            self.worker_config.limits.stream_bytes_max,
        );
        let (procedures, config) = (self.procedures.clone(), self.worker_config.clone());
        let depth = Some(settings.queue_depth);
        let worker = AnyWorker::new(self.engine, handler, procedures, config, depth);
        let mut worker = worker.map_err(|error| format!("cannot make an engine: {error}"))?;
        let listener = match listener {
            Some(listener) => listener,
            None => self.another_listener().map_err(|error| error.to_string())?,
        };
        let listening = worker.listen(listener);
        listening
            .and_then(|()| worker.watch_signals(self.control.stop.descriptor()))
            .map_err(|error| format!("cannot listen: {error}"))?;
        Ok(worker)
    }
}

impl WorkerSlot {
    fn new(listener: Option<Listener>) -> Self {
        let state = Mutex::new(SlotState::Empty(listener));
        Self { state, driving_thread: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that its thread drives, until dropped.
pub(crate) struct SlotGuard<'a> {
    server: &'a Server,
    slot: &'a WorkerSlot,
    state: MutexGuard<'a, SlotState>,
    thread: u64,
}

impl SlotGuard<'_> {
    /// Takes one turn or all turns; `false` if the server was stopped, which closes the slot.
    pub(crate) fn run(&mut self, mode: RunMode) -> Result<bool, String> {
        let server = self.server;
        let Some(worker) = self.worker()? else { return Ok(false) };
        let outcome = run(worker, mode, &server.control)
            .map_err(|error| format!("the engine failed: {error}"));
        if outcome == Ok(false) {
            worker.shut_down().map_err(|error| error.to_string())?;
        }
        if outcome != Ok(true) {
            *self.state = SlotState::Closed;
        }
        outcome
    }

    /// The worker of this thread, created if there is none; `None` if the slot is closed.
    fn worker(&mut self) -> Result<Option<&mut AnyWorker<CallbackHandler>>, String> {
        if self.server.control.stop.is_requested() {
            *self.state = SlotState::Closed;
        }
        if let SlotState::Empty(_) = &*self.state {
            self.start_worker()?;
        }
        match &mut *self.state {
            SlotState::Running(runner) => Ok(Some(&mut runner.worker)),
            SlotState::Empty(_) | SlotState::Closed => Ok(None),
        }
    }

    /// Creates the worker. Not inlined, because it needs much of the stack.
    #[cold]
    #[inline(never)]
    fn start_worker(&mut self) -> Result<(), String> {
        let SlotState::Empty(listener) = &mut *self.state else { return Ok(()) };
        let worker = self.server.worker(listener.take())?;
        self.server.control.add_counters(worker.counters());
        self.server.control.add_publisher(worker.publisher());
        *self.state = SlotState::Running(WorkerRunner { worker, owner: self.thread });
        Ok(())
    }
}

/// Takes turns; `false` when the server was stopped.
fn run(
    worker: &mut AnyWorker<CallbackHandler>,
    mode: RunMode,
    control: &TurnControl,
) -> io::Result<bool> {
    let has_figures = control.log.has_figures();
    loop {
        let turn = worker.turn(has_figures.then(|| control.log.next_line_at()))?;
        if has_figures {
            control.write_line_if_due();
        }
        if turn.stopped || control.stop.is_requested() {
            return Ok(false);
        }
        if mode == RunMode::OneTurn {
            return Ok(true);
        }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slot.driving_thread.store(0, Ordering::Release);
    }
}

/// A socket that listens on `address`. Threads share a port, so another server could share it, too:
/// a first bind without sharing makes sure that the port is free.
fn bind(address: &Address, share_port: bool) -> Result<Bound, String> {
    let bound = address.bind(false).and_then(|bound| match (&bound.address, share_port) {
        (taken @ Address::Tcp(_), true) => {
            let taken = taken.clone();
            drop(bound);
            taken.bind(true)
        }
        _ => Ok(bound),
    });
    bound.map_err(|error| error.to_string())
}

fn shared(address: &Address, listener: &Listener) -> Result<Option<Listener>, String> {
    let is_unix = matches!(address, Address::Unix { .. });
    let shared = is_unix.then(|| listener.try_clone()).transpose();
    shared.map_err(|error| format!("cannot listen: {error}"))
}

/// The number of this thread, which no other thread of the process has or had.
fn this_thread() -> u64 {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
    }
    // A thread that is ending has lost its number.
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}
