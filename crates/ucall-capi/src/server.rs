//! A server, and the threads that drive it.
//!
//! Each thread has a [`WorkerSlot`], with a worker that is made when the thread first drives it,
//! because a ring belongs to the thread that made it, and with a listening socket of its own. The
//! lock of a place is held by whoever drives it: that is how another thread, or a callback that
//! calls back into the server, is turned away, and how [`Server::shut_down`] waits until nobody is
//! inside.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ucall_engine::{Address, Bound, Listener, UnixFile};
use ucall_server::{Counters, Procedures, Stats, Turn, WorkerConfig};

use crate::callback_handler::{Callback, CallbackHandler};
use crate::config::Config;
use crate::deferred_calls::DeferredCalls;
use crate::engine_kind::{DynWorker, EngineKind, RunMode};
use crate::log::Log;
use crate::stop::StopSignal;

/// What `ucall_server_t` points to, held by the program and by each thread inside.
pub struct Server {
    engine: EngineKind,
    address: Address,
    /// A Unix socket, which is one for all threads.
    shared: Option<Listener>,
    /// Its file, which goes with the server.
    _file: Option<UnixFile>,
    settings: ServerSettings,
    worker_config: WorkerConfig,
    procedures: Arc<Procedures<Callback>>,
    /// How many names are taken.
    procedures_len: Mutex<u16>,
    slots: Box<[WorkerSlot]>,
    log: Arc<Log>,
    // Behind the places, whose workers watch its descriptor until they are dropped.
    stop: StopSignal,
}

/// Of the configuration, what is needed later.
struct ServerSettings {
    queue_depth: u16,
    callbacks_max: u16,
    deferred_max: usize,
    call_timeout: Option<Duration>,
}

/// The place of one thread.
struct WorkerSlot {
    state: Mutex<SlotState>,
    /// The number of the thread that is inside; 0 when none is.
    driving_thread: AtomicU64,
    counters: OnceLock<Arc<Counters>>,
}

enum SlotState {
    /// Nobody has come yet. The first place has its socket from the start.
    Empty(Option<Listener>),
    Running(WorkerRunner),
    Closed,
}

/// A worker, and the number of the thread that made it and drives it.
struct WorkerRunner {
    worker: Box<dyn DynWorker>,
    owner: u64,
}

// SAFETY: a worker has no tie to its thread in memory, and the lock around it lets in one thread at
// a time. Only its owner drives it; all that another thread may do is drop it, and an engine that
// the kernel lets nobody else drive leaks what the kernel may still write to.
unsafe impl Send for WorkerRunner {}

