//! A forked child that drops an inherited engine does not affect the parent, and detects that it is
//! a child.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod skipped;

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ucall_engine::uring::{Config, Features, Uring};
use ucall_engine::{Completion, Engine, OwningProcess, bind};

#[test]
fn a_child_is_not_the_process_that_something_was_made_in() {
    let (before, again) = (OwningProcess::current(), OwningProcess::current());
    assert!(before == again && before.is_current());
    before.end_child();
    let mut ends = [0; 2];
    // SAFETY: the array has room for both ends.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child does nothing but async-signal-safe calls, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = OwningProcess::current();
        let is_told = !before.is_current() && own.is_current() && own != before;
        // SAFETY: both descriptors are open; a child that does not detect the fork exits with
        // another status.
        unsafe {
            libc::dup2(ends[1], libc::STDERR_FILENO);
            if !is_told {
                libc::_exit(2);
            }
        }
        own.end_child();
        before.end_child();
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 1);
    let mut said = [0; 1024];
    // SAFETY: the buffer has room for that many bytes, and the child has written some.
    let len = unsafe { libc::read(ends[0], said.as_mut_ptr().cast(), said.len()) };
    let said = String::from_utf8_lossy(&said[..len as usize]);
    assert!(said.starts_with("ucall: a forked child has returned"), "{said}");
    assert!(before.is_current(), "the parent goes on");
}

#[test]
fn a_child_may_drop_the_engine() {
    let features = match Features::probe() {
        Ok(features) => features,
        Err(unavailable) => return skipped::report(&unavailable),
    };
    let mut engine = Uring::new(Config::default(), features).unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = listener.local_addr().unwrap();
    engine.listen(listener).unwrap();
    engine.wait(Some(Instant::now()), &mut Vec::new()).unwrap();
    // SAFETY: the child only drops the engine and exits, without code that would wait for the
    // parent's other threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(engine);
        // SAFETY: ends the process.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` is valid for the write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child crashed");
    // The parent's engine still works.
    TcpStream::connect(address).unwrap().write_all(b"hello").unwrap();
    let mut completions = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    engine.wait(Some(deadline), &mut completions).unwrap();
    assert!(matches!(completions[0], Completion::Accepted { .. }));
}
