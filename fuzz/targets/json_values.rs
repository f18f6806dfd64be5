//! See `ucall_fuzz::json_values`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::json_values::run(input));
