//! First steps of coroutines in a task that is used again: most of an async function that never
//! waits would be the making of its task.
//!
//! A spare task is a real `asyncio.Task` that was made and has never begun. It is the current task
//! while a coroutine takes its first step. A coroutine that is through then leaves it as it was,
//! for the next one. If the coroutine waits, or somebody has laid hands on the task (kept it,
//! cancelled it, named it, wants to hear of its end), the task becomes that coroutine's own: its
//! first step, which was held back, goes through a [`Carrier`] that tells it what the coroutine has
//! said already.
//!
//! This leans on private parts of asyncio. They are tried once, on the first spare task; where they
//! are missing or behave otherwise, there are no spares, and each coroutine gets a task of its own.
//! What a borrowed task cannot hide: `get_context()` is not the coroutine's, and `all_tasks()` has
//! it only once it waits.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::context::run_in;
use crate::ffi::{self, Sent};
use crate::schedule::{Schedule, Work};

/// What a first step has come to.
pub(crate) enum First<'py> {
    Returned(Bound<'py, PyAny>),
    /// The task that goes on with it.
    Task(Bound<'py, PyAny>),
}

/// Takes first steps on one event loop of ours.
pub(crate) struct Spares {
    event_loop: Py<PyAny>,
    schedule: Py<Schedule>,
    spare: Option<Spare>,
    /// `asyncio.Task`
    task: Py<PyAny>,
    /// Of `asyncio.tasks`: what marks the current task, and what tells `all_tasks` of one.
    enter: Py<PyAny>,
    leave: Py<PyAny>,
    register: Py<PyAny>,
    unregister: Py<PyAny>,
    /// `asyncio.Task.get_name` and `weakref.getweakrefcount`
    name_of: Py<PyAny>,
    weak_references: Py<PyAny>,
}

/// A task that waits for its coroutine.
struct Spare {
    task: Py<PyAny>,
    carrier: Py<Carrier>,
    /// Its first step, held back.
    step: Work,
    untouched: Traces,
}

/// What a task looks like from outside, as far as it is cheap to see.
struct Traces {
    references: isize,
    weak_references: usize,
    name: Py<PyAny>,
}

impl Spares {
    /// `None` where asyncio has not what this is made of.
    pub(crate) fn new(event_loop: &Bound<'_, PyAny>) -> Option<Self> {
        let py = event_loop.py();
        let mut spares = Self::over(event_loop).ok()?;
        let spare = spares.make(py).ok()?;
        let task = spare.task.bind(py);
        let is_as_expected = spares.is_untouched(&spare, task).unwrap_or(false);
        spares.spare = Some(spare);
        is_as_expected.then_some(spares)
    }

    fn over(event_loop: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = event_loop.py();
        let tasks = py.import("asyncio.tasks")?;
        let task = tasks.getattr("Task")?;
        Ok(Self {
            event_loop: event_loop.clone().unbind(),
            schedule: event_loop.cast::<Schedule>()?.clone().unbind(),
            spare: None,
            enter: tasks.getattr("_enter_task")?.unbind(),
            leave: tasks.getattr("_leave_task")?.unbind(),
            register: tasks.getattr("_register_task")?.unbind(),
            unregister: tasks.getattr("_unregister_task")?.unbind(),
            name_of: task.getattr("get_name")?.unbind(),
            task: task.unbind(),
            weak_references: py.import("weakref")?.getattr("getweakrefcount")?.unbind(),
        })
    }

    /// Whether the first step of that coroutine may be taken here.
    pub(crate) fn take(&self, coroutine: &Bound<'_, PyAny>) -> bool {
        let schedule = self.schedule.get();
        schedule.is_running() && !schedule.is_debugged() && ffi::is_coroutine(coroutine)
    }

    /// Lets a coroutine take its first step, with these variables; raises what it raises. `None`
    /// where that cannot be, because another task is at a step of its own.
    pub(crate) fn step<'py>(
        &mut self,
        coroutine: &Bound<'py, PyAny>,
        variables: &Bound<'py, PyAny>,
    ) -> PyResult<Option<First<'py>>> {
        let py = coroutine.py();
        let spare = match self.spare.take() {
            Some(spare) => spare,
            None => match self.make(py) {
                Ok(spare) => spare,
                Err(_) => return Ok(None),
            },
        };
        let (event_loop, task) = (self.event_loop.bind(py), spare.task.bind(py));
        if ffi::call(self.enter.bind(py), [event_loop, task]).is_err() {
            self.spare = Some(spare);
            return Ok(None);
        }
        spare.carrier.get().take_up(coroutine, variables);
        let none = py.None().into_bound(py);
        let sent = run_in(variables, || ffi::send(coroutine, &none));
        ffi::call(self.leave.bind(py), [event_loop, task])?;
        let said = match sent {
            Ok(Sent::Yielded(value)) => Said::Yielded(value.unbind()),
            Ok(Sent::Returned(value)) if self.is_untouched(&spare, task)? => {
                self.keep(spare);
                return Ok(Some(First::Returned(value)));
            }
            Err(error) if self.is_untouched(&spare, task)? => {
                self.keep(spare);
                return Err(error);
            }
            Ok(Sent::Returned(value)) => Said::Returned(Ok(value.unbind())),
            Err(error) => Said::Returned(Err(error)),
        };
        self.hand_over(py, spare, said).map(Some)
    }

    /// Keeps a spare task for the next coroutine.
    #[inline]
    fn keep(&mut self, spare: Spare) {
        spare.carrier.get().put_down();
        self.spare = Some(spare);
    }

    /// Gives a spare task to a coroutine for good.
    #[cold]
    fn hand_over<'py>(&self, py: Python<'py>, spare: Spare, said: Said) -> PyResult<First<'py>> {
        let task = spare.task.into_bound(py);
        if let Some(carried) = &mut *spare.carrier.get().carried() {
            carried.said = Some(said);
        }
        ffi::call(self.register.bind(py), [&task])?;
        task.setattr(intern!(py, "_log_destroy_pending"), true)?;
        spare.step.run(py)?;
        Ok(First::Task(task))
    }

    #[cold]
    fn make(&self, py: Python<'_>) -> PyResult<Spare> {
        let carrier = Bound::new(py, Carrier { carried: Mutex::default() })?;
        let options = pyo3::types::PyDict::new(py);
        options.set_item("loop", &self.event_loop)?;
        let make = || self.task.bind(py).call((&carrier,), Some(&options));
        let (task, step) = self.schedule.get().caught(make)?;
        let Some(step) = step.filter(|step| step.is_of(&task)) else {
            // It will begin some time, and has nothing to do.
            task.call_method0(intern!(py, "cancel"))?;
            return Err(PyRuntimeError::new_err("a task that begins otherwise"));
        };
        ffi::call(self.unregister.bind(py), [&task])?;
        task.setattr(intern!(py, "_log_destroy_pending"), false)?;
        let name = ffi::call(self.name_of.bind(py), [&task])?.unbind();
        let weak_references = self.weak_references(&task)?;
        let carrier = carrier.unbind();
        let references = ffi::references(&task);
        let untouched = Traces { references, weak_references, name };
        Ok(Spare { task: task.unbind(), carrier, step, untouched })
    }

    fn weak_references(&self, task: &Bound<'_, PyAny>) -> PyResult<usize> {
        ffi::call(self.weak_references.bind(task.py()), [task])?.extract()
    }

    /// Whether the coroutine has left no trace at its task.
    fn is_untouched(&self, spare: &Spare, task: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = task.py();
        let before = &spare.untouched;
        Ok(ffi::references(task) == before.references
            && self.weak_references(task)? == before.weak_references
            && ffi::call(self.name_of.bind(py), [task])?.is(&before.name)
            && !task.getattr(intern!(py, "_callbacks"))?.is_truthy()?
            && !task.getattr(intern!(py, "_must_cancel"))?.is_truthy()?)
    }
}

