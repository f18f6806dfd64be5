//! Decodes bodies piece by piece.
//!
//! A body is one member of gzip or one frame of zstd, or several one after another, whose data is
//! joined (RFC 1952, section 2.2; RFC 8878, section 3). The end of a member takes some work
//! whatever its length, so a call decodes only some of them.

use flate2::{Decompress, FlushDecompress, Status};
use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use super::{Coding, DecodeError, Decoded};

/// Members that one call begins.
const MEMBERS_PER_CALL: usize = 16;
/// The logarithm of the largest window of gzip.
const GZIP_WINDOW_BITS: u8 = 15;
/// The memory of a decoder of gzip: its window and its tables, rounded up.
const GZIP_HELD_BYTES: usize = 64 << 10;
/// The logarithm of the largest window of zstd in HTTP (RFC 9659, section 3).
const ZSTD_WINDOW_BITS_MAX: u32 = 23;

/// Decodes one body.
pub struct Decoder {
    stream: Stream,
    /// Whether a member has begun and not ended.
    is_within: bool,
    /// Whether a member has ended.
    has_ended: bool,
}

enum Stream {
    Gzip(Decompress),
    Deflate(Decompress),
    Zstd(DCtx<'static>),
}

/// What one step within a member did.
struct StreamStep {
    used: usize,
    ends: bool,
}

impl Decoder {
    /// A decoder of this coding.
    #[must_use]
    pub fn new(coding: Coding) -> Option<Self> {
        let stream = match coding {
            Coding::Gzip => Stream::Gzip(Decompress::new_gzip(GZIP_WINDOW_BITS)),
            Coding::Zstd => {
                let mut context = DCtx::try_create()?;
                context.set_parameter(DParameter::WindowLogMax(ZSTD_WINDOW_BITS_MAX)).ok()?;
                Stream::Zstd(context)
            }
        };
        Some(Self { stream, is_within: false, has_ended: false })
    }

    /// A decoder of a message in deflate without a header (RFC 1951), whose last block may have any
    /// place in it.
    #[must_use]
    pub fn of_deflate() -> Option<Self> {
        let stream = Stream::Deflate(Decompress::new(false));
        Some(Self { stream, is_within: false, has_ended: false })
    }

    /// Decodes what follows the input of earlier calls. Appends to `out` up to its capacity.
    ///
    /// # Errors
    /// The body cannot be decoded; neither can what follows.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Decoded, DecodeError> {
        let (mut used, mut members) = (0, 0);
        loop {
            let rest = input.get(used..).unwrap_or_default();
            if !self.is_within {
                if rest.is_empty() || members == MEMBERS_PER_CALL {
                    return Ok(Decoded { used, has_more: false });
                }
                self.begin_member();
                members += 1;
            }
            let before = out.len();
            let step = self.stream.step(rest, out)?;
            used += step.used;
            if step.ends {
                (self.is_within, self.has_ended) = (false, true);
            } else if out.len() == out.capacity() {
                return Ok(Decoded { used, has_more: true });
            } else if step.used == 0 && out.len() == before {
                return Ok(Decoded { used, has_more: false });
            }
        }
    }

    /// Whether the body may end here.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        self.has_ended && !self.is_within
    }

    /// The memory of the decoder.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.stream {
            Stream::Gzip(_) | Stream::Deflate(_) => GZIP_HELD_BYTES,
            Stream::Zstd(context) => context.sizeof(),
        }
    }

    fn begin_member(&mut self) {
        match &mut self.stream {
            _ if !self.has_ended => {}
            Stream::Gzip(stream) => *stream = Decompress::new_gzip(GZIP_WINDOW_BITS),
            Stream::Deflate(stream) => *stream = Decompress::new(false),
            // It begins a frame by itself.
            Stream::Zstd(_) => {}
        }
        self.is_within = true;
    }
}

impl Stream {
    fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<StreamStep, DecodeError> {
        match self {
            Self::Gzip(stream) | Self::Deflate(stream) => {
                let before = stream.total_in();
                let status = stream.decompress_vec(input, out, FlushDecompress::None);
                let status = status.map_err(|_| DecodeError::Malformed)?;
                let used = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
                Ok(StreamStep { used, ends: status == Status::StreamEnd })
            }
            Self::Zstd(context) => {
                let mut input = InBuffer::around(input);
                let filled = out.len();
                let mut output = OutBuffer::around_pos(out, filled);
                match context.decompress_stream(&mut output, &mut input) {
                    Ok(hint) => Ok(StreamStep { used: input.pos(), ends: hint == 0 }),
                    Err(code) => Err(zstd_error(code)),
                }
            }
        }
    }
}

fn zstd_error(code: usize) -> DecodeError {
    let too_large = ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge as usize;
    match code.wrapping_neg() == too_large {
        true => DecodeError::WindowTooLarge,
        false => DecodeError::Malformed,
    }
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let coding = match self.stream {
            Stream::Gzip(_) => Coding::Gzip.name(),
            Stream::Deflate(_) => "deflate",
            Stream::Zstd(_) => Coding::Zstd.name(),
        };
        formatter.debug_tuple("Decoder").field(&coding).finish()
    }
}
