//! What an event loop of ours has to do, and when: asyncio's queues, kept here.
//!
//! asyncio keeps its callbacks and timers in Python: a timer costs some ten Python calls by the
//! time it has run, most of them comparisons. Here a callback is a small object, and timers are
//! compared as numbers. Callbacks run in slices of a bounded time, between which the engine is
//! looked at, so that a thousand tasks which wake at one moment hold up nobody for longer than a
//! slice. What a callback leads to runs within the same slice if there is time left, so that the
//! first of those tasks is answered long before the last one wakes.

use std::cmp::Ordering as Order;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PySystemExit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::calls::DoneCallback;
use crate::clock;
use crate::context::{own_variables, run_in};
use crate::ffi;

/// Callbacks run for so long before the engine is looked at.
const SLICE: Duration = Duration::from_micros(200);
/// So many timers at a time join the callbacks, so that those they lead to come soon.
const TIMERS_BATCH: usize = 16;
/// From so many timers on, those that were cancelled are thrown away now and then.
const PRUNE_TIMERS_MIN: usize = 128;
/// How far ahead of its time a timer may run, as in asyncio.
const CLOCK_RESOLUTION_S: f64 = 1e-9;

/// The base of our event loop: its queues, and what asyncio puts into them.
#[pyclass(frozen, subclass, module = "ucall._core")]
pub(crate) struct LoopQueues {
    queues: Mutex<CallbackQueues>,
    /// asyncio's debug mode: callbacks are timed, and threads are looked at.
    debug: AtomicBool,
    closed: AtomicBool,
    running: AtomicBool,
    /// Whether the loop has a task factory.
    task_factory: AtomicBool,
}

#[derive(Default)]
struct CallbackQueues {
    ready: VecDeque<Item>,
    timers: BinaryHeap<Timer>,
    timers_made: u64,
    /// How many timers there may be before the cancelled ones are looked for.
    timers_max: usize,
    /// How many of the callbacks are still to run, once the loop was told to stop.
    remaining: Option<usize>,
}

/// Something to run.
enum Item {
    Core(Py<Handle>),
    /// An `asyncio.Handle`, of a descriptor that is ready.
    Asyncio(Py<PyAny>),
}

struct Work {
    callback: Py<PyAny>,
    arguments: Py<PyTuple>,
    variables: Py<PyAny>,
}

/// A callback that was asked for, as `asyncio.TimerHandle` is.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Handle {
    /// On the clock of `time.monotonic()`; 0 for as soon as possible.
    when: f64,
    /// Gone when it has run or was cancelled: it may hold what holds this.
    work: Mutex<Option<Work>>,
    cancelled: AtomicBool,
}

/// The soonest is the greatest; of those at one time, the one that was made first.
struct Timer {
    when: f64,
    number: u64,
    handle: Py<Handle>,
}

impl Ord for Timer {
    fn cmp(&self, other: &Self) -> Order {
        other.when.total_cmp(&self.when).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

#[pymethods]
impl Handle {
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        drop(self.take());
    }

    fn cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// When it is due, on the loop's clock.
    fn when(&self) -> f64 {
        self.when
    }

    /// Where it was made, which is not kept.
    #[getter]
    fn _source_traceback(&self) -> Option<Py<PyAny>> {
        None
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let callback = self.work().as_ref().map(|work| work.callback.clone_ref(py));
        match callback {
            Some(callback) => format!("<Handle {}>", callback.bind(py)),
            None if self.cancelled() => "<Handle cancelled>".into(),
            None => "<Handle done>".into(),
        }
    }
}

impl Handle {
    fn new(when: f64, work: Work) -> Self {
        Self { when, work: Mutex::new(Some(work)), cancelled: AtomicBool::new(false) }
    }

    fn work(&self) -> MutexGuard<'_, Option<Work>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Work> {
        self.work().take()
    }

    /// Whether it calls a method of that object.
    fn is_method_of(&self, owner: &Bound<'_, PyAny>) -> bool {
        let py = owner.py();
        let callback = self.work().as_ref().map(|work| work.callback.clone_ref(py));
        callback.is_some_and(|callback| {
            callback.getattr(py, intern!(py, "__self__")).is_ok_and(|it| it.is(owner))
        })
    }
}

impl Work {
    fn new(
        callback: &Bound<'_, PyAny>,
        arguments: &Bound<'_, PyTuple>,
        variables: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let variables = match variables {
            Some(variables) => variables.clone(),
            None => own_variables(callback.py())?,
        };
        Ok(Self {
            callback: callback.clone().unbind(),
            arguments: arguments.clone().unbind(),
            variables: variables.unbind(),
        })
    }

    fn run(&self, py: Python<'_>) -> PyResult<()> {
        run_in(self.variables.bind(py), || {
            ffi::call_with_tuple(self.callback.bind(py), self.arguments.bind(py)).map(drop)
        })
    }
}

#[pymethods]
impl LoopQueues {
    #[new]
    fn new() -> Self {
        let queues = CallbackQueues { timers_max: PRUNE_TIMERS_MIN, ..CallbackQueues::default() };
        Self {
            queues: Mutex::new(queues),
            debug: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            running: AtomicBool::new(false),
            task_factory: AtomicBool::new(false),
        }
    }

