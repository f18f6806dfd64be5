//! See `ucall_fuzz::queue_session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::queue_session::run(input));
