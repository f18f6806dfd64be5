//! How the C allocator treats the memory of large calls.
//!
//! A call with a payload of a MiB allocates some MiB: what came, the object, the reply. By default
//! glibc hands such memory back to the system when the call is over, and each page of it is made
//! anew, by a fault, for the next call. An echo of 1 MiB took 990 µs of CPU with these faults and
//! 390 µs without (`bench/echo.py`, one machine with 2 cores). So some of it is kept.

/// Freed memory that glibc keeps at the end of a heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT_BYTES: libc::c_int = 16 << 20;

/// Blocks from this size on are mapped one by one, and go back to the system when they are freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES: libc::c_int = 8 << 20;

/// How a user tells glibc himself.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const SETTINGS: [&str; 3] = ["GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];

/// Keeps up to [`KEPT_BYTES`] of freed memory for the next call, unless the environment says how
/// memory is to be treated. Does so once in a process.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn keep_some() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if SETTINGS.iter().any(|name| std::env::var_os(name).is_some()) {
            return;
        }
        // SAFETY: sets two numbers of the allocator, under its own lock.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        }
    });
}

/// Other allocators keep memory by themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn keep_some() {}
