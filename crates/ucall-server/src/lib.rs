//! Joins protocol and engine: procedures, dispatch, deferred calls and the worker's turn.
//!
//! Sockets are behind [`ucall_engine::Engine`], protocols behind [`ucall_proto::Connection`], and
//! languages behind [`Handler`].

mod access_log;
mod admission;
mod any_worker;
mod batching;
mod brokered_call;
mod call_access;
mod call_rates;
mod caller;
mod config;
mod connections;
mod context;
mod counters;
mod datagrams;
mod deadline;
mod deferred_calls;
mod dispatch;
mod drain;
mod engine_choice;
mod events;
mod eviction;
mod file_changes;
mod freed_memory;
mod handler;
mod health;
mod inference;
mod item_queues;
mod listeners;
mod mailbox;
mod maintenance;
mod mcp;
mod memory_waiters;
mod metrics;
mod native;
mod network;
mod outgoing;
mod overflow;
mod procedures;
pub mod process_batches;
mod protected_resource;
mod publisher;
mod routes;
mod send_queue;
mod server_message;
mod tls;
mod topics;
mod worker;

pub use access_log::{AccessLog, CallSource, LogFormat, LoggedCall};
pub use any_worker::AnyWorker;
pub use batching::{BatchLimits, Batcher, BySlot, Full, HasSlot, Waiting};
pub use brokered_call::{BrokeredCall, BrokeredReplies};
pub use call_access::CallAccess;
pub use call_rates::{CallRates, RateTable};
pub use caller::{CallId, Caller, Transport};
pub use config::{DatagramConfig, WorkerConfig, XdpConfig};
pub use counters::{CounterPage, Counters, DatagramCounts, ProtocolCounts, Stats};
pub use deadline::Deadline;
pub use deferred_calls::{
    DeferredCalls, OutcomeQueue, RunLimit, RunPermit, Share, Shares, Token, overloaded,
};
pub use dispatch::unknown_method;
pub use engine_choice::sockets_allowed;
pub use file_changes::FileChangeDetector;
pub use handler::{DrainReport, Handler, Polled, Turn};
pub use health::readiness;
pub use inference::inference_readiness;
pub use mailbox::{Mailbox, Message};
pub use mcp::{ResultSchema, Tool, ToolForm};
pub use metrics::{
    BUCKETS, CallMetrics, Circuit, Histogram, Measure, MetricsPage, MetricsReader, MetricsSnapshot,
    OTHER_CODE, OTHER_METHOD, RunningCall, SeriesIndex, ServerMetrics, UpstreamCounts,
    UpstreamMetrics, WaitsFor,
};
pub use native::{
    InnerCall, NativeCall, NativeContext, NativeHandler, NativeModule, NativeOutcome,
    NativeOutcomes, NativeProcedure, NativeRequest,
};
pub use overflow::Overflow;
pub use procedures::Procedures;
pub use protected_resource::{MissingScopes, ProtectedResource};
pub use publisher::Publisher;
pub use routes::{BodyRules, PathPattern, RouteAccess};
pub use server_message::ServerMessage;
pub use tls::{IdentityFiles, Tls, TlsFiles, TlsFilesError};
pub use topics::SubscribeError;
pub use ucall_engine::EngineClock;
pub use ucall_proto::{CookieKey, Drain, MemoryBudget, Reservation};
pub use worker::Worker;
