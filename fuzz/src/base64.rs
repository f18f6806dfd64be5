//! The base64 that params and results carry, against the `base64` crate.

use ::base64::Engine;
use ::base64::engine::general_purpose::STANDARD as REFERENCE;
use base64_simd::STANDARD;

/// Any text decodes to the same bytes or to none, and any bytes are written the same.
///
/// # Panics
/// When they do not.
pub fn run(input: &[u8]) {
    let decoded = STANDARD.decode_to_vec(input).ok();
    assert_eq!(decoded, REFERENCE.decode(input).ok());
    if let (Some(decoded), Ok(len)) = (&decoded, STANDARD.decoded_length(input)) {
        // Memory of this length is made before it is filled.
        assert_eq!(decoded.len(), len);
    }
    assert_eq!(STANDARD.encode_to_string(input), REFERENCE.encode(input));
}
