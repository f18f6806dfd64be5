//! Workers between two bounded runs, with their connections open.
//!
//! A worker belongs to the thread that made it, so each thread keeps its own.

use std::cell::RefCell;
use std::process;

use super::runner::WorkerRunner;

thread_local! {
    static SUSPENDED: RefCell<Vec<SuspendedWorker>> = const { RefCell::new(Vec::new()) };
}

struct SuspendedWorker {
    server: u64,
    process: u32,
    runner: WorkerRunner,
}

/// Keeps the worker of a server for its next run on this thread.
pub(crate) fn suspend(server: u64, runner: WorkerRunner) {
    let suspended = SuspendedWorker { server, process: process::id(), runner };
    SUSPENDED.with_borrow_mut(|all| all.push(suspended));
}

/// Whether this thread keeps the worker of a server.
pub(crate) fn keeps(server: u64) -> bool {
    let is_kept = |suspended: &SuspendedWorker| {
        suspended.server == server && suspended.process == process::id()
    };
    SUSPENDED.try_with(|all| all.borrow().iter().any(is_kept)).unwrap_or(false)
}

/// Takes the worker of a server out, if this thread keeps it.
pub(crate) fn resume(server: u64) -> Option<WorkerRunner> {
    // A thread that exits has destroyed its list already.
    let suspended = SUSPENDED.try_with(|all| {
        let mut all = all.borrow_mut();
        let position = all.iter().position(|suspended| suspended.server == server)?;
        Some(all.swap_remove(position))
    });
    let suspended = suspended.ok().flatten()?;
    if suspended.process != process::id() {
        // The engine belongs to the parent of this forked process: not even its drop may touch it.
        std::mem::forget(suspended.runner);
        return None;
    }
    Some(suspended.runner)
}
