//! Content codings of HTTP bodies, gzip and zstd (RFC 9110, section 8.4.1), without any I/O.
//!
//! It may import `flate2` and `zstd_safe` only. A decoder takes bytes as they arrive, and fills the
//! memory that it is given and no more, so its caller bounds the work of a turn whatever a body
//! expands to. Without the feature `compression` there are no codings.

#[cfg(not(feature = "compression"))]
mod absent;
mod accept;
#[cfg(feature = "compression")]
mod decoder;
#[cfg(feature = "compression")]
mod encoder;

#[cfg(not(feature = "compression"))]
pub use absent::{Decoder, Encoder};
#[cfg(feature = "compression")]
pub use decoder::Decoder;
#[cfg(feature = "compression")]
pub use encoder::Encoder;

/// A content coding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878, with a window of at most 8 MiB (RFC 9659).
    Zstd,
}

/// What a decoder did with its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// The bytes of the input that were used.
    pub used: usize,
    /// Whether a call without more input may append more.
    pub has_more: bool,
}

/// What an encoder does after its input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// It appends all of it, so that the other side can decode it.
    Item,
    /// It ends the body.
    End,
}

/// Why a body cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// It is no data of its coding.
    Malformed,
    /// It needs a window of more than 8 MiB.
    WindowTooLarge,
}

impl Coding {
    /// The value of `Accept-Encoding` that names all codings.
    pub const ALL: &str = if cfg!(feature = "compression") { "zstd, gzip" } else { "identity" };

    /// The coding of this name, in any case; `x-gzip` is gzip (RFC 9110, section 8.4.1.3).
    #[must_use]
    pub fn named(name: &[u8]) -> Option<Self> {
        if !cfg!(feature = "compression") {
            return None;
        }
        match name {
            _ if name.eq_ignore_ascii_case(b"gzip") => Some(Self::Gzip),
            _ if name.eq_ignore_ascii_case(b"x-gzip") => Some(Self::Gzip),
            _ if name.eq_ignore_ascii_case(b"zstd") => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name in `Content-Encoding`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }
}
