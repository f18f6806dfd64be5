//! TLS in memory: our ends with each other, and with input that they must refuse.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod handshake;
mod harness;
mod hello;
mod records;
mod settings;
