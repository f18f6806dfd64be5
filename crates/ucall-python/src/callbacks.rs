//! Callbacks on the worker's thread, which report the state of a server to a service manager.

use std::time::{Duration, Instant};

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ucall_server::ServerMessage;

/// Callbacks on the worker's thread, for a service manager.
#[derive(Default)]
pub(crate) struct Callbacks {
    /// Called when a drain begins, or its delay.
    on_drain: Option<Py<PyAny>>,
    heartbeat: Option<Heartbeat>,
    /// Called with the topic and the text of what is published; with None for both when a drain
    /// begins.
    pub(crate) listener: Option<Py<PyAny>>,
}

/// A function that is called at an interval while the worker takes turns.
struct Heartbeat {
    interval: Duration,
    due: Instant,
    beat: Py<PyAny>,
}

impl Callbacks {
    pub(crate) fn new(
        on_drain: Option<Py<PyAny>>,
        heartbeat: Option<(Duration, Py<PyAny>)>,
    ) -> Self {
        let due = Instant::now();
        let heartbeat = heartbeat.map(|(interval, beat)| Heartbeat { interval, due, beat });
        Self { on_drain, heartbeat, listener: None }
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let on_drain = self.on_drain.as_ref().map(|it| it.clone_ref(py));
        let heartbeat = self.heartbeat.as_ref().map(|it| (it.interval, it.beat.clone_ref(py)));
        let listener = self.listener.as_ref().map(|it| it.clone_ref(py));
        Self { listener, ..Self::new(on_drain, heartbeat) }
    }

    /// Takes the place of others, but for the listener, which stays.
    pub(crate) fn replace(&mut self, callbacks: Self) {
        let listener = self.listener.take();
        *self = Self { listener, ..callbacks };
    }

    /// When the heartbeat is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.heartbeat.as_ref().map(|heartbeat| heartbeat.due)
    }

    pub(crate) fn beat_if_due(&mut self, py: Python<'_>, now: Instant) {
        if let Some(heartbeat) = &mut self.heartbeat
            && heartbeat.due <= now
        {
            heartbeat.due = now + heartbeat.interval;
            call(py, &heartbeat.beat);
        }
    }

    /// Reports a message that was published.
    pub(crate) fn published(&self, py: Python<'_>, message: &ServerMessage) {
        if let Some(listener) = &self.listener {
            let text = PyBytes::new(py, message.text());
            listen(py, listener, (message.topic().unwrap_or_default(), text));
        }
    }

    /// Reports that a drain, or its delay, begins. Only the first one of a run is reported.
    pub(crate) fn drain_begins(&mut self, py: Python<'_>) {
        if let Some(listener) = &self.listener {
            listen(py, listener, (py.None(), py.None()));
        }
        if let Some(on_drain) = self.on_drain.take() {
            call(py, &on_drain);
        }
    }
}

fn listen<'py>(py: Python<'py>, listener: &Py<PyAny>, arguments: impl PyCallArgs<'py>) {
    if let Err(error) = listener.call1(py, arguments) {
        error.write_unraisable(py, None);
    }
}

fn call(py: Python<'_>, callback: &Py<PyAny>) {
    if let Err(error) = callback.call0(py) {
        error.write_unraisable(py, None);
    }
}
