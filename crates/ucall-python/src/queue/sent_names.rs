//! The names in messages that are put, which the peers have to accept.

use pyo3::prelude::*;
use ucall_pickle::visit_names;
use ucall_queue::Identity;

use super::errors::{or_none, uuid};
use super::pickle;
use crate::ffi;

const FRAME: u8 = 0x95;
const FRAME_HEAD_BYTES: usize = 9;
const MEMOIZE: u8 = 0x94;
const STACK_GLOBAL: u8 = 0x93;
/// The name that `ucall.queue.utils.arrays.reducers` write for each array, which all sides accept.
const ARRAY: &[u8] = b"\x8c\x18ucall.queue.utils.arrays\x94\x8c\x05array\x94";
/// The pickler writes a longer chunk only for one long object.
const FRAME_BYTES_MAX: usize = 256 * 1024;

/// The names in the chunks of a pickle that are not accepted by default. Without lookups of names
/// it costs a search for one byte.
pub(super) fn sent_names(py: Python<'_>, chunks: &[&[u8]]) -> PyResult<Vec<String>> {
    let mut names = Vec::new();
    if !chunks.iter().any(|chunk| may_look_up(chunk)) {
        return Ok(names);
    }
    let mut outcome = Ok(());
    visit_names(chunks, |module, name| {
        let (Ok(module), Ok(name)) = (str::from_utf8(module), str::from_utf8(name)) else { return };
        match pickle::is_default(py, module, name) {
            Ok(true) => {}
            Ok(false) => {
                // The main module in a child of `multiprocessing`: see `utils/allow.py`.
                let module = if module == "__mp_main__" { "__main__" } else { module };
                names.push(format!("{module}.{name}"));
            }
            Err(error) => outcome = Err(error),
        }
    });
    outcome.map(|()| names)
}

/// Whether a lookup may be in a chunk, other than that of an array. The pickler memoizes the result
/// of each, which follows a memoized name, a name from the memo or the head of a frame.
fn may_look_up(chunk: &[u8]) -> bool {
    if chunk.len() > FRAME_BYTES_MAX {
        return false;
    }
    let is_before = |at: usize, distance, code| {
        at.checked_sub(distance).and_then(|at| chunk.get(at)) == Some(&code)
    };
    memchr::memchr_iter(STACK_GLOBAL, chunk).any(|at| {
        chunk.get(at + 1) == Some(&MEMOIZE)
            && (at == 0
                || is_before(at, 1, MEMOIZE)
                || is_before(at, 2, b'h')
                || is_before(at, 5, b'j')
                || at == FRAME_HEAD_BYTES && is_before(at, FRAME_HEAD_BYTES, FRAME))
            && !chunk.get(..at).is_some_and(|before| before.ends_with(ARRAY))
    })
}

/// Whether the peer is a communicator of this process that accepts the name. The list that it has
/// announced may be older than a call of `nq.allow`.
pub(super) fn is_accepted_here(
    py: Python<'_>,
    peer: Option<Identity>,
    name: &str,
) -> PyResult<bool> {
    let peer = peer.map(|peer| uuid(py, peer)).transpose()?;
    let accepts = py.import("ucall.queue.core.communicator")?.getattr("accepts_here")?;
    ffi::call(&accepts, [&or_none(py, peer), name.into_pyobject(py)?.as_any()])?.extract()
}
