//! A server, and the threads that drive it.
//!
//! Each thread has a [`WorkerSlot`] with a worker and a listening socket of its own. The worker is
//! created when the thread first drives it, because a ring belongs to the thread that created it.
//! The driving thread holds the lock of its slot. So any other thread, and a callback that calls
//! back into the server, is rejected, and [`Server::shut_down`] waits for all threads.

use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ucall_engine::xdp::{QueueShare, XdpProgram};
use ucall_engine::{Address, Bound, EngineKind, Listener, Sharing, UnixFile, Waker, bind_udp};
use ucall_proto::Drain;
use ucall_server::{
    AnyWorker, Message, Procedures, ServerMessage, Stats, Turn, WorkerConfig, XdpConfig,
};

use crate::auth::Auth;
use crate::boundary::{Error, ErrorCode};
use crate::callback::Callback;
use crate::callback_handler::CallbackHandler;
use crate::config::{Config, TIME_MAX_MS};
use crate::engine;
use crate::log::Log;
use crate::metrics::ThreadMetrics;
use crate::poll_descriptor::PollDescriptor;
use crate::stop::{StopSignal, keep_errno};
use crate::turn_control::TurnControl;

/// For how long a drain serves calls whose clients could not know of it.
const DRAIN_IDLE_TIME: Duration = Duration::from_millis(100);
/// How many free ports of TCP are tried for one that is free for UDP, too.
const PORTS_TRIED_MAX: usize = 100;

/// A server, to which `ucall_server_t` points. The program and each driving thread share it.
pub struct Server {
    engine: EngineKind,
    address: Address,
    udp_address: Option<SocketAddr>,
    /// A Unix socket: all threads share one.
    shared: Option<Listener>,
    /// The file of the Unix socket, removed with the server.
    file: Option<UnixFile>,
    pub(crate) settings: ServerSettings,
    worker_config: WorkerConfig,
    pub(crate) procedures: Arc<Procedures<Callback>>,
    /// If the configuration has metrics.
    metrics: Option<ThreadMetrics>,
    slots: Box<[WorkerSlot]>,
    // Dropped after the workers, which watch the descriptor of its stop signal.
    control: Arc<TurnControl>,
}

/// The parts of the configuration that are needed after the start.
pub(crate) struct ServerSettings {
    auth: Option<Auth>,
    queue_depth: u16,
    procedures_max: usize,
    deferred_max: usize,
    pub(crate) call_timeout: Option<Duration>,
}

/// The slot of one thread.
struct WorkerSlot {
    state: Mutex<SlotState>,
    /// The number of the thread that drives the worker; 0 if none does.
    driving_thread: AtomicU64,
    /// Set when the worker is made.
    waker: OnceLock<Waker>,
    /// Set when an event loop of the program waits for the thread. The loop may watch it until the
    /// server is freed.
    poll: OnceLock<PollDescriptor>,
    /// Whether the worker was woken before it was made.
    is_woken: AtomicBool,
}

/// The bound sockets of a thread.
struct Sockets {
    listener: Listener,
    /// `None` without UDP.
    udp: Option<UdpSocket>,
}

enum SlotState {
    /// Without a worker yet. The first slot has its socket from the start.
    Empty(Option<Sockets>),
    Running(WorkerRunner),
    Closed,
}

/// How many turns a thread takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunMode {
    /// One, which waits for events until that time; without one, as long as it takes.
    OneTurn(Option<Instant>),
    /// All turns until the server is stopped.
    UntilStopped,
}

