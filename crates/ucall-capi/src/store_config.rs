//! The options of a store, as C has them.

use ucall_store::{Durability, StoreOptions};

/// `ucall_store_config_t`: 0 is the default of each.
#[repr(C)]
pub struct StoreConfig {
    max_bytes: usize,
    max_value_bytes: usize,
    max_watch_bytes: usize,
    no_durability: bool,
}

impl StoreConfig {
    pub(crate) fn options(&self) -> StoreOptions {
        let default = StoreOptions::default();
        let or = |value: usize, default: usize| if value == 0 { default } else { value };
        StoreOptions {
            bytes_max: or(self.max_bytes, default.bytes_max),
            value_bytes_max: or(self.max_value_bytes, default.value_bytes_max),
            watch_bytes_max: or(self.max_watch_bytes, default.watch_bytes_max),
            durability: if self.no_durability { Durability::None } else { Durability::Commit },
        }
    }
}
