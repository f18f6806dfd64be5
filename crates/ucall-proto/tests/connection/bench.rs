//! Nanoseconds a call of the whole connection, without sockets and languages:
//! `cargo test --release -p ucall-proto --test connection -- --ignored --nocapture`.

use std::time::Instant;

use crate::harness::{Driver, post, sum};

fn measure(name: &str, request: &str, calls: usize) {
    let mut driver = Driver::new();
    let rounds = 2_000_000 / calls;
    let started = Instant::now();
    for _ in 0..rounds {
        driver.receive(request.as_bytes());
        driver.out.clear();
    }
    let nanos = started.elapsed().as_nanos() as f64 / (rounds * calls) as f64;
    println!("{name}: {nanos:.0} ns a call");
}

#[test]
#[ignore = "a measurement"]
fn nanoseconds_a_call() {
    measure("http", &post(&sum(1)), 1);
    measure("raw", &sum(1), 1);
    let batch = (0..100).map(sum).collect::<Vec<_>>().join(",");
    measure("http, batch of 100", &post(&format!("[{batch}]")), 100);
}