/// What a task drives in place of a coroutine that began before it.
#[pyclass(frozen, module = "ucall._core")]
pub(crate) struct Carrier {
    carried: Mutex<Option<Carried>>,
}

struct Carried {
    coroutine: Py<PyAny>,
    /// Its `contextvars`, which it runs in.
    variables: Py<PyAny>,
    /// Not told to the task yet.
    said: Option<Said>,
}

enum Said {
    Yielded(Py<PyAny>),
    Returned(PyResult<Py<PyAny>>),
}

impl Carrier {
    fn carried(&self) -> MutexGuard<'_, Option<Carried>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the task a coroutine that takes its first step.
    fn take_up(&self, coroutine: &Bound<'_, PyAny>, variables: &Bound<'_, PyAny>) {
        let (coroutine, variables) = (coroutine.clone().unbind(), variables.clone().unbind());
        *self.carried() = Some(Carried { coroutine, variables, said: None });
    }

    /// Lets go of one that is through.
    fn put_down(&self) {
        // Not under the lock: what is let go of may run code.
        let over = self.carried().take();
        drop(over);
    }

    fn said(&self) -> Option<Said> {
        self.carried().as_mut()?.said.take()
    }

    /// The coroutine, and its variables.
    fn inner<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let carried = self.carried();
        let carried = carried.as_ref().ok_or_else(over)?;
        let variables = carried.variables.bind(py).clone();
        Ok((carried.coroutine.bind(py).clone(), variables))
    }

    /// Passes on what a step has come to, as generators do: a return is raised.
    fn tell<'py>(&self, sent: PyResult<Sent<'py>>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(Sent::Yielded(value)) = sent {
            return Ok(value);
        }
        self.put_down();
        match sent? {
            Sent::Yielded(value) => Ok(value),
            Sent::Returned(value) => Err(PyStopIteration::new_err((value.unbind(),))),
        }
    }

    fn tell_said<'py>(&self, py: Python<'py>, said: Said) -> PyResult<Bound<'py, PyAny>> {
        self.tell(match said {
            Said::Yielded(value) => Ok(Sent::Yielded(value.into_bound(py))),
            Said::Returned(returned) => returned.map(|it| Sent::Returned(it.into_bound(py))),
        })
    }
}

