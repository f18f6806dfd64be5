//! Reads the responses of one connection, however their bytes are split. Does no I/O.
//!
//! | state        | input                     | next                             |
//! |--------------|---------------------------|----------------------------------|
//! | `Head`       | a head of status 1xx      | `Head`, up to the limit          |
//! | `Head`       | a head, also that of 101  | `Sized`, `Chunked`, `UntilClose` |
//! | `Sized`      | the last byte             | `Head`, with a body              |
//! | `Chunked`    | the last chunk            | `Head`, with a body              |
//! | `UntilClose` | the end of the connection | `Head`, with a body              |
//!
//! A body that is in one piece is not copied. A caller that receives into
//! [`ResponseReader::space`] has a long one where it stays. A declared length is checked against
//! the limit before memory is reserved for it.

use std::borrow::Cow;
use std::mem;

use super::chunked::{ChunkedDecoder, ChunkedLimits};
use super::coded_response::CodedResponse;
use super::error::HttpError;
use super::response_head::{
    ResponseBodyLength, ResponseError, ResponseHead, parse_response_head, unaccepted_coding,
};

/// Bytes of one head.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// Heads of status 1xx before one response.
const INFORMATIONAL_MAX: usize = 100;
/// Chunk extensions and trailers of one response.
const CHUNK_OVERHEAD_BYTES_MAX: usize = 64 * 1024;

/// A part of a response that is complete.
#[derive(Debug)]
pub enum ResponsePart<'a> {
    /// The head. Its body follows, perhaps an empty one.
    Head(ResponseHead),
    /// The body, without the parts that were taken.
    Body(Cow<'a, [u8]>),
}

type ReadResult<'a> = Result<(usize, Option<ResponsePart<'a>>), ResponseError>;

/// Splits the bytes of one connection into responses.
#[derive(Debug)]
pub struct ResponseReader {
    state: ReaderState,
    /// An incomplete head, or what has arrived of a body.
    partial: Vec<u8>,
    informational: usize,
    body_bytes_max: usize,
    /// Whether the caller limits the parts of this body.
    is_unlimited: bool,
    /// Whether bodies may have a coding.
    accepts_codings: bool,
    /// The body in progress, if it has one.
    coded: Option<Box<CodedResponse>>,
}

#[derive(Debug)]
enum ReaderState {
    Head,
    /// The length of the body, without the parts that were taken.
    Sized(usize),
    Chunked(ChunkedDecoder),
    UntilClose,
}

impl ResponseReader {
    /// A reader of responses with bodies of at most `body_bytes_max` bytes.
    pub fn new(body_bytes_max: usize) -> Self {
        Self {
            state: ReaderState::Head,
            partial: Vec::new(),
            informational: 0,
            body_bytes_max,
            is_unlimited: false,
            accepts_codings: false,
            coded: None,
        }
    }

    /// Reads bodies that may be in gzip or zstd, too, and decodes them. A body of at most
    /// `body_bytes_max` bytes has that length when it is decoded.
    #[must_use]
    pub fn accepting_codings(self) -> Self {
        Self { accepts_codings: true, ..self }
    }

