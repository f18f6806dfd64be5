//! The runs of a server, and the event loop that its async functions run on.
//!
//! `runner.rs` drives a worker turn by turn. `loop_driver.rs` offers that to Python: as a run
//! without an event loop, as the wait of the server's own loop, or as callbacks of a program's
//! loop. `tasks.rs` starts the task of each call of an async function. `suspended_workers.rs` keeps
//! workers between bounded runs. The Python half is `python/ucall/_server/`.
//!
//! Both halves use documented parts of asyncio only.

pub(crate) mod loop_driver;
pub(crate) mod runner;
pub(crate) mod suspended_workers;
pub(crate) mod tasks;
