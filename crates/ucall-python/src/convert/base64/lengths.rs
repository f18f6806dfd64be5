//! Lengths of base64 text and of the bytes that it encodes.

/// The bytes of a group, and the characters that encode it.
pub(crate) const GROUP_BYTES: usize = 3;
pub(crate) const GROUP_CHARACTERS: usize = 4;

/// The length of the text of that many bytes.
pub(crate) fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(GROUP_BYTES).saturating_mul(GROUP_CHARACTERS)
}

/// The number of bytes that a text encodes, by its length and padding.
pub(crate) fn decoded_len(text: &[u8]) -> Option<usize> {
    let padding = match text {
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    let bytes = text.len() / GROUP_CHARACTERS * GROUP_BYTES;
    text.len().is_multiple_of(GROUP_CHARACTERS).then(|| bytes - padding)
}
