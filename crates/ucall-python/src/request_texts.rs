//! The texts of a request: its own, while the call runs that they belong to, or copies of them.
//!
//! Most calls end before anybody asks for their texts, so these are copied when that happens, on
//! whatever thread. Copies are one after another in one piece of memory.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Texts of a request, each of which may be missing.
pub(crate) struct RequestTexts<const COUNT: usize> {
    borrowed: Mutex<Option<Borrowed<COUNT>>>,
    copies: OnceLock<CopiedTexts<COUNT>>,
}

/// The request's own texts.
#[derive(Clone, Copy)]
struct Borrowed<const COUNT: usize>([Option<NonNull<[u8]>>; COUNT]);

// SAFETY: they point to bytes that are only read, and that live as long as
// [`RequestTexts::borrow`] says.
unsafe impl<const COUNT: usize> Send for Borrowed<COUNT> {}

/// Copies of texts, each of which may be missing.
pub(crate) struct CopiedTexts<const COUNT: usize> {
    bytes: Box<[u8]>,
    /// Where each text ends; the next one begins there.
    ends: [usize; COUNT],
    is_present: [bool; COUNT],
}

impl<const COUNT: usize> RequestTexts<COUNT> {
    /// No texts.
    pub(crate) fn none() -> Self {
        Self { borrowed: Mutex::new(None), copies: OnceLock::new() }
    }

    /// Copies of texts.
    pub(crate) fn of(texts: [Option<&[u8]>; COUNT]) -> Self {
        Self { borrowed: Mutex::new(None), copies: OnceLock::from(CopiedTexts::of(texts)) }
    }

    /// Borrows these texts, without a copy.
    ///
    /// # Safety
    /// [`RequestTexts::clear`] or [`RequestTexts::keep`] is called before the texts are freed.
    #[inline]
    pub(crate) unsafe fn borrow(&mut self, texts: [Option<&[u8]>; COUNT]) {
        let borrowed = Borrowed(texts.map(|text| text.map(NonNull::from)));
        *self.borrowed.get_mut().unwrap_or_else(PoisonError::into_inner) = Some(borrowed);
    }

    /// Removes the texts.
    #[inline]
    pub(crate) fn clear(&mut self) {
        *self.borrowed.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.copies.take();
    }

    /// Copies the borrowed texts before they are freed.
    pub(crate) fn keep(&self) {
        self.copies.get_or_init(|| self.copied());
        *self.borrowed() = None;
    }

    /// The text of this number.
    pub(crate) fn get(&self, number: usize) -> Option<&[u8]> {
        self.copies.get_or_init(|| self.copied()).get(number)
    }

    #[cold]
    fn copied(&self) -> CopiedTexts<COUNT> {
        let borrowed = self.borrowed();
        let Some(Borrowed(texts)) = &*borrowed else { return CopiedTexts::of([None; COUNT]) };
        // SAFETY: the texts are there until they are no longer borrowed, which the lock prevents.
        CopiedTexts::of(texts.map(|text| text.map(|text| unsafe { text.as_ref() })))
    }

    fn borrowed(&self) -> MutexGuard<'_, Option<Borrowed<COUNT>>> {
        self.borrowed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<const COUNT: usize> CopiedTexts<COUNT> {
    pub(crate) fn of(texts: [Option<&[u8]>; COUNT]) -> Self {
        let mut bytes = Vec::with_capacity(texts.iter().flatten().map(|text| text.len()).sum());
        let ends = texts.map(|text| {
            bytes.extend_from_slice(text.unwrap_or_default());
            bytes.len()
        });
        Self { bytes: bytes.into_boxed_slice(), ends, is_present: texts.map(|it| it.is_some()) }
    }

    pub(crate) fn get(&self, number: usize) -> Option<&[u8]> {
        if !*self.is_present.get(number)? {
            return None;
        }
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied();
        self.bytes.get(start.unwrap_or(0)..*self.ends.get(number)?)
    }
}
