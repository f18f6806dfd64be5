//! The system's allocator, which counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Allocations of this process.
pub static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

pub struct CountingAllocator;

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` took the memory from this allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    // The default `realloc` and `alloc_zeroed` call `alloc`.
}
