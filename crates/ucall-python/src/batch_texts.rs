//! The texts of a batch's results, which share memory.
//!
//! The thread that writes them is not the one that sends them. Memory that one thread allocates
//! and another frees costs more than the copy of a short text.

use std::mem;
use std::ops::Range;

use bytes::Bytes;

/// Longer texts have memory of their own, and are not copied.
const SHARED_LEN_MAX: usize = 4 << 10;
/// Room for what the writer of a text reserves beyond its end.
const RESERVED_TAIL: usize = 64;

/// The text of a call's result.
pub(crate) enum OutcomeText {
    Own(Vec<u8>),
    /// One of several in the same memory.
    Shared(Bytes),
}

/// Where a text is, until all texts of its batch are written.
pub(crate) enum PlacedText {
    Own(Vec<u8>),
    Shared(Range<usize>),
}

/// The short texts of a batch, one after another.
#[derive(Default)]
pub(crate) struct BatchTexts(Vec<u8>);

impl OutcomeText {
    /// Moves the text to `text`, which is empty.
    #[inline]
    pub(crate) fn move_to(self, text: &mut Vec<u8>) {
        match self {
            Self::Own(own) => *text = own,
            Self::Shared(shared) => text.extend_from_slice(&shared),
        }
    }
}

impl From<Vec<u8>> for OutcomeText {
    fn from(text: Vec<u8>) -> Self {
        Self::Own(text)
    }
}

impl From<OutcomeText> for Bytes {
    fn from(text: OutcomeText) -> Self {
        match text {
            OutcomeText::Own(own) => own.into(),
            OutcomeText::Shared(shared) => shared,
        }
    }
}

impl BatchTexts {
    /// Writes a text by `write`, which appends it. As many others of about its length `follow`.
    ///
    /// # Errors
    /// That of `write`, whose text is removed.
    pub(crate) fn write<P, E>(
        &mut self,
        follow: usize,
        write: impl FnOnce(&mut Vec<u8>) -> Result<P, E>,
    ) -> Result<(PlacedText, P), E> {
        let Self(memory) = self;
        let start = memory.len();
        let written = write(memory).inspect_err(|_| memory.truncate(start))?;
        let len = memory.len() - start;
        let is_alone = start == 0 && follow == 0;
        if start == 0 && len <= SHARED_LEN_MAX {
            memory.reserve((len + RESERVED_TAIL) * follow);
        }
        let text = match len {
            ..=SHARED_LEN_MAX if !is_alone => PlacedText::Shared(start..memory.len()),
            _ if start == 0 => PlacedText::Own(mem::take(memory)),
            _ => PlacedText::Own(memory.split_off(start)),
        };
        Ok((text, written))
    }

    /// Adds a text.
    pub(crate) fn add(&mut self, text: &[u8]) -> PlacedText {
        if text.len() > SHARED_LEN_MAX {
            return PlacedText::Own(text.to_vec());
        }
        let start = self.0.len();
        self.0.extend_from_slice(text);
        PlacedText::Shared(start..self.0.len())
    }

    /// All texts are written. Returns what takes each of them.
    pub(crate) fn finish(self) -> impl Fn(PlacedText) -> OutcomeText {
        let memory = Bytes::from(self.0);
        move |text| match text {
            PlacedText::Own(own) => OutcomeText::Own(own),
            PlacedText::Shared(range) => OutcomeText::Shared(memory.slice(range)),
        }
    }
}
