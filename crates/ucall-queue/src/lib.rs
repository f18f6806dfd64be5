//! Message queues between processes, on top of anything that carries bytes.
//!
//! A **session** joins two communicators. It numbers what each puts, keeps it until the other has
//! acknowledged it, and outlives its **link**, which is whatever carries the bytes just now. A
//! link that breaks is replaced: both sides say in their handshake what came last, and go on from
//! there. So each message arrives once and in order, however often the stream is cut.
//!
//! [`Hub`] holds the sessions and links of one communicator. It does no I/O: bytes go in by
//! [`Hub::receive`], come out by [`Hub::poll_output`], and time is an argument. [`driver`] moves
//! the bytes with an engine. Other threads never touch the hub: they put into the [`Outbox`], take
//! from the [`Inbox`], and see in a [`Standing`] how far a peer is; all three are locked briefly
//! and woken only when somebody sleeps.
//!
//! [`broker`] carries links through an MQTT broker, without I/O as well.
//!
//! It may import `ucall-buffer`, `ucall-engine`, and of `ucall-proto` what does TLS.

mod backoff;
mod bell;
mod broker;
mod decoder;
mod driver;
mod events;
mod failure;
mod frame;
mod hub;
mod identity;
mod inbox;
mod journal;
mod link;
mod message;
mod options;
mod outbox;
mod pool;
mod session;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(not(target_os = "linux"))]
#[path = "shared/elsewhere.rs"]
mod shared;
mod standing;
mod unacknowledged;

pub use bell::{Bell, Doorbell};
pub use broker::Login;
pub use driver::{Endpoint, Foreign, Handle, Security, Settings, start};
pub use events::Event;
pub use failure::Failure;
pub use frame::{Encoding, ProtocolError};
pub use hub::{Action, Hub, LinkKey, Role};
pub use identity::{Identity, Incarnation};
pub use inbox::{Inbox, Taken};
pub use journal::Journal;
pub use message::{Body, Incoming, Outgoing, Segment};
pub use options::{Acknowledge, Full, Options};
pub use outbox::{Outbox, Receipt, Refusal};
pub use pool::Pooled;
#[cfg(target_os = "linux")]
pub use shared::Channel;
pub use shared::{View, shared_memory};
pub use standing::{Intake, Progress, Standing};
