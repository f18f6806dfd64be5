//! Streams: generator functions, whose items reach their callers one by one.
//!
//! A [`Stream`] is what a running generator shares with its worker: the calls that it answers
//! (several for a batch), and how many of their items wait. Items pass the queue of outcomes, so
//! the reply comes after them. A caller that takes no items gets a list of all.
//!
//! | a generator runs | by | and waits for room |
//! |---|---|---|
//! | on the worker's thread | `inline.rs`, some items a turn | in its stream |
//! | as a task | `sink.rs` and `python/ucall/_server/streams.py` | by a future |
//! | in a thread of the pool | `threaded.rs` | by a condition variable |
//!
//! [`StreamIo`] is the worker's side of all its streams.
//!
//! Other functions have [`Reports`], which take the same way to the caller.
//!
//! All steps of a generator and its `close()` run in the variables (`contextvars`) of its call.

mod call;
mod context;
mod end;
mod generator;
mod inline;
mod io;
mod parts;
mod polled;
mod ready;
mod reports;
mod sink;
mod slots;
mod start;
mod state;
mod stream;
mod threaded;

pub(crate) use call::{ItemTarget, NewCall};
pub(crate) use context::StreamContext;
pub(crate) use end::EndType;
pub(crate) use generator::Generator;
pub(crate) use io::StreamIo;
pub(crate) use parts::Room;
pub(crate) use reports::{ProgressTarget, Reports, progress_text, report_text};
pub(crate) use sink::ItemSink;
pub(crate) use slots::{Slot, Slots, rank, start_generator};
pub(crate) use stream::{Stream, StreamedCall};
pub(crate) use threaded::iterate;
