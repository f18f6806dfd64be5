//! Memory that was freed, and that the allocator keeps.

/// Returns freed memory to the system. The allocator of glibc keeps the memory of large requests
/// if a small block lies behind it. It takes some milliseconds for 100 MiB.
pub fn release_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only touches what is freed, and may be called by any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
