//! Memory for unescaped strings, at fixed addresses until the call ends.

use ucall_proto::json::Text;

/// The smallest capacity of a chunk, and the largest that is cached for the next call.
const CHUNK_BYTES: usize = 4 << 10;
const CACHED_BYTES_MAX: usize = 64 << 10;

/// Chunks that are filled one after another and never grow, so that their contents do not move.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    chunks: Vec<Vec<u8>>,
}

impl Arena {
    /// The unescaped bytes of `text`, valid until [`Arena::reset`].
    pub(crate) fn unescape(&mut self, text: Text<'_>) -> &[u8] {
        let chunk = self.with_room(text.raw().len());
        let (start, capacity) = (chunk.len(), chunk.capacity());
        // Every escape is longer than its meaning, so the capacity suffices.
        text.unescape_into(chunk);
        debug_assert_eq!(chunk.capacity(), capacity);
        chunk.get(start..).unwrap_or_default()
    }

    fn with_room(&mut self, bytes: usize) -> &mut Vec<u8> {
        let has_room = |chunk: &Vec<u8>| chunk.capacity() - chunk.len() >= bytes;
        if !self.chunks.last().is_some_and(has_room) {
            self.chunks.push(Vec::with_capacity(bytes.max(CHUNK_BYTES)));
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }

    /// Invalidates all strings, and keeps one small chunk for the next call.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if !self.chunks.is_empty() {
            self.chunks.truncate(1);
            self.chunks.retain(|chunk| chunk.capacity() <= CACHED_BYTES_MAX);
            self.chunks.iter_mut().for_each(Vec::clear);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ucall_proto::json::Reader;

    #[test]
    fn returned_slices_stay_in_place() {
        let mut arena = Arena::default();
        let texts: Vec<String> =
            (0..2_000).map(|number| format!(r#""\u00e9\n{number}""#)).collect();
        let places: Vec<(*const u8, usize)> = texts
            .iter()
            .map(|text| {
                let bytes = arena.unescape(Reader::new(text.as_bytes()).string());
                (bytes.as_ptr(), bytes.len())
            })
            .collect();
        for (number, (start, len)) in places.into_iter().enumerate() {
            // SAFETY: the arena was not reset, so its bytes are there.
            let bytes = unsafe { std::slice::from_raw_parts(start, len) };
            assert_eq!(bytes, format!("é\n{number}").as_bytes());
        }
    }

    #[test]
    fn memory_of_a_huge_string_is_not_cached() {
        let mut arena = Arena::default();
        let huge = format!("\"\\n{}\"", "x".repeat(1 << 20));
        assert_eq!(arena.unescape(Reader::new(huge.as_bytes()).string()).len(), (1 << 20) + 1);
        arena.reset();
        assert_eq!(arena.chunks.len(), 0);
        arena.unescape(Reader::new(br#""\n""#).string());
        arena.reset();
        assert_eq!(arena.chunks.len(), 1);
    }
}
