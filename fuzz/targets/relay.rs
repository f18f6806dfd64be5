//! See `ucall_fuzz::relay`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::relay::run(input));
