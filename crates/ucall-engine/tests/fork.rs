//! A forked child that drops what it inherited harms nobody.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ucall_engine::uring::{Config, Features, Uring};
use ucall_engine::{Completion, Engine, bind};

#[test]
fn a_child_may_drop_the_engine() {
    let features = match Features::probe() {
        Ok(features) => features,
        Err(refused) => return println!("skipped: {refused}"),
    };
    let mut engine = Uring::new(Config::default(), features).unwrap();
    let listener = bind("127.0.0.1:0".parse().unwrap(), false).unwrap();
    let address = listener.local_addr().unwrap();
    engine.listen(listener).unwrap();
    engine.wait(Some(Instant::now()), &mut Vec::new()).unwrap();
    // SAFETY: the child does nothing but drop the engine and leave, without running what the
    // parent's other threads would have to finish.
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
    // The parent's engine goes on.
    TcpStream::connect(address).unwrap().write_all(b"hello").unwrap();
    let mut completions = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    engine.wait(Some(deadline), &mut completions).unwrap();
    assert!(matches!(completions[0], Completion::Accepted { .. }));
}
