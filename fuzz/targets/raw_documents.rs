//! See `ucall_fuzz::raw_documents`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::raw_documents::run(input));
