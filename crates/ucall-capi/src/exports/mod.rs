//! The functions of the header, which says what each does.
//!
//! Every one checks its pointers, stands behind [`catch_panic`](crate::boundary::catch_panic), and
//! writes its outputs last.

mod deferral;
mod params;
mod reply;
mod server;

pub use deferral::*;
pub use params::*;
pub use reply::*;
pub use server::*;