/// A worker, and the number of the thread that created it and drives it.
struct WorkerRunner {
    worker: Box<dyn AnyWorker<CallbackHandler>>,
    owner: u64,
    /// The engine that it runs on.
    engine: EngineKind,
    is_draining: bool,
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
    pub(crate) unsafe fn new(config: &mut Config) -> Result<Self, Error> {
        config.apply_defaults()?;
        // SAFETY: passed on to our caller.
        let (log, address) = unsafe { (config.log()?, config.address()?) };
        // SAFETY: as above.
        let mut worker_config = unsafe { config.worker_config(&address)? };
        let log = Arc::new(Log::new(log.0, log.1));
        let engine = engine::choose(config.engine, &log)?;
        let stop = StopSignal::new().map_err(|error| system("cannot make a pipe", &error))?;
        let is_shared = config.serving_threads > 1;
        let (Bound { listener, address, file }, udp) = bind_both(config, &address, is_shared)?;
        let (udp_address, mut udp) = udp.unzip();
        if let (Some(xdp), Some(address), true) =
            (&mut worker_config.datagrams.xdp, udp_address, is_shared)
        {
            share_queues(xdp, address, config.serving_threads.into())
                .map_err(|error| system("cannot listen", &error))?;
        }
        config.set_effective(engine::number(engine), &address);
        let shared = shared(&address, &listener)?;
        let procedures = Arc::new(Procedures::new());
        if config.with_peers != 0 || worker_config.trusted_proxies.is_some() {
            procedures.want_peers();
        }
        let control = Arc::new(TurnControl::new(stop, log));
        let metrics = (config.metrics != 0).then(|| {
            let (counters, is_tls) = (control.counters.clone(), worker_config.tls.is_some());
            ThreadMetrics::new(config.serving_threads, &procedures, counters, is_tls)
        });
        if config.health_checks != 0 {
            procedures.insert_health_checks(None);
        }
        let mut listener = Some(listener);
        let mut sockets = || listener.take().map(|it| Sockets { listener: it, udp: udp.take() });
        let slots = (0..config.serving_threads).map(|_| WorkerSlot::new(sockets())).collect();
        Ok(Self {
            engine,
            address,
            udp_address,
            shared,
            file,
            settings: ServerSettings {
                auth: config.auth(),
                queue_depth: config.queue_depth,
                procedures_max: config.max_procedures,
                deferred_max: config.max_running_calls,
                call_timeout: config.call_timeout(),
            },
            worker_config,
            procedures,
            metrics,
            slots,
            control,
        })
    }

    /// Registers a callback, and replaces the callback of its name, if any.
    pub(crate) fn add(&self, mut callback: Callback) -> Result<(), Error> {
        let (name, max) = (callback.name.clone(), self.settings.procedures_max);
        if let Some(metrics) = &self.metrics {
            callback.series = metrics.register(&name);
        }
        if self.procedures.insert_within(&name, callback, max) {
            return Ok(());
        }
        let text = format!("max_procedures: {max} procedures are registered already");
        Err(Error::new(ErrorCode::Limit, text))
    }

    /// Removes a callback; `false` if there is none of that name.
    pub(crate) fn remove(&self, name: &str) -> bool {
        self.procedures.remove(name)
    }

