//! Compresses replies: whole ones, and streams item by item.

use flate2::{Compress, Compression, FlushCompress, Status};
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use super::{Coding, Flush};

/// The fastest levels: a worker compresses between other calls.
const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;
/// The logarithm of the windows of streams, whose encoders live as long as they.
const STREAM_WINDOW_BITS: u8 = 14;
const WINDOW_BITS_MAX: u8 = 15;
/// The memory of an encoder of gzip whose window is this large, rounded up.
const GZIP_HELD_BYTES: usize = 256 << 10;
/// Room for what a step may append.
const ROOM_BYTES: usize = 4 << 10;

/// Encodes one body.
pub struct Encoder {
    stream: Stream,
}

enum Stream {
    Gzip(Compress),
    Deflate(Compress),
    Zstd(CCtx<'static>),
}

impl Encoder {
    /// An encoder of a whole body.
    #[must_use]
    pub fn new(coding: Coding) -> Option<Self> {
        Self::with_window(coding, None)
    }

    /// An encoder of a stream, with a smaller window.
    #[must_use]
    pub fn of_stream(coding: Coding) -> Option<Self> {
        Self::with_window(coding, Some(STREAM_WINDOW_BITS))
    }

    /// An encoder of a message in deflate without a header (RFC 1951), with this window.
    #[must_use]
    pub fn of_deflate(window_bits: u8) -> Option<Self> {
        let level = Compression::new(GZIP_LEVEL);
        let stream = Compress::new_with_window_bits(level, false, window_bits);
        Some(Self { stream: Stream::Deflate(stream) })
    }

    fn with_window(coding: Coding, bits: Option<u8>) -> Option<Self> {
        let stream = match coding {
            Coding::Gzip => {
                let level = Compression::new(GZIP_LEVEL);
                Stream::Gzip(Compress::new_gzip(level, bits.unwrap_or(WINDOW_BITS_MAX)))
            }
            Coding::Zstd => {
                let mut context = CCtx::try_create()?;
                context.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).ok()?;
                if let Some(bits) = bits {
                    context.set_parameter(CParameter::WindowLog(bits.into())).ok()?;
                }
                Stream::Zstd(context)
            }
        };
        Some(Self { stream })
    }

    /// Encodes what follows the input of earlier calls, and appends it to `out`.
    pub fn encode(&mut self, input: &[u8], flush: Flush, out: &mut Vec<u8>) {
        match &mut self.stream {
            Stream::Gzip(stream) | Stream::Deflate(stream) => {
                encode_gzip(stream, input, flush, out)
            }
            Stream::Zstd(context) => encode_zstd(context, input, flush, out),
        }
    }

    /// The memory of the encoder.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.stream {
            Stream::Gzip(_) | Stream::Deflate(_) => GZIP_HELD_BYTES,
            Stream::Zstd(context) => context.sizeof(),
        }
    }
}

fn encode_gzip(stream: &mut Compress, mut input: &[u8], flush: Flush, out: &mut Vec<u8>) {
    let flush = match flush {
        Flush::Item => FlushCompress::Sync,
        Flush::End => FlushCompress::Finish,
    };
    loop {
        out.reserve(ROOM_BYTES);
        let (before, filled) = (stream.total_in(), out.len());
        let status = stream.compress_vec(input, out, flush);
        let used = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
        input = input.get(used..).unwrap_or_default();
        let is_over = match status {
            Ok(Status::StreamEnd) | Err(_) => true,
            // A flush is complete once it leaves room.
            Ok(_) => input.is_empty() && out.len() < out.capacity(),
        };
        if is_over || (used == 0 && out.len() == filled) {
            return;
        }
    }
}

fn encode_zstd(context: &mut CCtx<'_>, input: &[u8], flush: Flush, out: &mut Vec<u8>) {
    let end = match flush {
        Flush::Item => ZSTD_EndDirective::ZSTD_e_flush,
        Flush::End => ZSTD_EndDirective::ZSTD_e_end,
    };
    let mut input = InBuffer::around(input);
    loop {
        out.reserve(ROOM_BYTES);
        let filled = out.len();
        let mut output = OutBuffer::around_pos(out, filled);
        if matches!(context.compress_stream2(&mut output, &mut input, end), Ok(0) | Err(_)) {
            return;
        }
    }
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let coding = match self.stream {
            Stream::Gzip(_) => Coding::Gzip.name(),
            Stream::Deflate(_) => "deflate",
            Stream::Zstd(_) => Coding::Zstd.name(),
        };
        formatter.debug_tuple("Encoder").field(&coding).finish()
    }
}
