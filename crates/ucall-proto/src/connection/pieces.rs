//! Bodies of HTTP requests that are taken from the input as they arrive: in chunks, in a content
//! coding, or both; and those that are passed on while they arrive (`http_stream.rs`).
//!
//! | the body | its bytes go | and then |
//! |---|---|---|
//! | in no coding | to the body | |
//! | in a coding | to the encoded bytes | through the decoder to the body |
//!
//! A few bytes may be decoded to many. A step decodes one piece of the body; if encoded bytes are
//! left, the connection reads nothing until the next turn has decoded another piece. The limits
//! apply after each piece, so that memory is bounded by them and one piece more.

use std::borrow::Cow;

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
    source: BodySource,
    pub(super) body: Vec<u8>,
    /// The requests of a long body.
    pub(super) outline: DocumentOutline,
}

/// What a body is taken from: its framing, and its coding if it has one.
#[derive(Debug)]
pub(super) struct BodySource {
    /// The longest body, decoded.
    bytes_max: usize,
    /// The bytes that have arrived, without those of the framing.
    received: usize,
    framing: Framing,
    coded: Option<CodedBody>,
}

/// How the end of the body is found.
#[derive(Clone, Debug)]
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
    /// The bytes that they were decoded to.
    decoded: usize,
    /// Whether the decoder has a part of the body that did not fit into the last piece.
    has_more: bool,
}

impl PiecewiseBody {
    /// The body that follows a head.
    pub(super) fn new(head: &Head<'_>, source: BodySource) -> Self {
        let (body, outline) = (Vec::new(), DocumentOutline::default());
        let text = source.decoded_head(head).unwrap_or_else(|| head.bytes().to_vec());
        Self { allowed_origin: None, head: text, source, body, outline }
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.head.len() + self.body.capacity() + self.source.held_bytes()
    }

    /// The bytes of the body that have arrived.
    pub(super) fn received_len(&self) -> usize {
        self.source.received
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.source.has_undecoded()
    }

    /// Takes bytes of the input, and decodes a piece. Returns how many bytes were taken.
    pub(super) fn receive(&mut self, input: &[u8], limits: &Limits) -> Result<usize, HttpError> {
        let taken = self.source.receive(input, &mut self.body, limits)?;
        self.scan(limits);
        Ok(taken)
    }

    pub(super) fn decode(&mut self, limits: &Limits) -> Result<(), HttpError> {
        self.source.decode(&mut self.body, limits)?;
        self.scan(limits);
        Ok(())
    }

    fn scan(&mut self, limits: &Limits) {
        if self.body.len() > limits.long_bytes_min {
            self.outline.scan_framed(&self.body, limits);
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.source.is_complete()
    }
}

impl BodySource {
    /// That of the body that follows a head, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// It is in a coding that is not supported, or larger than the limit.
    pub(super) fn new(head: &Head<'_>, bytes_max: usize) -> Result<Self, HttpError> {
        let coded = coded_body(head, bytes_max)?;
        let framing = match head.body() {
            BodyLength::Length(length) | BodyLength::Coded(length) => {
                Framing::Length { missing: usize::try_from(length).unwrap_or(usize::MAX) }
            }
            BodyLength::None => Framing::Length { missing: 0 },
            BodyLength::Chunked => {
                Framing::Chunked { decoder: ChunkedDecoder::default(), has_ended: false }
            }
        };
        Ok(Self { bytes_max, received: 0, framing, coded })
    }

    /// The head of the request as if the body had been sent without its coding, if it has one.
    pub(super) fn decoded_head(&self, head: &Head<'_>) -> Option<Vec<u8>> {
        self.coded.as_ref()?;
        Some(without_headers(head.bytes(), &["Content-Encoding", "Content-Length"]))
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.coded.as_ref().map_or(0, CodedBody::held_bytes)
    }

    /// The bytes that have arrived, before they are decoded.
    pub(super) fn received_len(&self) -> usize {
        self.received
    }

    pub(super) fn has_undecoded(&self) -> bool {
        self.coded.as_ref().is_some_and(CodedBody::has_undecoded)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.framing.has_ended() && !self.has_undecoded()
    }

    /// Whether the body ends within `input`.
    pub(super) fn ends_within(&self, input: &[u8], limits: &Limits) -> bool {
        let mut framing = self.framing.clone();
        let taken = framing.take(input, &mut Vec::new(), self.bytes_max, limits);
        taken.is_ok() && framing.has_ended()
    }

    /// Takes bytes of the input, and decodes a piece into `body`. Returns how many bytes were
    /// taken.
    pub(super) fn receive(
        &mut self,
        input: &[u8],
        body: &mut Vec<u8>,
        limits: &Limits,
    ) -> Result<usize, HttpError> {
        let into = self.coded.as_mut().map_or(&mut *body, |coded| &mut coded.encoded);
        let before = into.len();
        let taken = self.framing.take(input, into, self.bytes_max, limits)?;
        self.received += into.len() - before;
        self.decode(body, limits)?;
        Ok(taken)
    }

    /// Takes a part of the body from the input, which is borrowed if it can be. Returns how many
    /// bytes were taken.
    pub(super) fn receive_part<'a>(
        &mut self,
        input: &'a [u8],
        limits: &Limits,
    ) -> Result<(Cow<'a, [u8]>, usize), HttpError> {
        if let (Framing::Length { missing }, None) = (&mut self.framing, &self.coded) {
            let (part, _) = input.split_at(input.len().min(*missing));
            *missing -= part.len();
            self.received += part.len();
            return Ok((Cow::Borrowed(part), part.len()));
        }
        let mut part = Vec::new();
        let taken = self.receive(input, &mut part, limits)?;
        Ok((Cow::Owned(part), taken))
    }

    /// Decodes a piece into `body`, if there is a coding.
    pub(super) fn decode(&mut self, body: &mut Vec<u8>, limits: &Limits) -> Result<(), HttpError> {
        let Some(coded) = &mut self.coded else { return Ok(()) };
        coded.decode(body, self.bytes_max, limits)?;
        let is_whole = coded.has_undecoded() || coded.is_at_end();
        if self.framing.has_ended() && !is_whole {
            return Err(HttpError::ContentCodingMalformed);
        }
        Ok(())
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
        Self { decoder, encoded, used: 0, used_before: 0, decoded: 0, has_more: false }
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

    /// Adds bytes that follow those that have arrived.
    pub(super) fn push(&mut self, encoded: &[u8]) {
        self.encoded.extend_from_slice(encoded);
    }

    /// Whether the body may end with the decoded bytes.
    pub(super) fn is_at_end(&self) -> bool {
        self.decoder.is_at_end()
    }

    /// Decodes a piece, and appends it to the body, of which earlier pieces may be elsewhere.
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
        self.decoded += piece.len();
        self.check(bytes_max, limits)?;
        body.extend_from_slice(&piece);
        if self.used == self.encoded.len() {
            self.used_before += self.used;
            self.used = 0;
            self.encoded.clear();
        }
        Ok(())
    }

    /// Checks the length of what was decoded so far.
    fn check(&self, bytes_max: usize, limits: &Limits) -> Result<(), HttpError> {
        if self.decoded > bytes_max {
            return Err(HttpError::DecodedBodyTooLarge { limit: bytes_max as u64 });
        }
        let allowed = (self.used_before + self.used).saturating_mul(limits.body_ratio_max);
        if self.decoded > allowed.max(RATIO_FREE_BYTES) {
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
