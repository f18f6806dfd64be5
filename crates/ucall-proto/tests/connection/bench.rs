//! Nanoseconds a call of the whole connection, without sockets and languages:
//! `cargo test --release -p ucall-proto --test connection -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use ucall_proto::{Call, CallOutcome, Limits, Reply, Service};

use crate::harness::{Driver, post, sum};

/// Sends the same reply to every call, so that only the connection is measured.
struct Constant;

impl Service for Constant {
    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        black_box(call.params);
        reply.result().extend_from_slice(b"76");
        CallOutcome::Done
    }
}

fn measure(name: &str, request: &str, calls: usize) {
    measure_on(Driver::serving(Constant, Limits::default()), name, request.as_bytes(), calls);
}

fn measure_on(mut driver: Driver<Constant>, name: &str, request: &[u8], calls: usize) {
    let mut bytes = request.to_vec();
    let rounds = 2_000_000 / calls;
    let started = Instant::now();
    for _ in 0..rounds {
        driver.receive_in_place(black_box(&mut bytes));
        driver.out.clear();
    }
    let nanos = started.elapsed().as_nanos() as f64 / (rounds * calls) as f64;
    println!("{name}: {nanos:.0} ns a call");
}

fn batch(calls: u32) -> String {
    format!("[{}]", (0..calls).map(sum).collect::<Vec<_>>().join(","))
}

#[test]
#[ignore = "a measurement"]
fn http() {
    measure("http", &post(&sum(1)), 1);
}

#[test]
#[ignore = "a measurement"]
fn raw() {
    measure("raw", &sum(1), 1);
}

#[test]
#[ignore = "a measurement"]
fn websocket() {
    let text = sum(1);
    // A mask of zeros, so that the frame is the same after each call.
    let frame = [&[0x81, 0x80 | text.len() as u8, 0, 0, 0, 0][..], text.as_bytes()].concat();
    let driver = Driver::serving(Constant, Limits::default()).upgraded();
    measure_on(driver, "websocket", &frame, 1);
}

#[test]
#[ignore = "a measurement"]
fn http_batch() {
    measure("http, batch of 100", &post(&batch(100)), 100);
}
