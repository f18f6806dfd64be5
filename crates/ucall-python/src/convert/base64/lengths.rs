//! How long base64 is, and what it means, by its length and its end.

/// Bytes of a group, and characters that one is written as.
pub(crate) const GROUP_BYTES: usize = 3;
const GROUP_CHARACTERS: usize = 4;

/// How long the text of that many bytes is.
pub(crate) fn encoded_len(bytes: usize) -> usize {
    bytes.div_ceil(GROUP_BYTES).saturating_mul(GROUP_CHARACTERS)
}

/// How many bytes a text means, if it is base64: its end tells.
pub(super) fn decoded_len(text: &[u8]) -> Option<usize> {
    let padding = match text {
        [.., b'=', b'='] => 2,
        [.., b'='] => 1,
        _ => 0,
    };
    let bytes = text.len() / GROUP_CHARACTERS * GROUP_BYTES;
    text.len().is_multiple_of(GROUP_CHARACTERS).then(|| bytes - padding)
}
