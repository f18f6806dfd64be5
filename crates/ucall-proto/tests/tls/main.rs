//! TLS in memory: our ends against each other, and against what they must refuse.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod handshake;
mod harness;
mod hello;
mod records;
mod settings;
