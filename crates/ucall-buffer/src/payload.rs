//! What one send carries.

use bytes::Bytes;

use crate::buffer_pool::WASTE_MAX;

/// A cleared payload keeps at most this much memory for its next use.
const CACHED_CAPACITY_MAX: usize = 64 * 1024;
/// One whose next use is known keeps at most this much.
const RETAINED_CAPACITY_MAX: usize = 4 << 20;

/// Bytes to send, in order: a head that is written in place, then parts that are not copied.
///
/// As wide as one pointer: a payload is moved several times directly after it was written, and a
/// copy of its fields would wait for these writes.
#[derive(Debug, Default)]
pub struct Payload {
    contents: Option<Box<Contents>>,
}

#[derive(Debug, Default)]
struct Contents {
    head: Vec<u8>,
    parts: Vec<Bytes>,
    parts_len: usize,
}

impl Payload {
    /// An empty payload; allocates nothing.
    pub const fn new() -> Self {
        Self { contents: None }
    }

    /// All bytes, of the head and the parts together.
    #[inline]
    pub fn len(&self) -> usize {
        self.contents.as_ref().map_or(0, |contents| contents.head.len() + contents.parts_len)
    }

    /// Whether there is nothing to send.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The head, to write into. Bytes written here go before every part.
    #[inline]
    pub fn head_mut(&mut self) -> &mut Vec<u8> {
        &mut self.contents_mut().head
    }

    /// The head's bytes.
    #[inline]
    pub fn head(&self) -> &[u8] {
        self.contents.as_ref().map_or(&[], |contents| &contents.head)
    }

    /// Whether all bytes are in the head, so that bytes appended to the head are sent last.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.parts().is_empty()
    }

    /// Appends a part without a copy.
    pub fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            let contents = self.contents_mut();
            contents.parts_len += part.len();
            contents.parts.push(part);
        }
    }

    /// Appends copied bytes: to the head if there are no parts, else as another part.
    pub fn extend(&mut self, bytes: &[u8]) {
        if self.is_contiguous() {
            self.head_mut().extend_from_slice(bytes);
        } else {
            self.push(Bytes::copy_from_slice(bytes));
        }
    }

    /// Inserts parts into the head, each behind so many of its bytes, in order. There are no other
    /// parts. The bytes behind the first of them are copied.
    pub fn insert(&mut self, parts: impl IntoIterator<Item = (usize, Bytes)>) {
        debug_assert!(self.is_contiguous(), "the positions are those of the head");
        let mut parts = parts.into_iter().peekable();
        let Some(&(first, _)) = parts.peek() else { return };
        let head = self.head_mut();
        let rest = Bytes::copy_from_slice(head.get(first..).unwrap_or_default());
        head.truncate(first);
        let mut written = 0;
        for (at, part) in parts {
            let at = at.saturating_sub(first).clamp(written, rest.len());
            self.push(rest.slice(written..at));
            self.push(part);
            written = at;
        }
        self.push(rest.slice(written..));
    }

    /// Appends the parts of `other`, whose head is copied before them.
    pub fn append_copied(&mut self, other: &mut Payload) {
        self.extend(other.head());
        for part in other.contents_mut().parts.drain(..) {
            self.push(part);
        }
        other.clear_within(usize::MAX);
    }

    /// Appends all of `other`, which is left empty.
    pub fn append(&mut self, other: &mut Payload) {
        if self.is_empty() {
            std::mem::swap(self, other);
        } else {
            self.extend(other.head());
            for part in other.contents_mut().parts.drain(..) {
                self.push(part);
            }
        }
        other.clear();
    }

    /// Takes all bytes out, in order.
    pub fn drain(&mut self) -> impl Iterator<Item = Bytes> {
        let (head, parts) = match &mut self.contents {
            Some(contents) => {
                contents.parts_len = 0;
                (std::mem::take(&mut contents.head), std::mem::take(&mut contents.parts))
            }
            None => (Vec::new(), Vec::new()),
        };
        let head = Some(Bytes::from(head)).filter(|head| !head.is_empty());
        head.into_iter().chain(parts)
    }

    /// The slices that are left after the first `sent` bytes.
    pub fn slices_from(&self, sent: usize) -> impl Iterator<Item = &[u8]> {
        let mut skip = sent;
        let slices = std::iter::once(self.head()).chain(self.parts().iter().map(Bytes::as_ref));
        slices.filter_map(move |slice| {
            let skipped = skip.min(slice.len());
            skip -= skipped;
            (skipped < slice.len()).then(|| &slice[skipped..])
        })
    }

    /// Whether the payload has memory that is worth keeping for its next use.
    #[inline]
    pub fn has_memory(&self) -> bool {
        self.contents.is_some()
    }

    /// How much memory the head has.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.contents.as_ref().map_or(0, |contents| contents.head.capacity())
    }

    /// Whether there is more memory than [`Payload::clear`] keeps.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.capacity() > CACHED_CAPACITY_MAX
    }

    /// Whether the memory exceeds the contents by so much that a copy should be sent.
    #[inline]
    pub fn is_oversized(&self) -> bool {
        self.is_large() && self.len() < self.capacity() / WASTE_MAX
    }

    /// Clears the contents, and keeps a small amount of memory for the next use.
    #[inline]
    pub fn clear(&mut self) {
        self.clear_within(CACHED_CAPACITY_MAX);
    }

    /// Clears the contents, and keeps memory for the next large payload, up to a limit.
    #[inline]
    pub fn clear_retaining_capacity(&mut self) {
        self.clear_within(RETAINED_CAPACITY_MAX);
    }

    /// Clears the contents, and keeps up to that much memory for the next use.
    #[inline]
    pub fn clear_within(&mut self, capacity_max: usize) {
        if let Some(contents) = &mut self.contents {
            contents.head.clear();
            if contents.head.capacity() > capacity_max {
                contents.head = Vec::new();
            }
            if !contents.parts.is_empty() {
                contents.parts.clear();
            }
            contents.parts_len = 0;
        }
    }

    #[inline]
    fn parts(&self) -> &[Bytes] {
        self.contents.as_ref().map_or(&[], |contents| &contents.parts)
    }

    #[inline]
    fn contents_mut(&mut self) -> &mut Contents {
        self.contents.get_or_insert_default()
    }
}

