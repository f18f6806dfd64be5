//! The synchronization types of the standard library, or those of loom in its tests.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
