//! What calls hold that are answered later, counted towards what all connections may hold.
//!
//! Their params are wherever they run, on threads of other languages as well. So whatever keeps
//! them keeps a [`Held`] beside them, and the worker looks once a turn at what all amount to.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::dispatch::UNCOUNTED_BYTES;

/// What the calls of one worker hold.
#[derive(Clone, Debug, Default)]
pub struct Holdings(Arc<AtomicUsize>);

/// Counts until it is dropped.
#[derive(Debug)]
pub struct Held {
    bytes: usize,
    holdings: Holdings,
}

impl Holdings {
    /// In bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.load(Relaxed)
    }

    /// Counts the params of a call, as long as the result is kept. `None` for those so short that
    /// the number of calls is limit enough.
    #[inline]
    pub fn hold(&self, bytes: usize) -> Option<Held> {
        (bytes > UNCOUNTED_BYTES).then(|| self.count(bytes))
    }

    #[cold]
    fn count(&self, bytes: usize) -> Held {
        self.0.fetch_add(bytes, Relaxed);
        Held { bytes, holdings: self.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.holdings.0.fetch_sub(self.bytes, Relaxed);
    }
}