    /// The sum of all threads.
    pub(crate) fn stats(&self) -> Stats {
        self.control.counters.stats()
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

    /// Requests the drain, on any thread or in a signal handler.
    pub(crate) fn drain(&self, timeout_ms: u64) {
        self.control.stop.request_drain(timeout_ms.min(TIME_MAX_MS));
        for number in 0..self.slots.len() {
            self.wake(number as u16);
        }
    }

    /// Ends the wait of a thread, on any thread or in a signal handler.
    pub(crate) fn wake(&self, number: u16) {
        let Some(slot) = self.slots.get(usize::from(number)) else { return };
        slot.is_woken.store(true, Ordering::SeqCst);
        slot.wake();
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
    pub(crate) fn acquire_slot(&self, number: u16) -> Result<SlotGuard<'_>, Error> {
        let rejected = |why| Error::new(ErrorCode::Thread, format!("thread {number}: {why}"));
        let Some(slot) = self.slots.get(usize::from(number)) else {
            let max = self.slots.len();
            let text = format!("thread {number}: expected a number below serving_threads, {max}");
            return Err(text.into());
        };
        let state = match slot.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A panic has ended the worker within a turn.
                *poisoned.into_inner() = SlotState::Closed;
                return Err(rejected("its worker has failed"));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(rejected("another call serves with it already"));
            }
        };
        let thread = this_thread();
        if let SlotState::Running(runner) = &*state
            && runner.owner != thread
        {
            return Err(rejected("it belongs to the first thread that served"));
        }
        slot.driving_thread.store(thread, Ordering::Release);
        Ok(SlotGuard { server: self, number, slot, state, thread })
    }

    /// Sockets for a thread other than the first.
    fn other_sockets(&self) -> io::Result<Sockets> {
        let listener = match &self.shared {
            Some(listener) => listener.try_clone()?,
            None => self.address.bind(true)?.listener,
        };
        let udp = self.udp_address.map(|address| bind_udp(address, true)).transpose()?;
        Ok(Sockets { listener, udp })
    }

    fn worker(
        &self,
        number: u16,
        engine: EngineKind,
        sockets: Option<Sockets>,
    ) -> Result<Box<dyn AnyWorker<CallbackHandler>>, Error> {
        let settings = &self.settings;
        let mut handler = CallbackHandler::new(
            self.control.clone(),
            settings.auth,
            settings.call_timeout,
            settings.deferred_max,
            self.worker_config.limits.stream_bytes_max,
        )?;
        let (procedures, mut config) = (self.procedures.clone(), self.worker_config.clone());
        handler.thread = number;
        handler.metrics = self.metrics.as_ref().and_then(|metrics| metrics.of_thread(number));
        config.call_metrics = handler.metrics.clone();
        if let Some(XdpConfig { shared: Some((_, share)), .. }) = &mut config.datagrams.xdp {
            share.worker = number.into();
        }
        let depth = Some(settings.queue_depth);
        let worker = <dyn AnyWorker<_>>::new(engine, handler, procedures, config, depth);
        let mut worker = worker.map_err(|error| system("cannot make an engine", &error))?;
        let Sockets { listener, udp } = match sockets {
            Some(sockets) => sockets,
            None => self.other_sockets().map_err(|error| system("cannot listen", &error))?,
        };
        let sharing = if self.shared.is_some() { Sharing::Threads } else { Sharing::None };
        let listening = worker.listen(listener.shared(sharing));
        listening
            .and_then(|()| udp.map_or(Ok(()), |socket| worker.listen_datagrams(socket).map(drop)))
            .and_then(|()| worker.watch_signals(self.control.stop.descriptor()))
            .map_err(|error| system("cannot listen", &error))?;
        Ok(worker)
    }
}

/// Attaches the program of AF_XDP for all threads.
fn share_queues(xdp: &mut XdpConfig, address: SocketAddr, workers: u32) -> io::Result<()> {
    let program = XdpProgram::attach(&xdp.interface, address)?;
    program.check_workers(workers)?;
    xdp.shared = Some((Arc::new(program), QueueShare { worker: 0, workers }));
    Ok(())
}

impl WorkerSlot {
    fn new(sockets: Option<Sockets>) -> Self {
        let state = Mutex::new(SlotState::Empty(sockets));
        Self {
            state,
            driving_thread: AtomicU64::new(0),
            waker: OnceLock::new(),
            poll: OnceLock::new(),
            is_woken: AtomicBool::new(false),
        }
    }

