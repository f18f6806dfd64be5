//! Moves bytes between sockets and the layers above, without knowing any protocol.
//!
//! The trait [`Engine`] has an implementation on io_uring ([`uring`]) and one on readiness polling
//! ([`posix`]); [`fake`] imitates both in memory and injects faults. One conformance suite runs
//! against all three. Of the workspace the crate imports `ucall-buffer` only.

mod address;
mod choice;
mod clock;
mod completion;
mod connect;
mod datagram;
mod descriptor_wait;
mod descriptors;
mod engine;
pub mod fake;
mod fork;
mod freed_memory;
mod id;
mod listen;
mod mailbox;
mod peer;
pub mod posix;
#[cfg_attr(not(target_os = "linux"), path = "shared/unsupported.rs")]
pub mod shared;
mod slab;
mod sync;
mod unix;
#[cfg(target_os = "linux")]
pub mod uring;
mod wait_timeout;
mod wake;
mod worker_sockets;
#[cfg_attr(not(all(target_os = "linux", feature = "xdp")), path = "xdp/unsupported.rs")]
pub mod xdp;

pub use address::{Address, Bound};
pub use choice::{EngineKind, UringUnavailable};
pub use clock::EngineClock;
pub use completion::{Arrival, Completion, Readiness};
pub use connect::{begin_connect, finish_connect};
pub use datagram::{DatagramDrops, DatagramPath, LocalAddress};
pub use descriptor_wait::{Wanted, wait_for_any};
pub use descriptors::{is_shortage, raise_descriptor_limit, too_many_descriptors};
pub use engine::{Engine, SendState, Waker};
pub use fork::OwningProcess;
pub use freed_memory::release_freed_memory;
pub use id::Id;
pub use listen::{Listener, Sharing, bind, bind_udp};
pub use mailbox::Mailbox;
pub use peer::{Peer, peer_of};
pub use socket2::SockAddr;
pub use unix::{UnixFile, bind_unix};
pub use wake::{EventCount, WakeFlag};
pub use worker_sockets::WorkerSockets;
