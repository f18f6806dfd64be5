//! Stores.

use std::ffi::c_char;

use crate::boundary::{report_result, string};
use crate::server::Server;
use crate::store::StoreConfig;
use ucall_store::StoreOptions;

/// Registers the procedures of a store.
///
/// # Safety
/// `server` is NULL or alive; `name` and `path` are NULL or end at their NUL; `config` is NULL or
/// readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_add_store(
    server: *const Server,
    name: *const c_char,
    path: *const c_char,
    config: *const StoreConfig,
) -> bool {
    report_result(|| {
        // SAFETY: our caller says that it is NULL or alive.
        let server = unsafe { server.as_ref() }.ok_or("server is NULL")?;
        // SAFETY: our caller says that they end at their NUL.
        let (name, path) = unsafe { (string(name, "name")?, string(path, "path")?) };
        let options = match config.is_null() {
            true => StoreOptions::default(),
            // SAFETY: our caller says that it is readable.
            false => unsafe { StoreConfig::read(config)? }.options(),
        };
        server.add_store(name, path, options)?;
        Ok(true)
    })
}