    /// Wakes the worker, if there is one. Async-signal-safe: one write(2), or kevent(2).
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            // A wake fails if the worker is gone.
            keep_errno(|| drop(waker.wake()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A slot that its thread drives, until dropped.
pub(crate) struct SlotGuard<'a> {
    server: &'a Server,
    number: u16,
    slot: &'a WorkerSlot,
    state: MutexGuard<'a, SlotState>,
    thread: u64,
}

impl SlotGuard<'_> {
    /// Takes one turn or all turns; `false` if the server was stopped, which closes the slot.
    pub(crate) fn run(&mut self, mode: RunMode) -> Result<bool, Error> {
        let server = self.server;
        let poll = self.slot.poll.get();
        let Some(runner) = self.runner(server.engine)? else { return Ok(false) };
        let ended = match runner.run(mode, &server.control) {
            Ok(Some(turn)) => match runner.return_to_program(poll, turn) {
                Ok(()) => return Ok(true),
                Err(error) => Err(error),
            },
            Ok(None) => runner.worker.shut_down(),
            Err(error) => Err(error),
        };
        *self.state = SlotState::Closed;
        ended.map_err(|error| system("the engine failed", &error))?;
        Ok(false)
    }

    /// The descriptor by which an event loop of the program waits for this thread.
    pub(crate) fn poll_descriptor(&mut self) -> Result<RawFd, Error> {
        let slot = self.slot;
        let engine = self.server.engine.for_embedded_loop();
        let Some(runner) = self.runner(engine)? else {
            return Err(Error::new(ErrorCode::Thread, "the server is stopped"));
        };
        if !is_same(runner.engine, engine) {
            let text = "ucall_poll_fd: expected before the thread serves on io_uring";
            return Err(Error::new(ErrorCode::Thread, text));
        }
        let poll = match slot.poll.get() {
            Some(poll) => poll,
            None => {
                let made = PollDescriptor::new(runner.worker.descriptor());
                let made = made.map_err(|error| system("ucall_poll_fd", &error))?;
                slot.poll.get_or_init(|| made)
            }
        };
        Ok(poll.as_raw_fd())
    }

    /// The worker of this thread, created on that engine if there is none; `None` if the slot is
    /// closed.
    fn runner(&mut self, engine: EngineKind) -> Result<Option<&mut WorkerRunner>, Error> {
        let stop = &self.server.control.stop;
        let has_worker = matches!(*self.state, SlotState::Running(_));
        if stop.is_requested() || stop.is_ending() && !has_worker {
            *self.state = SlotState::Closed;
        }
        if let SlotState::Empty(_) = &*self.state {
            self.start_worker(engine)?;
        }
        match &mut *self.state {
            SlotState::Running(runner) => Ok(Some(runner)),
            SlotState::Empty(_) | SlotState::Closed => Ok(None),
        }
    }

    /// Creates the worker. Not inlined, because it needs much of the stack.
    #[cold]
    #[inline(never)]
    fn start_worker(&mut self, engine: EngineKind) -> Result<(), Error> {
        let SlotState::Empty(listener) = &mut *self.state else { return Ok(()) };
        let worker = self.server.worker(self.number, engine, listener.take())?;
        if let Some(file) = &self.server.file {
            file.adopt();
        }
        self.server.control.counters.add(worker.counters());
        self.server.control.add_publisher(worker.publisher());
        let _ = self.slot.waker.set(worker.waker());
        if self.slot.is_woken.load(Ordering::SeqCst) {
            self.slot.wake();
        }
        let owner = self.thread;
        let is_draining = false;
        *self.state = SlotState::Running(WorkerRunner { worker, owner, engine, is_draining });
        Ok(())
    }
}

impl WorkerRunner {
    /// Takes turns, and returns the last one; `None` when the server was stopped.
    fn run(&mut self, mode: RunMode, control: &TurnControl) -> io::Result<Option<Turn>> {
        loop {
            let turn = match mode {
                RunMode::UntilStopped => self.worker.turns()?,
                RunMode::OneTurn(until) => {
                    let turn = self.worker.turn(until)?;
                    control.write_line_if_due();
                    turn
                }
            };
            if self.has_ended(&turn, &control.stop) {
                return Ok(None);
            }
            if mode != RunMode::UntilStopped {
                return Ok(Some(turn));
            }
        }
    }

