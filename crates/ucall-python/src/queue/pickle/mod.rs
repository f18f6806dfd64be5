//! The default loader of queues: pickles as data.
//!
//! `ucall_pickle` runs the operations and keeps the budget. Here are the objects: `builder` makes
//! what every pickle has, `names` knows the names that a pickle may use, `values` and `numpy` make
//! what those names stand for from arguments that they check, and `instances` makes objects of
//! classes that the program has allowed.

mod builder;
mod error;
mod instances;
mod loader;
mod names;
mod numpy;
mod objects;
mod values;

pub(crate) use loader::PickleLoader;
