//! Says that tests of io_uring pass without running.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::Once;

/// Writes one line a process. The harness captures what `println!` writes in a test that passes.
pub fn report(reason: &dyn Display) {
    static REPORTED: Once = Once::new();
    REPORTED.call_once(|| {
        let _ = writeln!(io::stderr(), "tests of io_uring pass without running: {reason}");
    });
}
