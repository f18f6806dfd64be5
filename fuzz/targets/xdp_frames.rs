//! See `ucall_fuzz::xdp_frames`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| ucall_fuzz::xdp_frames::run(input));
