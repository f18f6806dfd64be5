//! Bodies in chunks (RFC 9112, section 7.1), decoded as they come.
//!
//! Data is copied in runs; the few bytes around it are read one at a time, so that the decoder
//! may be cut anywhere. Nothing is reserved for a chunk before its bytes are there: a size is
//! only a claim.
//!
//! | state            | byte             | next                                      |
//! |------------------|------------------|-------------------------------------------|
//! | `SizeStart`      | hex digit        | `Size`                                    |
//! | `Size`           | hex digit        | `Size`                                    |
//! | `Size`           | `;`              | `Extension`                               |
//! | `Size`           | CR               | `SizeLineFeed`                            |
//! | `Extension`      | of the extension | `Extension`                               |
//! | `Extension`      | CR behind it     | `SizeLineFeed`                            |
//! | `SizeLineFeed`   | LF               | `Data`, or `TrailerStart` if the size is 0 |
//! | `Data`           | the last of them | `DataReturn`                              |
//! | `DataReturn`     | CR               | `DataLineFeed`                            |
//! | `DataLineFeed`   | LF               | `SizeStart`                               |
//! | `TrailerStart`   | CR               | `LastLineFeed`                            |
//! | `TrailerStart`   | token byte       | `TrailerName`                             |
//! | `TrailerName`    | token byte       | `TrailerName`                             |
//! | `TrailerName`    | `:`              | `TrailerValue`                            |
//! | `TrailerValue`   | text             | `TrailerValue`                            |
//! | `TrailerValue`   | CR               | `TrailerLineFeed`                         |
//! | `TrailerLineFeed`| LF               | `TrailerStart`                            |
//! | `LastLineFeed`   | LF               | `Done`                                    |
//!
//! Any other byte is an error, which stays. [`ChunkExtension`] has the states within an extension.

use super::bytes::{is_text, is_token};
use super::chunk_extension::ChunkExtension;
use super::error::HttpError;

/// How large a chunked body may be.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedLimits {
    /// Decoded bytes of the whole body.
    pub body_bytes_max: u64,
    /// Chunk extensions and trailers together.
    pub overhead_bytes_max: usize,
}

impl Default for ChunkedLimits {
    fn default() -> Self {
        Self { body_bytes_max: 16 * 1024 * 1024, overhead_bytes_max: 16 * 1024 }
    }
}

/// What one call of [`ChunkedDecoder::decode`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The bytes of the input that were used: all of them, unless the body is complete.
    pub consumed: usize,
    /// Whether the body, trailers included, is complete.
    pub is_done: bool,
}

/// Where in a chunked body the decoder is. New for each body.
#[derive(Clone, Debug, Default)]
pub struct ChunkedDecoder {
    state: ChunkedState,
    /// The size being read, then the number of data bytes that are missing.
    remaining: u64,
    /// Digits of the size so far.
    digits: u8,
    body_bytes: u64,
    overhead_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ChunkedState {
    #[default]
    SizeStart,
    Size,
    Extension(ChunkExtension),
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLineFeed,
    LastLineFeed,
    Done,
    Failed(HttpError),
}

/// A size of more digits overflows 64 bits, or has leading zeros that no client needs.
const DIGITS_MAX: u8 = 16;

impl ChunkedDecoder {
    /// Decodes `input`, and appends its data to `body`.
    ///
    /// # Errors
    /// [`HttpError::BodyTooLarge`] as soon as a size exceeds the limit, and an error for 400 at any
    /// byte outside of the grammar. After an error, every call fails.
    pub fn decode(
        &mut self,
        input: &[u8],
        body: &mut Vec<u8>,
        limits: &ChunkedLimits,
    ) -> Result<Progress, HttpError> {
        let mut rest = input;
        while self.state != ChunkedState::Done {
            if let ChunkedState::Failed(error) = self.state {
                return Err(error);
            }
            if self.state == ChunkedState::Data {
                rest = self.take_data(rest, body);
            }
            let [byte, after @ ..] = rest else { break };
            rest = after;
            match self.step(*byte, limits) {
                Ok(next) => self.state = next,
                Err(error) => self.state = ChunkedState::Failed(error),
            }
        }
        Ok(Progress {
            consumed: input.len() - rest.len(),
            is_done: self.state == ChunkedState::Done,
        })
    }

