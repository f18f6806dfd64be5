//! See `ucall_fuzz::nats`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::nats::run(input));
