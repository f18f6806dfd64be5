//! What stands for the codings in a build without them.

use super::{Coding, DecodeError, Decoded, Flush};

/// No decoder.
#[derive(Debug)]
pub enum Decoder {}

impl Decoder {
    /// None.
    #[must_use]
    pub fn new(_: Coding) -> Option<Self> {
        None
    }

    /// None.
    #[must_use]
    pub fn of_deflate() -> Option<Self> {
        None
    }

    /// See the decoder of a build with codings.
    ///
    /// # Errors
    /// None.
    pub fn decode(&mut self, _: &[u8], _: &mut Vec<u8>) -> Result<Decoded, DecodeError> {
        match *self {}
    }

    /// See the decoder of a build with codings.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        match *self {}
    }

    /// See the decoder of a build with codings.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match *self {}
    }
}

/// No encoder.
#[derive(Debug)]
pub enum Encoder {}

impl Encoder {
    /// None.
    #[must_use]
    pub fn new(_: Coding) -> Option<Self> {
        None
    }

    /// None.
    #[must_use]
    pub fn of_stream(_: Coding) -> Option<Self> {
        None
    }

    /// None.
    #[must_use]
    pub fn of_deflate(_: u8) -> Option<Self> {
        None
    }

    /// See the encoder of a build with codings.
    pub fn encode(&mut self, _: &[u8], _: Flush, _: &mut Vec<u8>) {
        match *self {}
    }

    /// See the encoder of a build with codings.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match *self {}
    }
}
