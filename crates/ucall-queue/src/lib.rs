//! Message queues between processes, on top of any stream of bytes.
//!
//! A **session** joins two communicators. It numbers the messages of each, keeps them until the
//! other has acknowledged them, and outlives its **link**, the stream that carries its bytes. A
//! link that breaks is replaced: both sides report in their handshake the last message that they
//! received, and continue after it. So each message arrives once and in order, however often the
//! stream is cut.
//!
//! [`SessionManager`] holds the sessions and links of one communicator. It does no I/O: bytes go in
//! by [`SessionManager::handle_received`], come out by [`SessionManager::poll_output`], and time is
//! an argument. [`driver`] moves the bytes with an engine. Other threads put messages into the
//! [`Outbox`], take them from the [`Inbox`], and read from a [`DeliveryState`] how far a peer has
//! acknowledged. They lock briefly, and are woken only if they sleep.
//!
//! [`mqtt`] carries links through an MQTT broker, also without I/O.
//!
//! The crate imports `ucall-buffer`, `ucall-engine`, and TLS from `ucall-proto`.
#![forbid(unsafe_code)]

mod accepted_names;
mod backoff;
mod batch;
mod buffer_pool;
mod decoder;
mod delivery_notifier;
mod delivery_state;
mod driver;
mod event_queue;
mod failure;
mod frame;
mod identity;
mod inbox;
mod link;
mod link_key;
mod log_queue;
mod message;
mod mqtt;
mod options;
mod outbox;
mod session;
mod session_manager;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(not(target_os = "linux"))]
#[path = "shared/unsupported.rs"]
mod shared;
mod tunnel;
mod turns;
mod unacknowledged;
mod view;

pub use accepted_names::AcceptedNames;
pub use buffer_pool::PooledBuffer;
pub use delivery_notifier::DeliveryNotifier;
pub use delivery_state::{DeliveryState, DeliveryStatus, ReceiveCredit};
pub use driver::{ConnectionState, Endpoint, ExternalLink, Handle, Security, Settings, start};
pub use event_queue::{Event, EventQueue};
pub use failure::Failure;
pub use frame::{Encoding, ProtocolError};
pub use identity::{Identity, Incarnation};
pub use inbox::{Inbox, TakeResult};
pub use log_queue::{LogLevel, LogQueue};
pub use message::{Body, Incoming, Outgoing, Segment};
pub use mqtt::Login;
pub use options::{Acknowledge, FullPolicy, Options};
pub use outbox::{Outbox, PutError, Receipt};
pub use session_manager::{Action, LinkKey, Role, SessionManager};
pub use shared::{Channel, shared_memory};
pub use tunnel::{ByteTunnel, TunnelEvent};
pub use ucall_engine::WakeFlag;
pub use view::View;
