//! Continuous batching: a generator that runs as long as there are calls, and takes others between
//! its steps.
//!
//! Such a function has one [`Stream`](super::Stream) for all of its calls, also while its generator
//! does not run. Its [`SlotTable`] has the calls that wait and those in slots.
//!
//! | a call is | until |
//! |---|---|
//! | in the queue | a slot is free at the beginning of a step; the runner reads its params then |
//! | in a slot | it ends, by the generator, its deadline or its caller |
//! | over, in its slot | the next step begins, which tells the generator (`Slots.left`) |
//! | over | the worker has taken its items |
//!
//! Only the runner, which takes the generator's steps, changes who is in a slot, and only between
//! two steps. So the generator sees the same calls for the whole of a step, and what it yields for
//! one that has ended meanwhile is dropped. A slow reader's call keeps its slot, but takes no part
//! in steps (`Slots.active`). Without a call that takes part there is no step: the generator waits
//! as other streams do (`stream.rs`), and is closed when the server ends.

mod admission;
mod objects;
mod registry;
mod start;
mod step;
mod table;

pub(crate) use objects::{Slot, Slots};
pub(super) use registry::SlotStreams;
pub(crate) use start::{rank, start_generator};
pub(super) use table::SlotTable;
