//! See `ucall_fuzz::pickle`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::pickle::run(input));
