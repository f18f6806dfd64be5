//! Replaces shared memory on systems that cannot seal it: there is none.
#![forbid(unsafe_code)]
