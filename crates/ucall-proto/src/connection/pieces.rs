//! Bodies of HTTP requests that are taken from the input as they arrive: in chunks, in a content
//! coding, or both.
//!
//! | the body | its bytes go | and then |
//! |---|---|---|
//! | in chunks | to the body | |
//! | in a coding, with a Content-Length | to the encoded bytes | through the decoder to the body |
//! | in a coding, in chunks | the same | the same |
//!
//! A few bytes may be decoded to many. A step decodes one piece of the body; if encoded bytes are
//! left, the connection reads nothing until the next turn has decoded another piece. The limits
//! apply after each piece, so that memory is bounded by them and one piece more.

use crate::Limits;
use crate::coding::{Coding, DecodeError, Decoder};
use crate::http1::{
    BodyLength, ChunkedDecoder, ChunkedLimits, ContentCoding, Head, HttpError, without_headers,
};
use crate::rpc::DocumentOutline;

/// The most that one step decodes.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// The most that one step decodes it from: a block without output costs the tables of its code.
const ENCODED_PIECE_BYTES: usize = 8 << 10;
/// A body may be decoded to this much whatever its length.
const RATIO_FREE_BYTES: usize = 64 << 10;

/// A body that arrives in pieces, and its request's head.
#[derive(Debug)]
pub(super) struct PiecewiseBody {
    /// The foreign origin that may read the reply.
    pub(super) allowed_origin: Option<Box<[u8]>>,
    pub(super) head: Vec<u8>,
    /// The longest body, decoded.
    bytes_max: usize,
    framing: Framing,
    coded: Option<CodedBody>,
    pub(super) body: Vec<u8>,
    /// The requests of a long body.
    pub(super) outline: DocumentOutline,
}

/// How the end of the body is found.
#[derive(Debug)]
enum Framing {
    Chunked { decoder: ChunkedDecoder, has_ended: bool },
    Length { missing: usize },
}

/// What has arrived of a body in a coding, and is not decoded.
#[derive(Debug)]
pub(super) struct CodedBody {
    decoder: Decoder,
    encoded: Vec<u8>,
    /// The encoded bytes that are decoded.
    used: usize,
    /// Those that earlier pieces of the input had.
    used_before: usize,
    /// Whether the decoder has a part of the body that did not fit into the last piece.
    has_more: bool,
}

impl PiecewiseBody {
    /// The body that follows a head, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// It is in a coding that is not supported, or larger than the limit.
    pub(super) fn new(head: &Head<'_>, bytes_max: usize) -> Result<Self, HttpError> {
        let coded = coded_body(head, bytes_max)?;
        let framing = match head.body() {
            BodyLength::Coded(length) => {
                Framing::Length { missing: usize::try_from(length).unwrap_or(usize::MAX) }
            }
            _ => Framing::Chunked { decoder: ChunkedDecoder::default(), has_ended: false },
        };
        // Handlers see the body as if it had been sent without a coding.
        let text = match coded {
            Some(_) => without_headers(head.bytes(), &["Content-Encoding", "Content-Length"]),
            None => head.bytes().to_vec(),
        };
        let (body, outline) = (Vec::new(), DocumentOutline::default());
        Ok(Self { allowed_origin: None, head: text, bytes_max, framing, coded, body, outline })
    }

    pub(super) fn held_bytes(&self) -> usize {
        let coded = self.coded.as_ref().map_or(0, CodedBody::held_bytes);
        self.head.len() + self.body.capacity() + coded
    }

    /// The bytes of the body that have arrived.
    pub(super) fn received_len(&self) -> usize {
        self.coded.as_ref().map_or(self.body.len(), CodedBody::received_len)
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.coded.as_ref().is_some_and(CodedBody::has_undecoded)
    }

    /// Takes bytes of the input, and decodes a piece. Returns how many bytes were taken.
    pub(super) fn receive(&mut self, input: &[u8], limits: &Limits) -> Result<usize, HttpError> {
        let into = self.coded.as_mut().map_or(&mut self.body, |coded| &mut coded.encoded);
        let taken = self.framing.take(input, into, self.bytes_max, limits)?;
        self.decode(limits)?;
        Ok(taken)
    }

