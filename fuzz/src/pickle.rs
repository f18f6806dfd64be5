//! The data-only reader of pickles, with a builder that makes a model of each object.
//!
//! The builder checks that, for every input:
//!
//! - an object changes only in ways that it accepts, only where it was made on the stack, and never
//!   after it was consumed; its state is set once;
//! - the objects need at most the bytes that the limits allow, by CPython's sizes;
//! - hashed keys nest no deeper than the limits allow, hashing and comparing them costs no more,
//!   and no container has more keys that share a hash;
//! - the result nests no deeper and has no more values than the limits allow, unless it contains
//!   itself.
//!
//! An input is a pickle without its PROTO operation, or a script from which `program` writes a
//! mostly valid pickle, so that mutations reach deep.

mod graph;
mod model;
mod program;

use ucall_pickle::{Limits, Reader};

use self::model::Model;

/// Longer pickles take too long.
const PICKLE_BYTES_MAX: usize = 1 << 16;

/// Reads the pickle that `input` contains or describes.
///
/// # Panics
/// When a guarantee is broken.
pub fn run(input: &[u8]) {
    let Some((&how, rest)) = input.split_first() else { return };
    let limits = match how & 6 {
        0 => Limits::default(),
        2 => Limits { depth_max: 12, expansion_max: 8, collisions_max: 3 },
        4 => Limits { depth_max: 12, ..Limits::default() },
        _ => Limits { depth_max: 1500, expansion_max: 2000, collisions_max: 20 },
    };
    let body = if how & 1 == 0 { rest.to_vec() } else { program::pickle_of(rest) };
    let mut pickle = vec![0x80, 5];
    pickle.extend(body.iter().take(PICKLE_BYTES_MAX));
    check(&pickle, limits);
}

fn check(pickle: &[u8], limits: Limits) {
    let mut model = Model::new(limits, pickle.len());
    if let Ok(object) = Reader::read(pickle, limits, &mut model) {
        model.check_returned(&object);
    }
}

/// The pickle that an input contains or describes, for debugging.
pub fn pickle_of(input: &[u8]) -> Vec<u8> {
    match input.split_first() {
        Some((&how, rest)) if how & 1 == 1 => [&[0x80, 5], &program::pickle_of(rest)[..]].concat(),
        Some((_, rest)) => [&[0x80, 5], rest].concat(),
        None => Vec::new(),
    }
}
