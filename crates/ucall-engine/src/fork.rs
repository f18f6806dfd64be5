//! Keeps a forked child from serving the connections of its parent.
//!
//! A child has all descriptors and all memory of its parent. A child that was forked in a function
//! of a server, and returns from it, would continue the server's turn on the same sockets. A
//! handler of pthread_atfork(3) counts forks in the child, so that a worker detects after each
//! function, by a load and a compare, that it runs in another process.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of forks between this process and the first [`OwningProcess::current`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The exit status of a child that is ended here.
const STATUS: i32 = 1;
const WHY: &str = "ucall: a forked child has returned from a function that a server runs, and ends \
                   here: the connections are its parent's. A child ends by _exit (in Python \
                   os._exit) or exec.\n";

/// The process that something was made in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwningProcess(u32);

impl OwningProcess {
    /// This process.
    pub fn current() -> Self {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| {
            // SAFETY: the handler is there for as long as the library is, which unregisters it when
            // it is unloaded. Without memory for it, children are not noticed.
            unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is still that process.
    #[inline(always)]
    pub fn is_current(self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Ends this process at once if it is a child of the owning process. It sends no data, flushes
    /// no buffer and runs no hook, because all of these are the parent's.
    #[inline(always)]
    pub fn end_child(self) {
        if !self.is_current() {
            end();
        }
    }
}

/// Runs in each child. It may only do what is async-signal-safe.
extern "C" fn count() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cold]
#[inline(never)]
fn end() -> ! {
    // SAFETY: pointer and length are of one text. A failed write loses only the message.
    unsafe { libc::write(libc::STDERR_FILENO, WHY.as_ptr().cast(), WHY.len()) };
    // SAFETY: ends the process, whatever state it is in.
    unsafe { libc::_exit(STATUS) }
}
