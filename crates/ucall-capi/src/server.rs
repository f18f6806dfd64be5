//! A server, and the threads that drive it.
//!
//! Each thread has a [`Place`], with a worker that is made when the thread first drives it, because
//! a ring belongs to the thread that made it, and with a listening socket of its own. The lock of a
//! place is held by whoever drives it: that is how another thread, or a callback that calls back
//! into the server, is turned away, and how [`Server::end`] waits until nobody is inside.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use ucall_engine::{Address, Bound, Listener, UnixFile};
use ucall_server::{Config as WorkerConfig, Counters, Procedures, Stats, Turn};

use crate::choose::{Drive, EngineKind, Far};
use crate::config::Config;
use crate::desk::{Callback, Desk};
use crate::ledger::Ledger;
use crate::log::Log;
use crate::stop::Stop;

/// What `ucall_server_t` points to, held by the program and by each thread inside.
pub struct Server {
    engine: EngineKind,
    address: Address,
    /// A Unix socket, which is one for all threads.
    shared: Option<Listener>,
    /// Its file, which goes with the server.
    _file: Option<UnixFile>,
    sizes: Sizes,
    for_workers: WorkerConfig,
    procedures: Arc<Procedures<Callback>>,
    /// How many names are taken.
    procedures_len: Mutex<u16>,
    places: Box<[Place]>,
    log: Arc<Log>,
    // Behind the places, whose workers watch its descriptor until they are dropped.
    stop: Stop,
}

/// Of the configuration, what is needed later.
struct Sizes {
    queue_depth: u16,
    callbacks_max: u16,
    deferred_max: usize,
    call_timeout: Option<Duration>,
}

/// The place of one thread.
struct Place {
    state: Mutex<State>,
    /// The number of the thread that is inside; 0 when none is.
    driver: AtomicU64,
    counters: OnceLock<Arc<Counters>>,
}

enum State {
    /// Nobody has come yet. The first place has its socket from the start.
    Empty(Option<Listener>),
    Working(Station),
    Over,
}

/// A worker, and the number of the thread that made it and drives it.
struct Station {
    drive: Box<dyn Drive>,
    owner: u64,
}

// SAFETY: a worker has no tie to its thread in memory, and the lock around it lets in one thread at
// a time. Only its owner drives it; all that another thread may do is drop it, and an engine that
// the kernel lets nobody else drive leaks what the kernel may still write to.
unsafe impl Send for Station {}

impl Server {
    /// A bound server, and in `config` what is in force.
    ///
    /// # Safety
    /// The strings in `config` are what the header says.
    pub(crate) unsafe fn new(config: &mut Config) -> Result<Self, String> {
        config.complete()?;
        // SAFETY: passed on to our caller.
        let (log, address) = unsafe { (config.log()?, config.address()?) };
        // SAFETY: as above.
        let for_workers = unsafe { config.for_workers(&address)? };
        let log = Arc::new(Log::new(log.0, log.1));
        let engine = EngineKind::choose(config.engine, &log)?;
        let stop = Stop::new().map_err(|error| format!("cannot make a pipe: {error}"))?;
        let Bound { listener, address, file } = bind(&address, config.max_threads > 1)?;
        config.decided(engine, &address);
        let shared = shared(&address, &listener)?;
        let mut listener = Some(listener);
        let places = (0..config.max_threads).map(|_| Place::new(listener.take())).collect();
        Ok(Self {
            engine,
            address,
            shared,
            _file: file,
            sizes: Sizes {
                queue_depth: config.queue_depth,
                callbacks_max: config.max_callbacks,
                deferred_max: config.max_deferred_calls as usize,
                call_timeout: config.call_timeout(),
            },
            for_workers,
            procedures: Arc::new(Procedures::new()),
            procedures_len: Mutex::new(0),
            places,
            log,
            stop,
        })
    }

    /// Serves a callback under its name, in place of what had that name.
    pub(crate) fn add(&self, callback: Callback) -> Result<(), String> {
        let mut len = self.procedures_len.lock().unwrap_or_else(PoisonError::into_inner);
        let name = callback.name.clone();
        if !self.procedures.contains(&name) {
            if *len >= self.sizes.callbacks_max {
                return Err(format!("max_callbacks: there are {len} procedures already"));
            }
            *len += 1;
        }
        self.procedures.insert(&name, callback);
        Ok(())
    }

