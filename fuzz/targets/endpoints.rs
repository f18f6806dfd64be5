//! See `ucall_fuzz::endpoints`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::endpoints::run(input));
