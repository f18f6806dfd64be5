//! See `ucall_fuzz::params`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::params::run(input));
