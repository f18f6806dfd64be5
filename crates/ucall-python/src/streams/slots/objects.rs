//! `ucall.Slots` and `ucall.Slot`: what a generator sees of its calls.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_server::Reservation;

use super::super::call::CallKey;

/// Steps in a row without an item for a call, after which the log says so.
const SILENT_STEPS_MAX: u32 = 1_000;

/// The calls of a generator that takes others between its steps.
#[pyclass(frozen, module = "ucall", name = "Slots", generic)]
pub(crate) struct Slots {
    /// Tells them from those of other functions.
    id: u64,
    size: usize,
    state: Mutex<State>,
}

struct State {
    taken: Vec<Option<Py<Slot>>>,
    joined: Vec<Py<Slot>>,
    left: Vec<Py<Slot>>,
    active: Vec<Py<Slot>>,
    /// Whether the generator has seen them.
    has_stepped: bool,
}

/// The slot of one call.
#[pyclass(frozen, module = "ucall", name = "Slot", generic)]
pub(crate) struct Slot {
    index: usize,
    params: Py<PyAny>,
    context: Py<PyAny>,
    /// The memory of the params, until the generator has given up the slot.
    reserved: Mutex<Reservation>,
    /// That of its `Slots`.
    id: u64,
    pub(super) key: CallKey,
    /// Whether the call takes an item in the present step.
    is_active: AtomicBool,
    /// Whether the generator has ended the call.
    is_ended: AtomicBool,
    /// Steps in which the call was active since its last item.
    silent_steps: AtomicU32,
}

impl Slots {
    pub(super) fn new(id: u64, size: usize) -> Self {
        let state = State {
            taken: (0..size).map(|_| None).collect(),
            joined: Vec::new(),
            left: Vec::new(),
            active: Vec::new(),
            has_stepped: false,
        };
        Self { id, size, state: Mutex::new(state) }
    }

    /// The slot of a call.
    pub(super) fn slot(
        &self,
        index: usize,
        params: Py<PyAny>,
        context: Py<PyAny>,
        reserved: Reservation,
        key: CallKey,
    ) -> Slot {
        Slot {
            index,
            params,
            context,
            reserved: Mutex::new(reserved),
            id: self.id,
            key,
            is_active: AtomicBool::new(false),
            is_ended: AtomicBool::new(false),
            silent_steps: AtomicU32::new(0),
        }
    }

    /// Whether a slot is one of these, or of those of an earlier run of their function.
    pub(super) fn contains(&self, slot: &Slot) -> bool {
        self.id == slot.id
    }

    /// Shows what has changed since the last step. A call that has come and gone since then is not
    /// shown.
    pub(super) fn update(
        &self,
        py: Python<'_>,
        left: &[usize],
        joined: Vec<Py<Slot>>,
        active: &[usize],
    ) {
        // Dropped without the lock: that may run code.
        let (mut dropped, mut state) = (Vec::new(), self.state());
        if mem::replace(&mut state.has_stepped, false) {
            dropped.append(&mut state.joined);
            dropped.append(&mut state.left);
        }
        let before = mem::take(&mut state.active);
        for slot in &before {
            slot.get().is_active.store(false, Ordering::Relaxed);
        }
        dropped.extend(before);
        for &index in left {
            let Some(slot) = state.taken.get_mut(index).and_then(Option::take) else { continue };
            slot.get().release();
            match state.joined.iter().position(|joined| joined.is(&slot)) {
                Some(unseen) => dropped.extend([state.joined.remove(unseen), slot]),
                None => state.left.push(slot),
            }
        }
        for slot in joined {
            if let Some(taken) = state.taken.get_mut(slot.get().index) {
                *taken = Some(slot.clone_ref(py));
            }
            state.joined.push(slot);
        }
        for &index in active {
            let Some(Some(slot)) = state.taken.get(index) else { continue };
            slot.get().is_active.store(true, Ordering::Relaxed);
            let slot = slot.clone_ref(py);
            state.active.push(slot);
        }
        drop(state);
        drop(dropped);
    }

    /// The generator has taken a step. Returns for how many calls.
    pub(super) fn set_stepped(&self) -> usize {
        let mut state = self.state();
        state.has_stepped = true;
        for slot in &state.active {
            slot.get().silent_steps.fetch_add(1, Ordering::Relaxed);
        }
        state.active.len()
    }

    /// A slot whose call has now been active for many steps without an item.
    pub(super) fn silent(&self) -> Option<usize> {
        let is_silent =
            |slot: &&Py<Slot>| slot.get().silent_steps.load(Ordering::Relaxed) == SILENT_STEPS_MAX;
        self.state().active.iter().find(is_silent).map(|slot| slot.get().index)
    }

    fn list<'py>(
        &self,
        py: Python<'py>,
        slots: impl FnOnce(&State) -> &Vec<Py<Slot>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let slots: Vec<_> = slots(&self.state()).iter().map(|slot| slot.clone_ref(py)).collect();
        PyList::new(py, slots)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Slots {
    /// The number of slots.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// The calls that have come since the last step.
    #[getter]
    fn joined<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.list(py, |state| &state.joined)
    }

    /// The calls that have ended since the last step, for whatever reason.
    #[getter]
    fn left<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.list(py, |state| &state.left)
    }

    /// The calls that take an item in this step; at least one.
    #[getter]
    fn active<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.list(py, |state| &state.active)
    }

    fn __repr__(&self) -> String {
        format!("<ucall.Slots of {}>", self.size)
    }
}

impl Slot {
    /// Counts the memory of the params no longer: no step may follow in which it would be freed.
    fn release(&self) {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Reservation::default();
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// The call gets an item.
    pub(super) fn end_silence(&self) {
        self.silent_steps.store(0, Ordering::Relaxed);
    }

    /// The generator has ended the call.
    pub(super) fn set_ended(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }
}

#[pymethods]
impl Slot {
    /// Its number, from 0 on. No other call has it at the same time.
    #[getter(index)]
    fn number(&self) -> usize {
        self.index
    }

    /// The params of the call.
    #[getter]
    fn params(&self, py: Python<'_>) -> Py<PyAny> {
        self.params.clone_ref(py)
    }

    /// The context of the call.
    #[getter]
    fn context(&self, py: Python<'_>) -> Py<PyAny> {
        self.context.clone_ref(py)
    }

    fn __repr__(&self) -> String {
        format!("<ucall.Slot {}>", self.index)
    }
}
