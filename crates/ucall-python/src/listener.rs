//! Messages that are published, as a Python function gets them on the worker's thread.

use pyo3::prelude::*;

use crate::server::Server;

/// Sets the function that gets the topic and the text of each message that is published while
/// calls listen; and None for both when a drain begins. Call it before the server runs.
#[pyfunction]
pub(crate) fn set_listener(server: &Bound<'_, Server>, listener: Py<PyAny>) {
    let replaced = server.get().state().callbacks.listener.replace(listener);
    drop(replaced);
}

/// Sets how many calls of the running worker listen.
#[pyfunction]
pub(crate) fn set_listeners(server: &Bound<'_, Server>, count: usize) {
    let publisher = server.get().state().worker.as_ref().map(|worker| worker.publisher.clone());
    if let Some(publisher) = publisher {
        publisher.set_listeners(count);
    }
}
