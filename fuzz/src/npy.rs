//! The headers of `.npy` files. `npy.py` compares the arrays that they make with NumPy's.

use ucall_proto::arrays::npy;

/// Checks that a file that is taken has all its items, that its header can be written and read as
/// the same, and that the length of a header is known from its start alone.
///
/// # Panics
/// If it is not so.
pub fn run(input: &[u8]) {
    let start = input.get(..npy::START_BYTES).unwrap_or(input);
    let (known, whole) = (npy::header_bytes(start), npy::header_bytes(input));
    assert_eq!(known, whole);
    let Ok((tensor, items)) = npy::split(input) else { return };
    assert_eq!(known, Ok(input.len() - items.len()));
    assert_eq!(tensor.bytes(), Some(items.len()));
    let mut written = Vec::new();
    npy::write_header(&mut written, &tensor);
    assert_eq!(written.len() % 64, 0);
    written.extend_from_slice(items);
    assert_eq!(npy::split(&written), Ok((tensor, items)));
}
