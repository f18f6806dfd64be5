//! Two hubs joined in memory, under a clock and with links that are cut.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod closing;
mod contract;
mod cuts;
mod explicit;
mod hostile;
mod names;
mod outage;
mod pair;
