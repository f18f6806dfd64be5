//! One fuzz target per parser: a function that takes any bytes and panics if a promise is broken.
//!
//! cargo-fuzz drives them from `targets/` on nightly, guided by coverage, with AddressSanitizer
//! (`make fuzz`). `tests/corpus.rs` drives the same functions on stable, over the stored inputs and
//! mutations of them, in seconds (`make test-fuzz`, which CI runs).
//!
//! A comparison with another parser is made in both directions: same verdict, same value. A target
//! that splits its input takes the random seed from the first bytes, so that an input reproduces
//! its run.

pub mod base64;
pub mod chunked;
pub mod coded;
pub mod connection;
pub mod datagrams;
pub mod endpoints;
pub mod frames;
pub mod http_head;
pub mod json_stream;
pub mod json_values;
pub mod npy;
pub mod params;
pub mod pickle;
pub mod queue_frames;
pub mod queue_session;
pub mod random;
pub mod raw_documents;
mod reference;
pub mod relay;
pub mod relay_replies;
pub mod rpc_document;
pub mod tls;
pub mod websocket;
#[cfg(target_os = "linux")]
pub mod xdp_frames;

// The connection's own tests drive it in the same way.
#[path = "../../crates/ucall-proto/tests/connection/harness.rs"]
#[allow(dead_code, missing_docs, reason = "the rest is for the tests that it belongs to")]
mod harness;

#[path = "../../crates/ucall-proto/tests/tls/harness.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "the rest is for the tests that it belongs to")]
mod tls_harness;

#[path = "../../crates/ucall-proto/tests/websocket/model.rs"]
#[allow(missing_docs, clippy::unwrap_used, reason = "as above")]
mod websocket_model;

// The C API is a static library, which no other crate can use.
#[path = "../../crates/ucall-capi/src/items.rs"]
mod c_items;
#[path = "../../crates/ucall-capi/src/writer.rs"]
#[allow(dead_code, clippy::unwrap_used, missing_docs, reason = "the rest is for its exports")]
mod c_writer;

#[path = "../../crates/ucall-queue/tests/session/pair.rs"]
#[allow(dead_code, missing_docs, clippy::unwrap_used, reason = "as above")]
mod queue_pair;

/// A target by its name, with the folder of its inputs under `corpus`.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("base64", base64::run),
    ("chunked", chunked::run),
    ("coded", coded::run),
    ("connection", connection::run),
    ("datagrams", datagrams::run),
    ("endpoints", endpoints::run),
    ("frames", frames::run),
    ("http_head", http_head::run),
    ("json_stream", json_stream::run),
    ("json_values", json_values::run),
    ("npy", npy::run),
    ("params", params::run),
    ("pickle", pickle::run),
    ("queue_frames", queue_frames::run),
    ("queue_session", queue_session::run),
    ("raw_documents", raw_documents::run),
    ("relay", relay::run),
    ("relay_replies", relay_replies::run),
    ("rpc_document", rpc_document::run),
    ("tls", tls::run),
    ("websocket", websocket::run),
    #[cfg(target_os = "linux")]
    ("xdp_frames", xdp_frames::run),
];
