//! Copies of the texts of a request, one after another in one piece of memory.

/// The memory that is kept for the texts of a later request.
const KEPT_BYTES_MAX: usize = 4 << 10;

/// Texts of a request.
#[derive(Default)]
pub(crate) struct RequestTexts {
    bytes: Vec<u8>,
}

/// Where a text is.
#[derive(Clone, Copy)]
pub(crate) struct TextSpan {
    start: usize,
    end: usize,
}

impl RequestTexts {
    /// Replaces the texts. Returns where each one is.
    #[inline]
    pub(crate) fn replace<const COUNT: usize>(
        &mut self,
        texts: [Option<&[u8]>; COUNT],
    ) -> [Option<TextSpan>; COUNT] {
        self.bytes.clear();
        self.bytes.reserve(texts.iter().flatten().map(|text| text.len()).sum());
        texts.map(|text| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(text?);
            Some(TextSpan { start, end: self.bytes.len() })
        })
    }

    /// The text that is there; empty without one.
    #[inline]
    pub(crate) fn get(&self, span: TextSpan) -> &[u8] {
        self.bytes.get(span.start..span.end).unwrap_or_default()
    }

    /// Removes the texts, and keeps a little memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
    }
}
