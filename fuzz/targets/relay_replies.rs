//! See `ucall_fuzz::relay_replies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::relay_replies::run(input));
