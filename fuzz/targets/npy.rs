//! See `ucall_fuzz::npy`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::npy::run(input));
