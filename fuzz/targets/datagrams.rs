//! See `ucall_fuzz::datagrams`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::datagrams::run(input));