    #[pyo3(signature = (callback, *arguments, context = None))]
    fn call_soon<'py>(
        slf: &Bound<'py, Self>,
        callback: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, Handle>>> {
        let this = slf.get();
        // What ends a call needs no callback, and its reply should not wait for one.
        if let Ok(done) = callback.cast_exact::<DoneCallback>() {
            done.get().__call__(slf.py(), arguments.get_item(0)?.unbind());
            return Ok(None);
        }
        this.check(slf, callback, "call_soon")?;
        this.push_ready(callback, arguments, context).map(Some)
    }

    /// What asyncio's own methods call that are for other threads.
    fn _call_soon<'py>(
        &self,
        callback: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Handle>> {
        self.push_ready(callback, args, context)
    }

    /// Takes an `asyncio.Handle` whose descriptor is ready.
    fn _add_callback(&self, handle: Py<PyAny>) {
        self.queues().ready.push_back(Item::Asyncio(handle));
    }

    #[pyo3(signature = (delay, callback, *arguments, context = None))]
    fn call_later<'py>(
        slf: &Bound<'py, Self>,
        delay: f64,
        callback: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Handle>> {
        Self::call_at(slf, clock::monotonic_s() + delay, callback, arguments, context)
    }

    #[pyo3(signature = (when, callback, *arguments, context = None))]
    fn call_at<'py>(
        slf: &Bound<'py, Self>,
        when: f64,
        callback: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Handle>> {
        slf.get().check(slf, callback, "call_at")?;
        let handle = Handle::new(when, Work::new(callback, arguments, context)?);
        let handle = Bound::new(slf.py(), handle)?;
        slf.get().queues().push_timer(when, handle.clone().unbind());
        Ok(handle)
    }

    /// Seconds that the loop may wait: 0 when there is something to do, `None` when there is not.
    fn select_timeout(&self) -> Option<f64> {
        let queues = self.queues();
        if !queues.ready.is_empty() {
            return Some(0.0);
        }
        queues.timers.peek().map(|timer| (timer.when - clock::monotonic_s()).max(0.0))
    }

    /// Runs callbacks, and those of timers that are due, for the time of a slice.
    fn run_slice(slf: &Bound<'_, Self>) -> PyResult<()> {
        let this = slf.get();
        let end = Instant::now() + SLICE;
        this.queues().move_due_timers();
        while let Some(item) = this.next_item() {
            this.run(slf, item)?;
            if Instant::now() >= end {
                break;
            }
        }
        Ok(())
    }

    /// Only those callbacks still run in this slice that there are already.
    fn end_slice(&self) {
        let mut queues = self.queues();
        queues.remaining = Some(queues.ready.len());
    }

    /// A new run begins, after one that was ended.
    fn begin_slices(&self) {
        self.queues().remaining = None;
        self.running.store(true, Ordering::Relaxed);
    }

    /// The run is over.
    fn end_slices(&self) {
        self.running.store(false, Ordering::Relaxed);
    }

    fn set_debug_timing(&self, enabled: bool) {
        self.debug.store(enabled, Ordering::Relaxed);
    }

    /// Whether tasks are to be made by a task factory.
    fn use_task_factory(&self, enabled: bool) {
        self.task_factory.store(enabled, Ordering::Relaxed);
    }

    /// Each task asks when it is made.
    fn get_debug(&self) -> bool {
        self.debug.load(Ordering::Relaxed)
    }

    /// Forgets all callbacks and timers.
    fn clear(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let queues = std::mem::take(&mut *self.queues());
        for timer in queues.timers {
            timer.handle.get().cancel();
        }
        for item in queues.ready {
            if let Item::Core(handle) = item {
                handle.get().cancel();
            }
        }
    }
}

impl LoopQueues {
    fn queues(&self) -> MutexGuard<'_, CallbackQueues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the loop runs.
    pub(crate) fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    /// Whether there is a callback to run.
    pub(crate) fn has_work(&self) -> bool {
        !self.queues().ready.is_empty()
    }