    /// Asks for the end, from anywhere, also from a signal handler.
    pub(crate) fn stop(&self) {
        self.stop.ask();
    }

    /// Ends it: waits until no other thread is inside, and closes all connections.
    pub(crate) fn end(&self) {
        self.stop();
        let me = this_thread();
        for place in &self.places {
            // A callback that frees its server ends when it returns.
            if place.driver.load(Ordering::Acquire) != me {
                *place.lock() = State::Over;
            }
        }
        self.log.end();
    }

    /// Lets this thread in to the place of that number.
    pub(crate) fn enter(&self, number: u16) -> Result<Visit<'_>, String> {
        let Some(place) = self.places.get(usize::from(number)) else {
            let max = self.places.len();
            return Err(format!("thread {number}: max_threads is {max}, counted from 0"));
        };
        let state = match place.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A bug has ended its worker in the middle of a turn.
                *poisoned.into_inner() = State::Over;
                return Err(format!("thread {number}: it failed before"));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(format!("thread {number}: it is being served already"));
            }
        };
        let me = this_thread();
        if let State::Working(station) = &*state
            && station.owner != me
        {
            return Err(format!("thread {number}: it belongs to the thread that drove it first"));
        }
        place.driver.store(me, Ordering::Release);
        Ok(Visit { server: self, place, state, me })
    }

    /// When the next turn has to end.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.log.due()
    }

    /// What is due between two turns; `false` when the one before is the last.
    #[inline]
    pub(crate) fn goes_on(&self, turn: &Turn) -> bool {
        self.log.tick(|| self.stats());
        !turn.stopped && !self.stop.is_asked()
    }

    /// All that was done so far.
    fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for counters in self.places.iter().filter_map(|place| place.counters.get()) {
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

    fn worker(&self, listener: Option<Listener>) -> Result<Box<dyn Drive>, String> {
        let sizes = &self.sizes;
        let ledger = Ledger::new(self.log.clone(), sizes.call_timeout, sizes.deferred_max);
        let (procedures, config) = (self.procedures.clone(), self.for_workers.clone());
        let worker = self.engine.worker(Desk::new(ledger), procedures, config, sizes.queue_depth);
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

impl Place {
    fn new(listener: Option<Listener>) -> Self {
        let state = Mutex::new(State::Empty(listener));
        Self { state, driver: AtomicU64::new(0), counters: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that drives its place, until dropped.
pub(crate) struct Visit<'a> {
    server: &'a Server,
    place: &'a Place,
    state: MutexGuard<'a, State>,
    me: u64,
}

impl Visit<'_> {
    /// One turn, or all of them; `false` when the server was stopped, and then nothing is served
    /// here any more.
    pub(crate) fn go(&mut self, far: Far) -> Result<bool, String> {
        let server = self.server;
        let Some(drive) = self.drive()? else { return Ok(false) };
        let gone = drive.go(far, server).map_err(|error| format!("the engine failed: {error}"));
        if gone == Ok(false) {
            drive.end().map_err(|error| error.to_string())?;
        }
        if gone != Ok(true) {
            *self.state = State::Over;
        }
        gone
    }

    /// The worker of this thread, made if need be; `None` when all is over.
    fn drive(&mut self) -> Result<Option<&mut dyn Drive>, String> {
        if self.server.stop.is_asked() {
            *self.state = State::Over;
        }
        if let State::Empty(_) = &*self.state {
            self.begin()?;
        }
        match &mut *self.state {
            State::Working(station) => Ok(Some(station.drive.as_mut())),
            State::Empty(_) | State::Over => Ok(None),
        }
    }
}

impl Visit<'_> {
    /// Makes the worker. Apart, because it takes much of the stack.
    #[cold]
    #[inline(never)]
    fn begin(&mut self) -> Result<(), String> {
        let State::Empty(listener) = &mut *self.state else { return Ok(()) };
        let drive = self.server.worker(listener.take())?;
        self.place.counters.get_or_init(|| drive.counters());
        *self.state = State::Working(Station { drive, owner: self.me });
        Ok(())
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.place.driver.store(0, Ordering::Release);
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
