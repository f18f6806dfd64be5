//! See `ucall_fuzz::rpc_document`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::rpc_document::run(input));