impl Server {
    /// A bound server, and in `config` what is in force.
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
        let engine = EngineKind::choose(config.engine, &log)?;
        let stop = StopSignal::new().map_err(|error| format!("cannot make a pipe: {error}"))?;
        let Bound { listener, address, file } = bind(&address, config.max_threads > 1)?;
        config.set_effective(engine, &address);
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
            log,
            stop,
        })
    }

    /// Serves a callback under its name, in place of what had that name.
    pub(crate) fn add(&self, callback: Callback) -> Result<(), String> {
        let mut len = self.procedures_len.lock().unwrap_or_else(PoisonError::into_inner);
        let name = callback.name.clone();
        if !self.procedures.contains(&name) {
            if *len >= self.settings.callbacks_max {
                return Err(format!("max_callbacks: there are {len} procedures already"));
            }
            *len += 1;
        }
        self.procedures.insert(&name, callback);
        Ok(())
    }

    /// Asks for the end, from anywhere, also from a signal handler.
    pub(crate) fn stop(&self) {
        self.stop.request();
    }

    /// Ends it: waits until no other thread is inside, and closes all connections.
    pub(crate) fn shut_down(&self) {
        self.stop();
        let thread = this_thread();
        for slot in &self.slots {
            // A callback that frees its server ends when it returns.
            if slot.driving_thread.load(Ordering::Acquire) != thread {
                *slot.lock() = SlotState::Closed;
            }
        }
        self.log.close();
    }

    /// Lets this thread in to the place of that number.
    pub(crate) fn acquire_slot(&self, number: u16) -> Result<SlotGuard<'_>, String> {
        let Some(slot) = self.slots.get(usize::from(number)) else {
            let max = self.slots.len();
            return Err(format!("thread {number}: max_threads is {max}, counted from 0"));
        };
        let state = match slot.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A bug has ended its worker in the middle of a turn.
                *poisoned.into_inner() = SlotState::Closed;
                return Err(format!("thread {number}: it failed before"));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(format!("thread {number}: it is being served already"));
            }
        };
        let thread = this_thread();
        if let SlotState::Running(runner) = &*state
            && runner.owner != thread
        {
            return Err(format!("thread {number}: it belongs to the thread that drove it first"));
        }
        slot.driving_thread.store(thread, Ordering::Release);
        Ok(SlotGuard { server: self, slot, state, thread })
    }

    /// When the next turn has to end.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.log.next_line_at()
    }

    /// What is due between two turns; `false` when the one before is the last.
    #[inline]
    pub(crate) fn should_continue(&self, turn: &Turn) -> bool {
        self.log.write_line_if_due(|| self.stats());
        !turn.stopped && !self.stop.is_requested()
    }

    /// All that was done so far.
    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for counters in self.slots.iter().filter_map(|slot| slot.counters.get()) {
            let stats = counters.stats();
            sum.calls += stats.calls;
            sum.bytes_received += stats.bytes_received;
            sum.bytes_sent += stats.bytes_sent;
            sum.connections += stats.connections;
        }
        sum
    }

    /// The socket of a thread other than the first.
    fn another_listener(&self) -> io::Result<Listener> {
        match &self.shared {
            Some(listener) => listener.try_clone(),
            None => Ok(self.address.bind(true)?.listener),
        }
    }

    fn worker(&self, listener: Option<Listener>) -> Result<Box<dyn DynWorker>, String> {
        let settings = &self.settings;
        let deferred_calls =
            DeferredCalls::new(self.log.clone(), settings.call_timeout, settings.deferred_max);
        let (procedures, config) = (self.procedures.clone(), self.worker_config.clone());
        let worker = self.engine.worker(
            CallbackHandler::new(deferred_calls),
            procedures,
            config,
            settings.queue_depth,
        );
        let mut worker = worker.map_err(|error| format!("cannot make an engine: {error}"))?;
        let listener = match listener {
            Some(listener) => listener,
            None => self.another_listener().map_err(|error| error.to_string())?,
        };
        let listening = worker.listen(listener);
        listening
            .and_then(|()| worker.watch_signals(self.stop.descriptor()))
            .map_err(|error| format!("cannot listen: {error}"))?;
        Ok(worker)
    }
}

impl WorkerSlot {
    fn new(listener: Option<Listener>) -> Self {
        let state = Mutex::new(SlotState::Empty(listener));
        Self { state, driving_thread: AtomicU64::new(0), counters: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that drives its place, until dropped.
pub(crate) struct SlotGuard<'a> {
    server: &'a Server,
    slot: &'a WorkerSlot,
    state: MutexGuard<'a, SlotState>,
    thread: u64,
}

impl SlotGuard<'_> {
    /// One turn, or all of them; `false` when the server was stopped, and then nothing is served
    /// here any more.
    pub(crate) fn run(&mut self, mode: RunMode) -> Result<bool, String> {
        let server = self.server;
        let Some(worker) = self.worker()? else { return Ok(false) };
        let outcome =
            worker.run(mode, server).map_err(|error| format!("the engine failed: {error}"));
        if outcome == Ok(false) {
            worker.shut_down().map_err(|error| error.to_string())?;
        }
        if outcome != Ok(true) {
            *self.state = SlotState::Closed;
        }
        outcome
    }

    /// The worker of this thread, made if need be; `None` when all is over.
    fn worker(&mut self) -> Result<Option<&mut dyn DynWorker>, String> {
        if self.server.stop.is_requested() {
            *self.state = SlotState::Closed;
        }
        if let SlotState::Empty(_) = &*self.state {
            self.start_worker()?;
        }
        match &mut *self.state {
            SlotState::Running(runner) => Ok(Some(runner.worker.as_mut())),
            SlotState::Empty(_) | SlotState::Closed => Ok(None),
        }
    }
}

impl SlotGuard<'_> {
    /// Makes the worker. Apart, because it takes much of the stack.
    #[cold]
    #[inline(never)]
    fn start_worker(&mut self) -> Result<(), String> {
        let SlotState::Empty(listener) = &mut *self.state else { return Ok(()) };
        let worker = self.server.worker(listener.take())?;
        self.slot.counters.get_or_init(|| worker.counters());
        *self.state = SlotState::Running(WorkerRunner { worker, owner: self.thread });
        Ok(())
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slot.driving_thread.store(0, Ordering::Release);
    }
}

/// A socket that listens on `address`. Several threads share a port, which would let another server
/// share it too: so it is first taken alone.
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

/// A number that no other thread of this process has or had.
fn this_thread() -> u64 {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = STARTED.fetch_add(1, Ordering::Relaxed) + 1;
    }
    // While a thread ends, it is nobody in particular.
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}