    /// When the next timer is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let remaining = self.queues().timers.peek()?.when - clock::monotonic_s();
        let remaining = Duration::try_from_secs_f64(remaining.max(0.0)).unwrap_or(Duration::MAX);
        Instant::now().checked_add(remaining)
    }

    /// Whether the loop has a task factory.
    pub(crate) fn has_task_factory(&self) -> bool {
        self.task_factory.load(Ordering::Relaxed)
    }

    /// Runs the first step of a task that was just made, and asked for it by `call_soon`. If
    /// another callback was asked for meanwhile, as a finalizer may do, the step waits behind it.
    pub(crate) fn run_first_step(&self, task: &Bound<'_, PyAny>) -> PyResult<()> {
        let last = self.queues().ready.pop_back();
        match last {
            Some(Item::Core(handle)) if handle.get().is_method_of(task) => {
                handle.get().take().map_or(Ok(()), |step| step.run(task.py()))
            }
            Some(other) => {
                self.queues().ready.push_back(other);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn push_ready<'py>(
        &self,
        callback: &Bound<'py, PyAny>,
        arguments: &Bound<'py, PyTuple>,
        context: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, Handle>> {
        let handle = Handle::new(0.0, Work::new(callback, arguments, context)?);
        let handle = Bound::new(callback.py(), handle)?;
        self.queues().ready.push_back(Item::Core(handle.clone().unbind()));
        Ok(handle)
    }

    /// Raises as asyncio does: when the loop is closed and, in debug mode, on a wrong thread.
    #[inline]
    fn check(
        &self,
        slf: &Bound<'_, Self>,
        callback: &Bound<'_, PyAny>,
        method: &str,
    ) -> PyResult<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err("Event loop is closed"));
        }
        if self.debug.load(Ordering::Relaxed) {
            slf.call_method0("_check_thread")?;
            slf.call_method1("_check_callback", (callback, method))?;
        }
        Ok(())
    }

    /// The next callback to run, timers that are due behind those that are ready.
    fn next_item(&self) -> Option<Item> {
        let mut queues = self.queues();
        if let Some(remaining) = &mut queues.remaining {
            *remaining = remaining.checked_sub(1)?;
        } else if queues.ready.is_empty() {
            queues.move_due_timers();
        }
        queues.ready.pop_front()
    }

    fn run(&self, slf: &Bound<'_, Self>, item: Item) -> PyResult<()> {
        let py = slf.py();
        if self.debug.load(Ordering::Relaxed) {
            return Self::run_timed(slf, item);
        }
        match item {
            Item::Core(handle) => Self::run_core(slf, &handle),
            Item::Asyncio(handle) => {
                let handle = handle.bind(py);
                match handle.getattr(intern!(py, "_cancelled"))?.is_truthy()? {
                    true => Ok(()),
                    false => ffi::call(&handle.getattr(intern!(py, "_run"))?, []).map(drop),
                }
            }
        }
    }

    #[inline]
    fn run_core(slf: &Bound<'_, Self>, handle: &Py<Handle>) -> PyResult<()> {
        let Some(work) = handle.get().take() else { return Ok(()) };
        match work.run(slf.py()) {
            Ok(()) => Ok(()),
            Err(error) => Self::failed(slf, handle, &work, error),
        }
    }

    /// A callback has raised: tells the loop's handler of exceptions, as asyncio does.
    #[cold]
    fn failed(
        slf: &Bound<'_, Self>,
        handle: &Py<Handle>,
        work: &Work,
        error: PyErr,
    ) -> PyResult<()> {
        let py = slf.py();
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            return Err(error);
        }
        if error.is_instance_of::<PySystemExit>(py) {
            return if is_of_task(work.callback.bind(py))? { Ok(()) } else { Err(error) };
        }
        let context = PyDict::new(py);
        let callback = work.callback.bind(py).repr()?;
        context.set_item("message", format!("Exception in callback {callback}"))?;
        context.set_item("exception", error)?;
        context.set_item("handle", handle)?;
        slf.call_method1("call_exception_handler", (context,)).map(drop)
    }

    /// Runs a callback and tells the loop how long that took.
    #[cold]
    fn run_timed(slf: &Bound<'_, Self>, item: Item) -> PyResult<()> {
        let py = slf.py();
        let began = Instant::now();
        let (description, ran) = match item {
            Item::Core(handle) => {
                let description = handle.bind(py).repr()?;
                (description, Self::run_core(slf, &handle))
            }
            Item::Asyncio(handle) => {
                let handle = handle.bind(py);
                (handle.repr()?, handle.call_method0("_run").map(drop))
            }
        };
        ran?;
        slf.call_method1("_report_callback", (description, began.elapsed().as_secs_f64())).map(drop)
    }
}

impl CallbackQueues {
    fn push_timer(&mut self, when: f64, handle: Py<Handle>) {
        if self.timers.len() >= self.timers_max {
            self.timers.retain(|timer| !timer.handle.get().cancelled());
            self.timers_max = PRUNE_TIMERS_MIN.max(2 * self.timers.len());
        }
        let number = self.timers_made;
        self.timers_made += 1;
        self.timers.push(Timer { when, number, handle });
    }

    /// Puts timers that are due behind the callbacks that are ready.
    fn move_due_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = clock::monotonic_s() + CLOCK_RESOLUTION_S;
        for _ in 0..TIMERS_BATCH {
            if self.timers.peek().is_none_or(|timer| timer.when >= now) {
                return;
            }
            if let Some(timer) = self.timers.pop() {
                self.ready.push_back(Item::Core(timer.handle));
            }
        }
    }
}

/// Whether a callback is a step of an `asyncio.Task`, which keeps what was raised for those who
/// await it: a function that calls `sys.exit` fails its call and not the server.
#[cold]
fn is_of_task(callback: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = callback.py();
    let Some(owner) = callback.getattr_opt("__self__")? else { return Ok(false) };
    owner.is_instance(&py.import("asyncio")?.getattr("Task")?)
}