    /// Whether the worker has stopped. Begins its drain if that is requested.
    fn has_ended(&mut self, last: &Turn, stop: &StopSignal) -> bool {
        let has_ended = last.stopped || stop.is_requested();
        if !has_ended && stop.is_ending() && !mem::replace(&mut self.is_draining, true) {
            let timeout = Some(stop.drain_time());
            let (mode, idle_time) = (Drain::Refusing, DRAIN_IDLE_TIME);
            self.worker.mailbox().send(Message::Drain { mode, idle_time, timeout });
        }
        has_ended
    }

    /// Submits what the turn has started, because the program may do other work before the next
    /// one. Its event loop, if any, then waits for that.
    fn return_to_program(&mut self, poll: Option<&PollDescriptor>, last: Turn) -> io::Result<()> {
        let is_due = self.worker.submit()?;
        let Some(poll) = poll else { return Ok(()) };
        if !last.idle || is_due || !self.worker.prepare_to_wait() {
            return poll.arm(Some(Instant::now()));
        }
        poll.arm(self.worker.deadline())
    }
}

/// Whether both are the same engine, for an embedded loop or not.
fn is_same(one: EngineKind, other: EngineKind) -> bool {
    match (one, other) {
        (EngineKind::Posix, EngineKind::Posix) => true,
        #[cfg(target_os = "linux")]
        (EngineKind::Uring(one), EngineKind::Uring(other)) => one == other,
        #[cfg(target_os = "linux")]
        _ => false,
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        self.slot.driving_thread.store(0, Ordering::Release);
    }
}

/// A socket that listens on `address`, and with UDP the address and the socket of that.
type BoundBoth = (Bound, Option<(SocketAddr, UdpSocket)>);

fn bind_both(config: &Config, address: &Address, share_port: bool) -> Result<BoundBoth, Error> {
    let mut tries = 0;
    loop {
        let bound = bind(address, share_port)?;
        let Some(udp_address) = config.udp_address(&bound.address)? else {
            return Ok((bound, None));
        };
        match bind_free_udp(udp_address, share_port) {
            Ok(udp) => return Ok((bound, Some((udp_address, udp)))),
            // A port that is free for TCP may be in use for UDP.
            Err(error) if is_in_use(&error) && config.picks_ports() && tries < PORTS_TRIED_MAX => {
                tries += 1;
            }
            Err(error) => return Err(bind_error(error)),
        }
    }
}

/// A socket of UDP. As for TCP, a first bind without sharing makes sure that the port is free.
fn bind_free_udp(address: SocketAddr, share_port: bool) -> io::Result<UdpSocket> {
    let alone = bind_udp(address, false)?;
    if !share_port {
        return Ok(alone);
    }
    drop(alone);
    bind_udp(address, true)
}

/// A socket that listens on `address`. Threads share a port, so another server could share it, too:
/// a first bind without sharing makes sure that the port is free.
fn bind(address: &Address, share_port: bool) -> Result<Bound, Error> {
    let bound = address.bind(false).and_then(|bound| match (&bound.address, share_port) {
        (taken @ Address::Tcp(_), true) => {
            let taken = taken.clone();
            drop(bound);
            taken.bind(true)
        }
        _ => Ok(bound),
    });
    bound.map_err(bind_error)
}

fn bind_error(error: io::Error) -> Error {
    match is_in_use(&error) {
        true => Error::new(ErrorCode::AddressInUse, error),
        false => Error::new(ErrorCode::Address, error),
    }
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

fn shared(address: &Address, listener: &Listener) -> Result<Option<Listener>, Error> {
    let is_unix = matches!(address, Address::Unix { .. });
    let shared = is_unix.then(|| listener.try_clone()).transpose();
    shared.map_err(|error| system("cannot listen", &error))
}

fn system(what: &str, error: &io::Error) -> Error {
    Error::new(ErrorCode::System, format!("{what}: {error}"))
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