#[pymethods]
impl Carrier {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.send(&py.None().into_bound(py))
    }

    fn send<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        if let Some(said) = self.said() {
            return self.tell_said(py, said);
        }
        let (coroutine, variables) = self.inner(py)?;
        self.tell(run_in(&variables, || ffi::send(&coroutine, value)))
    }

    /// A task is cancelled before its first step when its coroutine has asked for that: what it
    /// waits for is cancelled then, as of any task.
    #[pyo3(signature = (error, *more))]
    fn throw<'py>(
        &self,
        error: &Bound<'py, PyAny>,
        more: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = error.py();
        match self.said() {
            Some(Said::Yielded(waited)) if is_cancelled(waited.bind(py), error)? => {
                return Ok(waited.into_bound(py));
            }
            Some(Said::Returned(Err(raised))) => {
                return self.tell(Err(raised));
            }
            Some(Said::Returned(Ok(_))) => {
                return self.tell(Err(PyErr::from_value(error.clone())));
            }
            Some(Said::Yielded(_)) | None => {}
        }
        let Ok((coroutine, variables)) = self.inner(py) else {
            return Err(PyErr::from_value(error.clone()));
        };
        let throw = coroutine.getattr(intern!(py, "throw"))?;
        let thrown = run_in(&variables, || match more.is_empty() {
            true => ffi::call(&throw, [error]),
            false => throw.call1((error, more.get_item(0)?)),
        });
        match thrown {
            Ok(value) => Ok(value),
            Err(raised) => self.tell(Err(raised)),
        }
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Ok((coroutine, _)) = self.inner(py) else { return Ok(()) };
        coroutine.call_method0(intern!(py, "close")).map(drop)
    }

    /// What tracebacks and `repr` ask of a coroutine.
    fn __getattr__<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let missing = |_| pyo3::exceptions::PyAttributeError::new_err(name.to_owned());
        self.inner(py).map_err(missing)?.0.getattr(name)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(carried) = self.carried.try_lock() else { return Ok(()) };
        let Some(carried) = &*carried else { return Ok(()) };
        visit.call(&carried.coroutine)?;
        visit.call(&carried.variables)?;
        match &carried.said {
            Some(Said::Yielded(value) | Said::Returned(Ok(value))) => visit.call(value),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        self.put_down();
    }
}

/// Cancels what a coroutine waits for, if it can be, with the message of who asked for that.
fn is_cancelled(waited: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = waited.py();
    let Some(cancel) = waited.getattr_opt(intern!(py, "cancel"))? else { return Ok(false) };
    let arguments = error.getattr(intern!(py, "args"))?;
    cancel.call1(arguments.cast::<PyTuple>()?)?.is_truthy()
}

fn over() -> PyErr {
    PyRuntimeError::new_err("cannot reuse already awaited coroutine")
}
