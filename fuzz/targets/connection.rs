//! See `ucall_fuzz::connection`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::connection::run(input));
