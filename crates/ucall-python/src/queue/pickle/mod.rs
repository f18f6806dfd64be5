//! The default loader of queues: pickles as data.
//!
//! `ucall_pickle` runs the operations and keeps the budget. This module makes the objects:
//! `builder` the builtin ones, `values` those of the standard library and `numpy` arrays, from
//! arguments that they check, and `instances` those of classes that the program allows. `names` is
//! the table of names that a pickle may use.

mod builder;
mod error;
mod instances;
mod loader;
mod names;
mod numpy;
mod objects;
mod values;

pub(crate) use loader::PickleLoader;
pub(super) use names::is_default;
