//! Servers: creating, registering procedures, serving, stopping and freeing.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use crate::boundary::{catch_panic, last_error, report_result, string};
use crate::callback::{Callback, Function};
use crate::config::Config;
use crate::server::{RunMode, Server};

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn ucall_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The last error of this thread; empty without one.
#[unsafe(no_mangle)]
pub extern "C" fn ucall_last_error() -> *const c_char {
    catch_panic(c"".as_ptr(), last_error)
}

/// Creates a server and binds its port.
///
/// # Safety
/// `config` is NULL or valid for `size` bytes with strings as the header says; `server` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_init_sized(
    config: *mut Config,
    size: usize,
    server: *mut *const Server,
) -> bool {
    if !server.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { server.write(ptr::null()) };
    }
    report_result(|| {
        if server.is_null() {
            return Err("server is NULL".into());
        }
        // SAFETY: our caller says that the configuration is valid.
        let mut whole = unsafe { Config::read(config, size)? };
        // SAFETY: as above.
        let made = unsafe { Server::new(&mut whole)? };
        // SAFETY: as above, and both are writable.
        unsafe {
            whole.write(config, size);
            server.write(Arc::into_raw(Arc::new(made)));
        }
        Ok(true)
    })
}

/// Registers a callback.
///
/// # Safety
/// `server` is NULL or alive; `name` is NULL or ends at its NUL; the callback may be called with
/// the tag on every thread that serves.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_add_procedure(
    server: *const Server,
    name: *const c_char,
    callback: Option<Function>,
    tag: *mut c_void,
) -> bool {
    report_result(|| {
        // SAFETY: our caller says that it is NULL or alive.
        let server = unsafe { server.as_ref() }.ok_or("server is NULL")?;
        let function = callback.ok_or("callback is NULL")?;
        // SAFETY: our caller says that it ends at its NUL.
        let name = unsafe { string(name, "name")? };
        server.add(Callback { name: name.into(), function, tag })?;
        Ok(true)
    })
}

/// Takes one turn of a thread.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_take_call(server: *const Server, thread: u16) -> bool {
    // SAFETY: passed on to our caller.
    report_result(|| unsafe { retain(server)? }.acquire_slot(thread)?.run(RunMode::OneTurn))
}

/// Takes turns of a thread until the server is stopped.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_take_calls(server: *const Server, thread: u16) -> bool {
    report_result(|| {
        // SAFETY: passed on to our caller.
        let server = unsafe { retain(server)? };
        server.acquire_slot(thread)?.run(RunMode::UntilStopped)?;
        Ok(true)
    })
}

/// A reference that keeps a server while this thread drives it, even if a callback frees it.
///
/// # Safety
/// `server` is NULL or alive.
unsafe fn retain(server: *const Server) -> Result<Arc<Server>, String> {
    if server.is_null() {
        return Err("server is NULL".into());
    }
    // SAFETY: it came from `Arc::into_raw`, and the program's own reference is not dropped.
    let programs = ManuallyDrop::new(unsafe { Arc::from_raw(server) });
    Ok(Arc::clone(&programs))
}

/// Stops all threads. Async-signal-safe, so it must not allocate, lock or panic.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_stop(server: *const Server) {
    // SAFETY: our caller says that it is NULL or alive.
    if let Some(server) = unsafe { server.as_ref() } {
        server.stop();
    }
}

/// Stops a server and frees it.
///
/// # Safety
/// `server` is NULL or alive, and is not used after.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_free(server: *const Server) {
    if server.is_null() {
        return;
    }
    catch_panic((), || {
        // SAFETY: it came from `Arc::into_raw`, and our caller gives up the program's reference.
        let server = unsafe { Arc::from_raw(server) };
        server.shut_down();
    });
}
