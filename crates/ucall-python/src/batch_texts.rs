//! The texts of a batch's results, which share memory.
//!
//! The thread that writes them is not the one that sends them. Memory that one thread allocates
//! and another frees costs more than the copy of a short text.

use std::mem;
use std::ops::Range;

use bytes::Bytes;

/// Longer texts have memory of their own, and are not copied.
const SHARED_LEN_MAX: usize = 4 << 10;
/// Memory that stays for the next text.
const KEPT_CAPACITY_MAX: usize = 64 << 10;

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

/// The texts of a batch.
#[derive(Default)]
pub(crate) struct BatchTexts {
    /// The short ones, one after another.
    shared: Vec<u8>,
    /// What is being written.
    written: Vec<u8>,
}

impl OutcomeText {
    /// Moves the text to `text`, which is empty.
    #[inline]
    pub(crate) fn move_to(self, text: &mut Vec<u8>) {
        match self {
            Self::Own(own) => *text = own,
            Self::Shared(shared) => {
                // Of a long one before.
                if text.capacity() > KEPT_CAPACITY_MAX {
                    *text = Vec::new();
                }
                text.extend_from_slice(&shared);
            }
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
    /// Writes a text by `write`, which appends it. That of a batch of one has memory of its own.
    ///
    /// # Errors
    /// That of `write`, whose text is dropped.
    pub(crate) fn write<P, E>(
        &mut self,
        is_only: bool,
        write: impl FnOnce(&mut Vec<u8>) -> Result<P, E>,
    ) -> Result<(PlacedText, P), E> {
        if self.written.capacity() > KEPT_CAPACITY_MAX {
            self.written = Vec::new();
        }
        self.written.clear();
        let result = write(&mut self.written)?;
        if is_only || self.written.len() > SHARED_LEN_MAX {
            return Ok((PlacedText::Own(mem::take(&mut self.written)), result));
        }
        Ok((Self::share(&mut self.shared, &self.written), result))
    }

    /// Adds a text.
    pub(crate) fn add(&mut self, text: &[u8]) -> PlacedText {
        if text.len() > SHARED_LEN_MAX {
            return PlacedText::Own(text.to_vec());
        }
        Self::share(&mut self.shared, text)
    }

    fn share(shared: &mut Vec<u8>, text: &[u8]) -> PlacedText {
        let start = shared.len();
        shared.extend_from_slice(text);
        PlacedText::Shared(start..shared.len())
    }

    /// Ends the writing. Returns a function from the place of a text to the text.
    pub(crate) fn finish(self) -> impl Fn(PlacedText) -> OutcomeText {
        let shared = Bytes::from(self.shared);
        move |text| match text {
            PlacedText::Own(own) => OutcomeText::Own(own),
            PlacedText::Shared(range) => OutcomeText::Shared(shared.slice(range)),
        }
    }
}
