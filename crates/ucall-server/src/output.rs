//! Where replies are written, and the memory of those that were sent, kept for the next.
//!
//! Replies go straight into one payload, which is handed to the engine whole and comes back when it
//! is sent. Small ones are kept by the hundred, a large one alone: it becomes the payload that the
//! next reply is written to. A small reply that was written there is copied out, so that no
//! connection holds much more memory than it has bytes to send.

use std::mem;

use ucall_buffer::Payload;

/// Payloads kept for their next use.
const CACHED_PAYLOADS_MAX: usize = 1024;

/// The output of the connection at hand.
#[derive(Debug, Default)]
pub(crate) struct Output {
    payload: Payload,
    cached: Vec<Payload>,
    /// Whether a large payload came back since the last look.
    was_large: bool,
}

impl Output {
    /// Where to write.
    #[inline]
    pub(crate) fn head_mut(&mut self) -> &mut Vec<u8> {
        self.payload.head_mut()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.payload.is_empty()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.payload.len()
    }

    /// Forgets what was written.
    pub(crate) fn clear(&mut self) {
        self.payload.clear_retaining_capacity();
    }

    /// Moves what was written behind `queued`.
    pub(crate) fn append_to(&mut self, queued: &mut Payload) {
        match self.payload.is_oversized() {
            true => queued.append(&mut self.copied()),
            false => queued.append(&mut self.payload),
        }
    }

    /// Moves what was written to `queued`, which is empty.
    #[inline(always)]
    pub(crate) fn move_to(&mut self, queued: &mut Payload) {
        if self.payload.is_oversized() {
            *queued = self.copied();
            return;
        }
        mem::swap(&mut self.payload, queued);
        if !self.payload.has_memory()
            && let Some(cached) = self.cached.pop()
        {
            // What it replaces holds nothing that would have to be dropped.
            mem::forget(mem::replace(&mut self.payload, cached));
        }
    }

    /// What was written, to be sent.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Payload {
        if self.payload.is_oversized() {
            return self.copied();
        }
        let next = self.cached.pop().unwrap_or_default();
        mem::replace(&mut self.payload, next)
    }

    /// Takes back a payload that was sent.
    #[inline(always)]
    pub(crate) fn recycle(&mut self, mut payload: Payload) {
        if payload.is_large() {
            payload = self.cache_large(payload);
        }
        payload.clear();
        if self.cached.len() < CACHED_PAYLOADS_MAX {
            self.cached.push(payload);
        }
    }

    /// Writes to a large payload next if there is no larger one; gives what is to be spared.
    #[cold]
    fn cache_large(&mut self, mut payload: Payload) -> Payload {
        if self.is_empty() && payload.capacity() > self.payload.capacity() {
            payload.clear_retaining_capacity();
            self.was_large = true;
            mem::swap(&mut self.payload, &mut payload);
        }
        payload
    }

    /// Whether there is large memory that [`Output::release_unused`] is to let go of.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.payload.is_large()
    }

    /// Lets go of large memory, if no large reply was sent since the last call. Nothing may be
    /// written that is not taken.
    pub(crate) fn release_unused(&mut self) {
        if !mem::take(&mut self.was_large) {
            self.payload.clear();
        }
    }

    #[cold]
    fn copied(&mut self) -> Payload {
        let mut copy = self.cached.pop().unwrap_or_default();
        copy.extend(self.payload.head());
        self.payload.clear_retaining_capacity();
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(output: &mut Output, len: usize) -> Payload {
        output.head_mut().resize(len, b'x');
        let payload = output.take();
        assert_eq!(payload.len(), len);
        assert!(output.is_empty());
        payload
    }

    #[test]
    fn the_memory_of_a_large_reply_is_reused() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        assert!(!output.is_large());
        output.recycle(payload);
        assert!(output.is_large());
        let again = output.head_mut().as_ptr();
        assert_eq!(sent(&mut output, 1_000_000).head().as_ptr(), again);
    }

    #[test]
    fn a_small_reply_is_copied_out_of_large_memory() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.recycle(payload);
        let capacity = output.head_mut().capacity();
        for len in [1, 100_000, capacity / 4 - 1] {
            let payload = sent(&mut output, len);
            assert!(payload.capacity() <= 2 * len.max(64), "{len}");
            assert!(output.is_large());
        }
        let mut queued = Payload::from(b"first, ".to_vec());
        output.head_mut().extend_from_slice(b"second");
        output.append_to(&mut queued);
        assert_eq!(queued.head(), b"first, second");
        assert!(output.is_empty() && output.is_large());
    }

    #[test]
    fn large_memory_unused_between_two_calls_is_released() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.recycle(payload);
        output.release_unused();
        assert!(output.is_large());
        output.release_unused();
        assert!(!output.is_large());
    }

    #[test]
    fn a_recycled_payload_does_not_disturb_the_current_one() {
        let mut output = Output::default();
        let payload = sent(&mut output, 1_000_000);
        output.head_mut().extend_from_slice(b"begun");
        output.recycle(payload);
        assert_eq!(output.take().head(), b"begun");
    }
}
