//! Nanoseconds a frame: `cargo test --release -p ucall-proto --test websocket -- --ignored
//! --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use ucall_proto::websocket::{MessageReader, unmask};

use crate::{LIMITS, TEXT, whole};

const BYTES: usize = 256 << 20;

fn measure(name: &str, len: usize, mut step: impl FnMut(&mut [u8])) {
    let mut payload = vec![b'x'; len];
    let rounds = BYTES / len.max(64);
    let started = Instant::now();
    for _ in 0..rounds {
        step(black_box(&mut payload));
    }
    let nanos = started.elapsed().as_nanos() as f64 / rounds as f64;
    println!("{name}, {len} bytes: {nanos:.1} ns, {:.1} GB/s", len as f64 / nanos);
}

fn unmask_by_bytes(payload: &mut [u8], key: [u8; 4]) {
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte ^= key[at % 4];
    }
}

#[test]
#[ignore = "a measurement"]
fn masks() {
    for len in [16, 64, 100, 1_000, 64 << 10, 16 << 20] {
        measure("words", len, |payload| unmask(payload, black_box([1, 2, 3, 4])));
        measure("bytes", len, |payload| unmask_by_bytes(payload, black_box([1, 2, 3, 4])));
    }
}

#[test]
#[ignore = "a measurement"]
fn frames() {
    for len in [64, 1_000, 64 << 10] {
        let mut reader = MessageReader::default();
        let mut frame = whole(TEXT, &vec![b'x'; len]);
        measure("frame", len, |_| {
            black_box(reader.read(black_box(&mut frame), &LIMITS)).unwrap();
        });
    }
}
