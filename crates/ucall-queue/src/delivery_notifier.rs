//! Notifies other threads of acknowledgements, failures, session events and the end.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use ucall_engine::EventCount;

/// Notifies threads that wait for deliveries, and one callback.
#[derive(Default)]
pub struct DeliveryNotifier {
    /// Notified of acknowledgements, failures, session events and the end.
    pub progressed: EventCount,
    /// The communicator's thread has ended its work.
    is_finished: AtomicBool,
    callback: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl DeliveryNotifier {
    /// Sets a callback for messages and for all that `progressed` is notified of. The
    /// communicator's thread calls it, so it must be quick. The first callback stays.
    pub fn set_callback(&self, callback: impl Fn() + Send + Sync + 'static) {
        let _ = self.callback.set(Box::new(callback));
    }

    /// Whether all sessions are over and the address is free.
    pub fn is_finished(&self) -> bool {
        self.is_finished.load(Ordering::Acquire)
    }

    pub(crate) fn finish(&self) {
        self.is_finished.store(true, Ordering::Release);
        self.notify();
    }

    pub(crate) fn notify(&self) {
        self.progressed.notify();
        self.call_callback();
    }

    pub(crate) fn call_callback(&self) {
        if let Some(callback) = self.callback.get() {
            callback();
        }
    }
}

impl std::fmt::Debug for DeliveryNotifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("DeliveryNotifier")
    }
}
