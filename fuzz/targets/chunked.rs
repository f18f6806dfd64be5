//! See `ucall_fuzz::chunked`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::chunked::run(input));