    /// Moves data of the current chunk to `body`, and returns the rest.
    fn take_data<'a>(&mut self, input: &'a [u8], body: &mut Vec<u8>) -> &'a [u8] {
        let wanted = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        let (data, rest) = input.split_at(wanted.min(input.len()));
        body.extend_from_slice(data);
        self.remaining -= data.len() as u64;
        if self.remaining == 0 {
            self.state = ChunkedState::DataReturn;
        }
        rest
    }

    /// The state after a byte outside of the data.
    fn step(&mut self, byte: u8, limits: &ChunkedLimits) -> Result<ChunkedState, HttpError> {
        match (self.state, byte) {
            (ChunkedState::SizeStart | ChunkedState::Size, _) if byte.is_ascii_hexdigit() => {
                self.add_digit(byte)
            }
            (ChunkedState::Size, b'\r') => Ok(ChunkedState::SizeLineFeed),
            (ChunkedState::Size, b';') => {
                self.add_overhead(ChunkedState::Extension(ChunkExtension::Start), limits)
            }
            (ChunkedState::Extension(extension), b'\r') if extension.is_complete() => {
                Ok(ChunkedState::SizeLineFeed)
            }
            (ChunkedState::Extension(extension), _) => match extension.after(byte) {
                Some(extension) => self.add_overhead(ChunkedState::Extension(extension), limits),
                None => Err(self.error_for(byte)),
            },
            (ChunkedState::SizeLineFeed, b'\n') => self.begin_data(limits),
            (ChunkedState::DataReturn, b'\r') => Ok(ChunkedState::DataLineFeed),
            (ChunkedState::DataLineFeed, b'\n') => Ok(ChunkedState::SizeStart),
            (ChunkedState::TrailerStart, b'\r') => Ok(ChunkedState::LastLineFeed),
            (ChunkedState::TrailerStart | ChunkedState::TrailerName, _) if is_token(byte) => {
                self.add_overhead(ChunkedState::TrailerName, limits)
            }
            (ChunkedState::TrailerName, b':') => {
                self.add_overhead(ChunkedState::TrailerValue, limits)
            }
            (ChunkedState::TrailerValue, b'\r') => {
                self.add_overhead(ChunkedState::TrailerLineFeed, limits)
            }
            (ChunkedState::TrailerValue, _) if is_text(byte) => {
                self.add_overhead(ChunkedState::TrailerValue, limits)
            }
            (ChunkedState::TrailerLineFeed, b'\n') => {
                self.add_overhead(ChunkedState::TrailerStart, limits)
            }
            (ChunkedState::LastLineFeed, b'\n') => Ok(ChunkedState::Done),
            _ => Err(self.error_for(byte)),
        }
    }

    fn add_digit(&mut self, byte: u8) -> Result<ChunkedState, HttpError> {
        if self.digits == DIGITS_MAX {
            return Err(HttpError::ChunkSizeMalformed);
        }
        let digit = char::from(byte).to_digit(16).unwrap_or_default();
        self.digits += 1;
        self.remaining = self.remaining << 4 | u64::from(digit);
        Ok(ChunkedState::Size)
    }

    fn add_overhead(
        &mut self,
        next: ChunkedState,
        limits: &ChunkedLimits,
    ) -> Result<ChunkedState, HttpError> {
        self.overhead_bytes += 1;
        if self.overhead_bytes > limits.overhead_bytes_max {
            return Err(HttpError::ChunkOverheadTooLarge { limit: limits.overhead_bytes_max });
        }
        Ok(next)
    }

    fn begin_data(&mut self, limits: &ChunkedLimits) -> Result<ChunkedState, HttpError> {
        self.digits = 0;
        if self.remaining > limits.body_bytes_max.saturating_sub(self.body_bytes) {
            return Err(HttpError::BodyTooLarge { limit: limits.body_bytes_max });
        }
        self.body_bytes += self.remaining;
        Ok(if self.remaining == 0 { ChunkedState::TrailerStart } else { ChunkedState::Data })
    }

    /// The error for `byte` in this state.
    #[cold]
    fn error_for(&self, byte: u8) -> HttpError {
        match (self.state, byte) {
            (ChunkedState::DataReturn | ChunkedState::DataLineFeed, _) => {
                HttpError::ChunkUnterminated
            }
            (_, b'\n') => HttpError::LineFeedAlone,
            (ChunkedState::SizeStart | ChunkedState::Size, _) => HttpError::ChunkSizeMalformed,
            (
                ChunkedState::SizeLineFeed
                | ChunkedState::TrailerLineFeed
                | ChunkedState::LastLineFeed,
                _,
            ) => HttpError::CarriageReturnAlone,
            (ChunkedState::TrailerStart, b' ' | b'\t') => HttpError::HeaderFolded,
            (ChunkedState::TrailerName, b' ' | b'\t') => HttpError::SpaceBeforeColon,
            (ChunkedState::TrailerStart | ChunkedState::TrailerName, _) => {
                HttpError::HeaderNameMalformed
            }
            (ChunkedState::Extension(_), _) if byte == b'\r' || is_text(byte) => {
                HttpError::ChunkExtensionMalformed
            }
            _ => HttpError::for_byte(byte),
        }
    }
}
