//! See `ucall_fuzz::base64`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::base64::run(input));