impl From<Vec<u8>> for Payload {
    fn from(head: Vec<u8>) -> Self {
        Self { contents: Some(Box::new(Contents { head, ..Contents::default() })) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(payload: &Payload, sent: usize) -> Vec<u8> {
        payload.slices_from(sent).collect::<Vec<_>>().concat()
    }

    #[test]
    fn slices_resume_at_every_offset() {
        let mut payload = Payload::from(b"head".to_vec());
        payload.push(Bytes::from_static(b"part"));
        payload.push(Bytes::new());
        payload.extend(b"tail");
        for sent in 0..=payload.len() {
            assert_eq!(joined(&payload, sent), &b"headparttail"[sent..], "sent {sent}");
        }
    }

    #[test]
    fn parts_are_inserted_into_the_head() {
        let inserted = |at: [usize; 3]| {
            let mut payload = Payload::from(b"abcd".to_vec());
            let parts = [&b"1"[..], b"22", b"333"].map(Bytes::from_static);
            payload.insert(at.into_iter().zip(parts));
            assert_eq!((payload.len(), payload.is_contiguous()), (10, false));
            joined(&payload, 0)
        };
        assert_eq!(inserted([0, 0, 4]), b"122abcd333");
        assert_eq!(inserted([1, 3, 3]), b"a1bc22333d");
        assert_eq!(inserted([4, 4, 4]), b"abcd122333");
        let mut payload = Payload::from(b"abcd".to_vec());
        payload.insert([]);
        assert!(payload.is_contiguous());
    }

    #[test]
    fn a_copy_takes_the_parts_with_it() {
        let mut large = Payload::from(Vec::with_capacity(100_000));
        large.extend(b"head");
        large.push(Bytes::from_static(b"part"));
        let mut copy = Payload::new();
        copy.append_copied(&mut large);
        assert_eq!(joined(&copy, 0), b"headpart");
        assert!(large.is_empty() && large.is_contiguous() && large.capacity() == 100_000);
    }

    #[test]
    fn append_keeps_order_and_empties_its_source() {
        let mut payload = Payload::from(b"a".to_vec());
        payload.push(Bytes::from_static(b"b"));
        let mut other = Payload::from(b"c".to_vec());
        other.push(Bytes::from_static(b"d"));
        payload.append(&mut other);
        assert_eq!(joined(&payload, 0), b"abcd");
        assert_eq!(payload.len(), 4);
        assert!(other.is_empty());
    }

    #[test]
    fn drain_takes_everything_out_in_order() {
        let mut payload = Payload::from(b"head".to_vec());
        payload.push(Bytes::from_static(b"part"));
        payload.extend(b"tail");
        assert_eq!(payload.drain().collect::<Vec<_>>(), [&b"head"[..], b"part", b"tail"]);
        assert!(payload.is_empty());
        assert_eq!(payload.drain().count(), 0);
    }

    #[test]
    fn clear_releases_large_memory() {
        let mut payload = Payload::from(vec![0; CACHED_CAPACITY_MAX + 1]);
        assert!(payload.is_large());
        payload.clear();
        assert_eq!(payload.capacity(), 0);
        let max = RETAINED_CAPACITY_MAX;
        for (capacity, kept) in [(max, max), (max + 1, 0)] {
            let mut payload = Payload::from(vec![0; capacity]);
            payload.clear_retaining_capacity();
            assert_eq!((payload.len(), payload.capacity()), (0, kept));
        }
    }

    #[test]
    fn a_payload_is_oversized_below_a_quarter_of_its_capacity() {
        for (len, oversized) in [(100_000, false), (99_999, true)] {
            let mut payload = Payload::from(Vec::with_capacity(400_000));
            payload.head_mut().resize(len, 0);
            assert_eq!(payload.is_oversized(), oversized, "{len}");
        }
        assert!(!Payload::from(Vec::with_capacity(CACHED_CAPACITY_MAX)).is_oversized());
    }
}
