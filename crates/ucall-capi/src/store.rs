//! The store of a server, and its options as C has them.

use std::sync::Arc;

use ucall_store::{Durability, Store, StoreModule, StoreOptions};

use crate::boundary::{Error, ErrorCode};
use crate::server::Server;

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
            ..default
        }
    }
}

impl Server {
    /// Registers the procedures of the store in a directory.
    pub(crate) fn add_store(
        &self,
        name: &str,
        path: &str,
        options: StoreOptions,
    ) -> Result<(), Error> {
        let store = Arc::new(Store::new(path.into(), options));
        // Each worker opens it again: the program may fork before it serves.
        store.open().map_err(|error| Error::new(ErrorCode::Store, error))?;
        store.close();
        let module = Arc::new(StoreModule::new(name, store));
        self.procedures.insert_native(module, self.settings.call_timeout);
        Ok(())
    }
}
