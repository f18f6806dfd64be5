//! See `ucall_fuzz::coded`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::coded::run(input));
