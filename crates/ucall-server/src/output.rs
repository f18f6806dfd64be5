//! The buffer that replies are written to, and a cache of payloads.
//!
//! Replies are written straight into one payload, which goes to the engine whole and comes back
//! when it is sent. Hundreds of small payloads are cached, but only one large payload: the next
//! reply is written to it. A small reply is copied out of it, so that no connection holds much more
//! memory than it has bytes to send.

use std::mem;

use ucall_buffer::Payload;

/// Payloads that are cached.
const CACHED_PAYLOADS_MAX: usize = 1024;

/// The output of the connection that takes a step.
#[derive(Debug, Default)]
pub(crate) struct Output {
    payload: Payload,
    cached: Vec<Payload>,
    /// Whether a large payload came back since the last [`Output::release_unused`].
    was_large: bool,
}

impl Output {
    /// The buffer to write to.
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

    /// Discards the output.
    pub(crate) fn clear(&mut self) {
        self.payload.clear_retaining_capacity();
    }

    /// Appends the output to `queued`.
    pub(crate) fn append_to(&mut self, queued: &mut Payload) {
        match self.payload.is_oversized() {
            true => queued.append(&mut self.copied()),
            false => queued.append(&mut self.payload),
        }
    }

    /// Moves the output to `queued`, which is empty.
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
            // The old payload owns no memory, so there is nothing to drop.
            mem::forget(mem::replace(&mut self.payload, cached));
        }
    }

    /// Takes the output for a send.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Payload {
        if self.payload.is_oversized() {
            return self.copied();
        }
        let next = self.cached.pop().unwrap_or_default();
        mem::replace(&mut self.payload, next)
    }

    /// Caches a payload that was sent.
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

    /// Keeps a large payload for the next output, if it is the largest; returns the other one.
    #[cold]
    fn cache_large(&mut self, mut payload: Payload) -> Payload {
        if self.is_empty() && payload.capacity() > self.payload.capacity() {
            payload.clear_retaining_capacity();
            self.was_large = true;
            mem::swap(&mut self.payload, &mut payload);
        }
        payload
    }

    /// Whether [`Output::release_unused`] may have memory to release.
    #[inline]
    pub(crate) fn is_large(&self) -> bool {
        self.payload.is_large()
    }

    /// Releases the large payload if no large reply was sent since the last call. The output must
    /// be empty.
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
