//! See `ucall_fuzz::tls`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::tls::run(input));
