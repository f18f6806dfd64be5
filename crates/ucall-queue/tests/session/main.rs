//! Two hubs joined in memory, under a clock and with links that are cut.

mod contract;
mod cuts;
mod hostile;
mod world;
