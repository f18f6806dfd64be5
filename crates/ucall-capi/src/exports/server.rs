//! Servers: creating, registering procedures, serving, stopping and freeing.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::boundary::{
    Error, ErrorCode, catch_panic, last_error, last_error_code, report_result, string,
};
use crate::callback::{Callback, Function};
use crate::config::Config;
use crate::handles;
use crate::server::{RunMode, Server};
use ucall_server::Stats;

/// Larger than a structure of any version.
const STRUCTURE_MAX: usize = 64 << 10;

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

/// The code of the last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn ucall_last_error_code() -> ErrorCode {
    catch_panic(ErrorCode::None, last_error_code)
}

/// Creates a server and binds its port.
///
/// # Safety
/// `config` is NULL or valid for its size, with strings as the header says; `server` is NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_init(config: *mut Config, server: *mut *const Server) -> bool {
    if !server.is_null() {
        // SAFETY: our caller says that it is writable.
        unsafe { server.write(ptr::null()) };
    }
    report_result(|| {
        if server.is_null() {
            return Err("server is NULL".into());
        }
        // SAFETY: our caller says that the configuration is valid.
        let mut whole = unsafe { Config::read(config)? };
        // SAFETY: as above.
        let made = unsafe { Server::new(&mut whole)? };
        // SAFETY: as above, and both are writable.
        unsafe {
            whole.write(config);
            let made = Arc::into_raw(Arc::new(made));
            handles::create(made);
            server.write(made);
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
        server.add(Callback { name: name.into(), function, tag, series: Box::default() })?;
        Ok(true)
    })
}

/// Removes a callback.
///
/// # Safety
/// `server` is NULL or alive; `name` is NULL or ends at its NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_remove_procedure(
    server: *const Server,
    name: *const c_char,
) -> bool {
    report_result(|| {
        // SAFETY: our caller says that it is NULL or alive.
        let server = unsafe { server.as_ref() }.ok_or("server is NULL")?;
        // SAFETY: our caller says that it ends at its NUL.
        let name = unsafe { string(name, "name")? };
        match server.remove(name) {
            true => Ok(true),
            false => Err(format!("there is no procedure {name:?}").into()),
        }
    })
}

/// `ucall_stats_t`.
#[repr(C)]
#[derive(Debug)]
pub struct ServerStats {
    calls: u64,
    accepted_connections: u64,
    open_connections: u64,
    bytes_received: u64,
    bytes_sent: u64,
    subscriptions: u64,
    dropped_messages: u64,
    received_datagrams: u64,
    sent_datagrams: u64,
    invalid_datagrams: u64,
    repeated_datagrams: u64,
    refused_datagrams: u64,
    dropped_datagrams: u64,
}

impl From<Stats> for ServerStats {
    fn from(stats: Stats) -> Self {
        Self {
            calls: stats.calls,
            accepted_connections: stats.accepted,
            open_connections: stats.connections,
            bytes_received: stats.bytes_received,
            bytes_sent: stats.bytes_sent,
            subscriptions: stats.subscriptions,
            dropped_messages: stats.dropped_messages,
            received_datagrams: stats.datagrams.received,
            sent_datagrams: stats.datagrams.sent,
            invalid_datagrams: stats.datagrams.invalid,
            repeated_datagrams: stats.datagrams.repeated,
            refused_datagrams: stats.datagrams.refused,
            dropped_datagrams: stats.datagrams.dropped,
        }
    }
}

/// Copies as many counters as the program has room for; those that this version lacks are 0.
///
/// # Safety
/// `server` is NULL or alive; `output` is NULL, or writable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_stats(
    server: *const Server,
    output: *mut ServerStats,
    size: usize,
) -> bool {
    let stats = catch_panic(None, || {
        // SAFETY: our caller says that it is NULL or alive.
        Some(ServerStats::from(unsafe { server.as_ref() }?.stats()))
    });
    let (Some(stats), false) = (stats, output.is_null()) else { return false };
    // SAFETY: our caller says that it is writable for the size.
    unsafe { write_sized(&stats, output, size) }
}

/// Writes as much of a structure as the program has room for, and zeros where this version has
/// less; `false` for a size that is none.
///
/// # Safety
/// `output` is writable for `size` bytes.
pub(super) unsafe fn write_sized<T>(value: &T, output: *mut T, size: usize) -> bool {
    if size > STRUCTURE_MAX {
        return false;
    }
    let (output, known) = (output.cast::<u8>(), size.min(size_of::<T>()));
    // SAFETY: our caller says that the bytes are writable; ours are readable.
    unsafe {
        ptr::from_ref(value).cast::<u8>().copy_to_nonoverlapping(output, known);
        output.add(known).write_bytes(0, size - known);
    }
    true
}

/// Takes one turn of a thread.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_take_call(server: *const Server, thread: u16) -> bool {
    // SAFETY: passed on to our caller.
    report_result(|| unsafe { retain(server)? }.acquire_slot(thread)?.run(RunMode::OneTurn(None)))
}

/// Takes one turn of a thread, which waits no longer than that time.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_take_call_for(
    server: *const Server,
    thread: u16,
    timeout_ms: u64,
) -> bool {
    report_result(|| {
        let until = Instant::now().checked_add(Duration::from_millis(timeout_ms));
        // SAFETY: passed on to our caller.
        unsafe { retain(server)? }.acquire_slot(thread)?.run(RunMode::OneTurn(until))
    })
}

/// The descriptor that is readable when a turn of a thread is due; -1 on failure.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_poll_fd(server: *const Server, thread: u16) -> c_int {
    let mut descriptor = -1;
    report_result(|| {
        // SAFETY: passed on to our caller.
        descriptor = unsafe { retain(server)? }.acquire_slot(thread)?.poll_descriptor()?;
        Ok(true)
    });
    descriptor
}

/// Ends the wait of a thread. Async-signal-safe, so it must not allocate, lock or panic.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_wake(server: *const Server, thread: u16) {
    // SAFETY: our caller says that it is NULL or alive.
    if let Some(server) = unsafe { server.as_ref() } {
        server.wake(thread);
    }
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
unsafe fn retain(server: *const Server) -> Result<Arc<Server>, Error> {
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

/// Drains all threads, then stops them. Async-signal-safe, so it must not allocate, lock or panic.
///
/// # Safety
/// `server` is NULL or alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ucall_drain(server: *const Server, timeout_ms: u64) {
    // SAFETY: our caller says that it is NULL or alive.
    if let Some(server) = unsafe { server.as_ref() } {
        server.drain(timeout_ms);
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
        if !handles::free(server, "ucall_free") {
            return;
        }
        // SAFETY: it came from `Arc::into_raw`, and our caller gives up the program's reference.
        let server = unsafe { Arc::from_raw(server) };
        handles::keep_address(&server);
        server.shut_down();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_freed_is_no_newer_one() {
        let mut config = Config { pick_port: 1, engine: 1, ..Config::EMPTY };
        let mut init = || {
            let mut server = ptr::null();
            // SAFETY: both are writable.
            assert!(unsafe { ucall_init(&raw mut config, &raw mut server) });
            server
        };
        let first = init();
        // SAFETY: it is alive.
        unsafe { ucall_free(first) };
        let newer = init();
        assert_ne!(first, newer);
        // SAFETY: the address of a freed server is compared alone.
        unsafe { ucall_free(first) };
        assert_eq!(last_error_code(), ErrorCode::InvalidArgument);
        // SAFETY: it is alive.
        unsafe {
            assert!(!ucall_remove_procedure(newer, c"none".as_ptr()));
            ucall_free(newer);
        }
    }
}
