//! Workers between two bounded runs, with their connections open.
//!
//! A worker belongs to the thread that made it, and so does its place here.

use std::cell::RefCell;
use std::process;

use crate::run::Station;

thread_local! {
    static PARKED: RefCell<Vec<Parked>> = const { RefCell::new(Vec::new()) };
}

struct Parked {
    server: u64,
    process: u32,
    station: Station,
}

/// Keeps the worker of a server for its next run on this thread.
pub(crate) fn park(server: u64, station: Station) {
    let parked = Parked { server, process: process::id(), station };
    PARKED.with_borrow_mut(|all| all.push(parked));
}

/// Takes the worker of a server out, if this thread has it.
pub(crate) fn take(server: u64) -> Option<Station> {
    // A thread that is at its end has none.
    let parked = PARKED.try_with(|all| {
        let mut all = all.borrow_mut();
        let place = all.iter().position(|parked| parked.server == server)?;
        Some(all.swap_remove(place))
    });
    let parked = parked.ok().flatten()?;
    if parked.process != process::id() {
        // A forked child has no part in its parent's engine, not even to take it down.
        std::mem::forget(parked.station);
        return None;
    }
    Some(parked.station)
}
