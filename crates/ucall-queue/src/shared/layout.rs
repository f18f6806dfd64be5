//! Where the segments of a message lie in shared memory, and the frame that tells of it.
//!
//! Each segment begins at a multiple of 64 bytes, one behind the other. The body of the frame is,
//! in numbers of 8 bytes: the slot, or 0 for memory that is used once; the number of the
//! descriptor that was sent for it, or 0 for a slot's own; and the length of each segment.
#![forbid(unsafe_code)]

use bytes::Bytes;

use crate::frame::{Header, Kind, RECORD_HEAD_BYTES, SEGMENT_ENTRY_BYTES, read_u64, record_bytes};

/// Arrays are read fastest from where a cache line begins.
const ALIGNMENT: u64 = 64;

/// Where the segments of a message lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    lengths: Vec<u64>,
    starts: Vec<u64>,
    end: u64,
}

impl Layout {
    /// Of segments of these lengths; `None` when they are longer than memory can be.
    pub(super) fn new(lengths: Vec<u64>) -> Option<Self> {
        let mut starts = Vec::with_capacity(lengths.len());
        let mut end = 0_u64;
        for length in &lengths {
            let start = end.checked_next_multiple_of(ALIGNMENT)?;
            end = start.checked_add(*length)?;
            starts.push(start);
        }
        (end < 1 << 48).then_some(Self { lengths, starts, end })
    }

    /// Bytes of memory that it takes.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The length of the message as it would be in a stream, with the table of its segments.
    pub(super) fn message_bytes(&self) -> u64 {
        let segments = self.lengths.len();
        let table = if segments > 1 { segments * SEGMENT_ENTRY_BYTES } else { 0 };
        self.lengths.iter().sum::<u64>() + table as u64
    }

    /// Where each segment begins, and its length.
    pub(super) fn segments(&self) -> impl ExactSizeIterator<Item = (u64, u64)> {
        self.starts.iter().copied().zip(self.lengths.iter().copied())
    }
}

/// What a frame tells of a message in shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) slot: u64,
    pub(super) descriptor: u64,
    pub(super) layout: Layout,
}

impl Record {
    /// The whole frame, of a message with this header.
    pub(super) fn write(&self, header: &Header) -> Vec<u8> {
        let length = record_bytes(header.segments);
        let header = Header { kind: Kind::Shared, length, ..*header };
        let mut frame = header.write().to_vec();
        let head = [self.slot, self.descriptor];
        for number in head.iter().chain(&self.layout.lengths) {
            frame.extend(number.to_le_bytes());
        }
        frame
    }

    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let lengths = body.get(RECORD_HEAD_BYTES..)?.chunks_exact(SEGMENT_ENTRY_BYTES);
        let layout = Layout::new(lengths.map(|length| read_u64(length, 0)).collect())?;
        Some(Self { slot: read_u64(body, 0), descriptor: read_u64(body, 8), layout })
    }
}

/// Hands out the bytes of a message with the places that they go to.
#[derive(Debug)]
pub(super) struct Scatter {
    /// What was not handed out, the next part last.
    parts: Vec<Bytes>,
    /// Where the segments that are not full lie, the next one last.
    segments: Vec<(u64, u64)>,
}

impl Scatter {
    pub(super) fn new(mut parts: Vec<Bytes>, layout: &Layout) -> Self {
        parts.reverse();
        let mut segments: Vec<_> = layout.segments().collect();
        segments.reverse();
        Self { parts, segments }
    }

    /// The next bytes, at most so many, and where they go; `None` when that was all.
    pub(super) fn next(&mut self, bytes_max: usize) -> Option<(u64, Bytes)> {
        while self.parts.last()?.is_empty() {
            self.parts.pop();
        }
        while self.segments.last()?.1 == 0 {
            self.segments.pop();
        }
        let (part, (start, left)) = (self.parts.last_mut()?, self.segments.last_mut()?);
        let room = usize::try_from(*left).unwrap_or(usize::MAX);
        let piece = part.split_to(part.len().min(room).min(bytes_max));
        let at = *start;
        *start += piece.len() as u64;
        *left -= piece.len() as u64;
        Some((at, piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Encoding, HEADER_BYTES};

    #[test]
    fn records_round_trip() {
        let layout = Layout::new(vec![100, 0, 1, 64]).unwrap();
        assert_eq!(layout.segments().map(|it| it.0).collect::<Vec<_>>(), [0, 128, 128, 192]);
        assert_eq!((layout.end(), layout.message_bytes()), (256, 165 + 32));
        let header = Header {
            kind: Kind::Data,
            encoding: Encoding::Serialized,
            repeated: true,
            segments: 4,
            sequence: 7,
            length: 0,
        };
        let record = Record { slot: 3, descriptor: 9, layout };
        let frame = record.write(&header);
        let read = Header::read(frame.first_chunk().unwrap()).unwrap();
        assert_eq!((read.kind, read.repeated, read.sequence), (Kind::Shared, true, 7));
        assert_eq!(read.length, record_bytes(4));
        assert_eq!(Record::read(&frame[HEADER_BYTES..]), Some(record));
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for lengths in [vec![u64::MAX], vec![u64::MAX, 1], vec![1, u64::MAX - 10], vec![1 << 48]] {
            assert_eq!(Layout::new(lengths), None);
        }
    }

    #[test]
    fn parts_are_scattered_over_segments_at_any_split() {
        let whole: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for (most, cuts) in [(1000, [300, 300, 700]), (7, [1, 64, 900]), (1, [0, 1, 2])] {
            let lengths = vec![130, 0, 400, 470];
            let layout = Layout::new(lengths.clone()).unwrap();
            let bounds = [0, cuts[0], cuts[1], cuts[2], 1000];
            let parts = bounds.windows(2).map(|it| Bytes::copy_from_slice(&whole[it[0]..it[1]]));
            let mut scatter = Scatter::new(parts.collect(), &layout);
            let mut memory = vec![0; layout.end() as usize];
            while let Some((at, piece)) = scatter.next(most) {
                memory[at as usize..][..piece.len()].copy_from_slice(&piece);
            }
            let segments = layout.segments().map(|it| &memory[it.0 as usize..][..it.1 as usize]);
            assert_eq!(segments.flatten().copied().collect::<Vec<_>>(), whole);
        }
    }
}
