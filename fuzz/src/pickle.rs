//! The data-only reader of pickles, with a builder that makes a model of each object.
//!
//! What must hold whatever comes, seen from the builder's side: an object changes only in a way
//! that it was made to accept, only where it was made, and never after it was consumed; its state
//! is set once; what it makes takes at most the bytes that the limits allow, by CPython's sizes;
//! keys that are hashed nest at most as deep as values may, and hashing and comparing them costs at
//! most as much as the limits allow; no container has more keys of one hash. A value that is
//! returned nests no deeper and has no more values than the limits say, unless it holds itself.
//!
//! An input is a pickle without its head, or a script from which `program` writes one that is
//! mostly right, so that mutations of it reach deep.

mod graph;
mod model;
mod program;

use ucall_pickle::{Limits, Reader};

use self::model::Model;

/// Longer ones take too long to look at twice.
const PICKLE_BYTES_MAX: usize = 1 << 16;

/// Reads the pickle that `input` is, or says how to write.
///
/// # Panics
/// When a promise is broken.
pub fn run(input: &[u8]) {
    let Some((&how, rest)) = input.split_first() else { return };
    let limits = match how & 6 {
        0 => Limits::default(),
        2 => Limits { depth_max: 12, expansion_max: 8, alike_max: 3 },
        4 => Limits { depth_max: 12, ..Limits::default() },
        _ => Limits { depth_max: 1500, expansion_max: 2000, alike_max: 20 },
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

/// The pickle that an input stands for, for those who want to look at it.
pub fn pickle_of(input: &[u8]) -> Vec<u8> {
    match input.split_first() {
        Some((&how, rest)) if how & 1 == 1 => [&[0x80, 5], &program::pickle_of(rest)[..]].concat(),
        Some((_, rest)) => [&[0x80, 5], rest].concat(),
        None => Vec::new(),
    }
}