    /// Reads up to the end of a head or a body. Returns how much of `input` it has read, and that
    /// part; without one it has read everything, or [`take_part`](Self::take_part) has a part of a
    /// body in a coding, after which it reads on.
    ///
    /// # Errors
    /// See [`ResponseError`].
    #[inline]
    pub fn read<'a>(&mut self, input: &'a [u8]) -> ReadResult<'a> {
        match self.coded.is_some() {
            false => self.read_encoded(input),
            true => self.read_coded(input),
        }
    }

    /// Reads a body as it was sent.
    #[inline]
    fn read_encoded<'a>(&mut self, input: &'a [u8]) -> ReadResult<'a> {
        match &mut self.state {
            ReaderState::Head => self.read_head(input),
            ReaderState::Sized(len) => {
                let missing = len.saturating_sub(self.partial.len());
                let Some((end, _)) = input.split_at_checked(missing) else {
                    self.partial.extend_from_slice(input);
                    return Ok((input.len(), None));
                };
                self.state = ReaderState::Head;
                if self.partial.is_empty() {
                    return Ok((missing, Some(ResponsePart::Body(end.into()))));
                }
                self.partial.extend_from_slice(end);
                Ok((missing, Some(ResponsePart::Body(mem::take(&mut self.partial).into()))))
            }
            ReaderState::Chunked(_) => self.read_chunks(input),
            ReaderState::UntilClose => {
                self.partial.extend_from_slice(input);
                self.check_size(self.partial.len())?;
                Ok((input.len(), None))
            }
        }
    }

    /// Where to receive the next bytes, and how many at most: into the body, after which
    /// [`read`](Self::read) gets no input, or into `buffer`.
    #[inline]
    pub fn space<'a>(&'a mut self, buffer: &'a mut Vec<u8>) -> (&'a mut Vec<u8>, usize) {
        match self.state {
            _ if self.coded.is_some() => (buffer, usize::MAX),
            ReaderState::Sized(len) => {
                let missing = len.saturating_sub(self.partial.len());
                self.partial.reserve_exact(missing);
                (&mut self.partial, missing)
            }
            ReaderState::UntilClose => (&mut self.partial, usize::MAX),
            ReaderState::Head | ReaderState::Chunked(_) => (buffer, usize::MAX),
        }
    }

    /// After a head: the caller takes and limits the parts of this body, unless its length is
    /// declared.
    pub fn lift_limit(&mut self) {
        self.is_unlimited = true;
    }

    /// Takes what has arrived of an incomplete body.
    pub fn take_part(&mut self) -> Vec<u8> {
        match &mut self.coded {
            Some(coded) => coded.take_decoded(),
            None => self.take_encoded(),
        }
    }

    fn take_encoded(&mut self) -> Vec<u8> {
        match &mut self.state {
            ReaderState::Head => return Vec::new(),
            ReaderState::Sized(len) => *len = len.saturating_sub(self.partial.len()),
            ReaderState::Chunked(_) | ReaderState::UntilClose => {}
        }
        mem::take(&mut self.partial)
    }

    /// The connection has ended. Returns the body that ends with it, if there is one.
    ///
    /// # Errors
    /// It is no whole data of its coding.
    pub fn end(&mut self) -> Result<Option<Vec<u8>>, ResponseError> {
        if !matches!(self.state, ReaderState::UntilClose) {
            return Ok(None);
        }
        self.state = ReaderState::Head;
        match self.coded.take() {
            Some(coded) => coded.finish().map(Some),
            None => Ok(Some(mem::take(&mut self.partial))),
        }
    }

    /// Whether no byte of a response has arrived, but white space.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, ReaderState::Head) && self.partial.trim_ascii_start().is_empty()
    }

    /// Memory of an incomplete response.
    pub fn held_bytes(&self) -> usize {
        self.partial.capacity() + self.coded.as_ref().map_or(0, |coded| coded.held_bytes())
    }

    /// Reads a body in a coding: all of it, unless the caller takes it in parts.
    #[cold]
    fn read_coded<'a>(&mut self, input: &'a [u8]) -> ReadResult<'a> {
        let mut used = 0;
        while let Some(coded) = &mut self.coded {
            while coded.has_undecoded() {
                coded.decode_piece(self.body_bytes_max, self.is_unlimited)?;
                if self.is_unlimited && coded.has_decoded() {
                    return Ok((used, None));
                }
            }
            if coded.has_ended() {
                break;
            }
            let (now, part) = self.read_encoded(input.get(used..).unwrap_or_default())?;
            used += now;
            let (encoded, has_ended) = match part {
                Some(ResponsePart::Body(end)) => (end, true),
                _ => (self.take_encoded().into(), false),
            };
            if encoded.is_empty() && !has_ended {
                return Ok((used, None));
            }
            if let Some(coded) = &mut self.coded {
                coded.append(&encoded, has_ended);
            }
        }
        let body = self.coded.take().map(|coded| coded.finish()).transpose()?;
        Ok((used, body.map(|body| ResponsePart::Body(body.into()))))
    }

    /// Heads of status 1xx are skipped.
    fn read_head<'a>(&mut self, input: &'a [u8]) -> ReadResult<'a> {
        let mut used = 0;
        let head = loop {
            let before = self.partial.len();
            let Some(head) = self.parse_head(input.get(used..).unwrap_or_default())? else {
                return Ok((input.len(), None));
            };
            used += head.len.saturating_sub(before);
            match head.status {
                // The connection switches to another protocol after it.
                101 | 200.. => break head,
                _ if self.informational == INFORMATIONAL_MAX => {
                    let what = format!("more than {INFORMATIONAL_MAX} heads of status 1xx");
                    return Err(ResponseError::Invalid(what));
                }
                _ => self.informational += 1,
            }
        };
        (self.informational, self.is_unlimited) = (0, false);
        if let Some(coding) = head.coding {
            let coded = Some(coding).filter(|_| self.accepts_codings).and_then(CodedResponse::new);
            self.coded = Some(Box::new(coded.ok_or_else(unaccepted_coding)?));
        }
        self.state = match head.body {
            ResponseBodyLength::Sized(len) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                self.check_size(len)?;
                ReaderState::Sized(len)
            }
            ResponseBodyLength::Chunked => ReaderState::Chunked(ChunkedDecoder::default()),
            ResponseBodyLength::UntilClose => ReaderState::UntilClose,
        };
        Ok((used, Some(ResponsePart::Head(head))))
    }

    /// The head that ends in `input`. An incomplete one is parsed again only after another line has
    /// ended: otherwise a server could make the client parse all of it again for each byte.
    fn parse_head(&mut self, input: &[u8]) -> Result<Option<ResponseHead>, ResponseError> {
        if self.partial.is_empty() {
            let head = parse_response_head(input, HEAD_BYTES_MAX)?;
            if head.is_none() {
                self.partial.extend_from_slice(input);
            }
            return Ok(head);
        }
        self.partial.extend_from_slice(input);
        if self.partial.len() <= HEAD_BYTES_MAX && !input.contains(&b'\n') {
            return Ok(None);
        }
        let head = parse_response_head(&self.partial, HEAD_BYTES_MAX)?;
        if head.is_some() {
            self.partial = Vec::new();
        }
        Ok(head)
    }

    fn read_chunks(&mut self, input: &[u8]) -> ReadResult<'static> {
        let ReaderState::Chunked(decoder) = &mut self.state else { return Ok((0, None)) };
        let body_bytes_max = if self.is_unlimited { u64::MAX } else { self.body_bytes_max as u64 };
        let overhead_bytes_max = CHUNK_OVERHEAD_BYTES_MAX;
        let limits = ChunkedLimits { body_bytes_max, overhead_bytes_max };
        let progress = decoder.decode(input, &mut self.partial, &limits);
        let progress = progress.map_err(|error| match error {
            HttpError::BodyTooLarge { .. } => ResponseError::BodyTooLarge(self.body_bytes_max),
            error => ResponseError::Invalid(format!("HTTP where {error}")),
        })?;
        let body = progress.is_done.then(|| {
            self.state = ReaderState::Head;
            ResponsePart::Body(mem::take(&mut self.partial).into())
        });
        Ok((progress.consumed, body))
    }

    fn check_size(&self, len: usize) -> Result<(), ResponseError> {
        match len > self.body_bytes_max && !self.is_unlimited {
            true => Err(ResponseError::BodyTooLarge(self.body_bytes_max)),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(pieces: &[&[u8]]) -> Option<String> {
        let mut reader = ResponseReader::new(100);
        for mut piece in pieces.iter().copied() {
            while !piece.is_empty() {
                match reader.read(piece) {
                    Ok((used, _)) => piece = &piece[used..],
                    Err(ResponseError::Invalid(what)) => return Some(what),
                    Err(error) => panic!("{error:?}"),
                }
            }
        }
        None
    }

    #[test]
    fn a_head_without_end_is_not_collected() {
        let line = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(HEAD_BYTES_MAX - 20));
        assert_eq!(error_of(&[line.as_bytes()]), None);
        let expected = Some("a head of more than 32768 bytes".to_owned());
        assert_eq!(error_of(&[line.as_bytes(), b"x"]), expected);
    }

    #[test]
    fn heads_of_status_1xx_are_limited_before_each_response() {
        let early = "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n";
        let expected = Some("more than 100 heads of status 1xx".to_owned());
        for (count, error) in [(INFORMATIONAL_MAX, None), (INFORMATIONAL_MAX + 1, expected)] {
            let text = early.repeat(count) + "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1";
            for len in [1, 7, text.len()] {
                let pieces: Vec<_> = text.as_bytes().chunks(len).collect();
                assert_eq!(error_of(&pieces.repeat(2)), error);
            }
        }
    }
}