    pub(super) fn decode(&mut self, limits: &Limits) -> Result<(), HttpError> {
        if let Some(coded) = &mut self.coded {
            coded.decode(&mut self.body, self.bytes_max, limits)?;
            let is_whole = coded.has_undecoded() || coded.decoder.is_at_end();
            if self.framing.has_ended() && !is_whole {
                return Err(HttpError::ContentCodingMalformed);
            }
        }
        if self.body.len() > limits.long_bytes_min {
            self.outline.scan_framed(&self.body, limits);
        }
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        self.framing.has_ended() && !self.is_decoding()
    }
}

impl Framing {
    /// Takes the bytes of the body that `input` starts with. Returns their number, with those
    /// around them.
    fn take(
        &mut self,
        input: &[u8],
        body: &mut Vec<u8>,
        bytes_max: usize,
        limits: &Limits,
    ) -> Result<usize, HttpError> {
        match self {
            Self::Chunked { decoder, has_ended } => {
                let limits = ChunkedLimits {
                    body_bytes_max: bytes_max as u64,
                    overhead_bytes_max: limits.chunk_overhead_bytes_max,
                };
                let progress = decoder.decode(input, body, &limits)?;
                *has_ended = progress.is_done;
                Ok(progress.consumed)
            }
            Self::Length { missing } => {
                let (own, _) = input.split_at(input.len().min(*missing));
                body.extend_from_slice(own);
                *missing -= own.len();
                Ok(own.len())
            }
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Chunked { has_ended, .. } => *has_ended,
            Self::Length { missing } => *missing == 0,
        }
    }
}

impl CodedBody {
    fn new(coding: Coding) -> Option<Self> {
        Decoder::new(coding).map(|decoder| Self::of(decoder, Vec::new()))
    }

    /// What has arrived for this decoder.
    pub(super) fn of(decoder: Decoder, encoded: Vec<u8>) -> Self {
        Self { decoder, encoded, used: 0, used_before: 0, has_more: false }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.encoded.capacity() + self.decoder.held_bytes()
    }

    pub(super) fn received_len(&self) -> usize {
        self.used_before + self.encoded.len()
    }

    pub(super) fn has_undecoded(&self) -> bool {
        self.has_more || self.used < self.encoded.len()
    }

    /// Decodes a piece, and appends it to the body.
    pub(super) fn decode(
        &mut self,
        body: &mut Vec<u8>,
        bytes_max: usize,
        limits: &Limits,
    ) -> Result<(), HttpError> {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let rest = self.encoded.get(self.used..).unwrap_or_default();
        let rest = rest.get(..ENCODED_PIECE_BYTES).unwrap_or(rest);
        let decoded = self.decoder.decode(rest, &mut piece).map_err(|error| match error {
            DecodeError::Malformed => HttpError::ContentCodingMalformed,
            DecodeError::WindowTooLarge => HttpError::ZstdWindowTooLarge,
        })?;
        if decoded.used == 0 && piece.is_empty() && !rest.is_empty() {
            return Err(HttpError::ContentCodingMalformed);
        }
        self.used += decoded.used;
        self.has_more = decoded.has_more;
        self.check(body.len() + piece.len(), bytes_max, limits)?;
        body.extend_from_slice(&piece);
        if self.used == self.encoded.len() {
            self.used_before += self.used;
            self.used = 0;
            self.encoded.clear();
        }
        Ok(())
    }

    /// Checks the length of what was decoded so far.
    fn check(&self, len: usize, bytes_max: usize, limits: &Limits) -> Result<(), HttpError> {
        if len > bytes_max {
            return Err(HttpError::DecodedBodyTooLarge { limit: bytes_max as u64 });
        }
        let allowed = (self.used_before + self.used).saturating_mul(limits.body_ratio_max);
        if len > allowed.max(RATIO_FREE_BYTES) {
            let limit = limits.body_ratio_max as u64;
            return Err(HttpError::BodyRatioTooLarge { limit });
        }
        Ok(())
    }
}

/// What decodes the body of a request; `None` if that has no coding.
fn coded_body(head: &Head<'_>, bytes_max: usize) -> Result<Option<CodedBody>, HttpError> {
    if let BodyLength::Coded(length) = head.body()
        && length > bytes_max as u64
    {
        return Err(HttpError::BodyTooLarge { limit: bytes_max as u64 });
    }
    match head.coding() {
        ContentCoding::Identity => Ok(None),
        ContentCoding::Known(coding) => match CodedBody::new(coding) {
            Some(coded) => Ok(Some(coded)),
            None => Err(HttpError::Overloaded),
        },
        ContentCoding::Unknown => Err(HttpError::ContentCodingUnsupported),
    }
}
