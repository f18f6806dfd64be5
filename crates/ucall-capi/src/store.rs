//! The store of a server, and its options as C has them.

use std::sync::Arc;

use ucall_store::{Durability, Store, StoreModule, StoreOptions};

use crate::boundary::{Error, ErrorCode};
use crate::server::Server;

/// `ucall_store_config_t`: 0 is the default of each.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreConfig {
    size: usize,
    max_bytes: usize,
    max_value_bytes: usize,
    max_watch_bytes: usize,
    no_durability: bool,
}

/// The size of the options of version 1.0. It does not change when fields are added.
const FIRST_SIZE: usize = size_of::<StoreConfig>();
/// Larger than the options of any version.
const SIZE_MAX: usize = 64 << 10;

impl StoreConfig {
    /// Reads the options of a program. Those that this version does not know must be zero.
    ///
    /// # Safety
    /// `config` is readable for the size in its first field.
    pub(crate) unsafe fn read(config: *const Self) -> Result<Self, Error> {
        // SAFETY: our caller says that it is readable.
        let size = match unsafe { (&raw const (*config).size).read() } {
            0 => FIRST_SIZE,
            size => size,
        };
        if !(FIRST_SIZE..=SIZE_MAX).contains(&size) {
            return Err(format!("ucall_store_config_t: {size} is no size of it").into());
        }
        // SAFETY: our caller says that so many bytes are readable.
        let newer = unsafe {
            let rest = config.cast::<u8>().add(FIRST_SIZE);
            std::slice::from_raw_parts(rest, size - FIRST_SIZE)
        };
        if newer.iter().any(|byte| *byte != 0) {
            return Err("ucall_store_config_t: a field is newer than the library".into());
        }
        // SAFETY: as above.
        Ok(unsafe { config.read() })
    }

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
