//! See `ucall_fuzz::frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::frames::run(input));
