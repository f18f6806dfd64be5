//! See `ucall_fuzz::websocket`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::websocket::run(input));
