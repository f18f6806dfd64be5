//! Moves bytes between sockets and the layers above. Never sees a protocol.
//!
//! One trait, [`Engine`], stands on io_uring ([`uring`]) and on readiness polling ([`posix`]);
//! [`fake`] plays both in memory and breaks on command. One conformance suite runs against all
//! three. The crate imports `ucall-buffer` and nothing else of the workspace.

mod completion;
mod engine;
mod id;

pub use completion::{Arrival, Completion, Readiness};
pub use engine::{Engine, SendState, Waker};
pub use id::Id;
