//! The functions of the header, which documents them.
//!
//! Each checks its pointers, runs within [`catch_panic`](crate::boundary::catch_panic), and writes
//! its outputs last.

mod buffers;
mod context;
mod deferral;
mod messages;
mod params;
mod reply;
mod request;
mod server;
#[cfg(feature = "store")]
mod store;
mod streams;
mod values;
mod writer;

pub use buffers::*;
pub use context::*;
pub use deferral::*;
pub use messages::*;
pub use params::*;
pub use reply::*;
pub use request::*;
pub use server::*;
#[cfg(feature = "store")]
pub use store::*;
pub use streams::*;
pub use values::*;
pub use writer::*;
