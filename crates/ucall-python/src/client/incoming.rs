//! A frame that is being received, and one that was.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use ucall_proto::json::{Reader, ValueKind};
use ucall_proto::{FRAME_ALIGNMENT, FrameError, FrameHead, Limits, Parts};

use super::error::ClientFault;
use crate::convert::encode_both;

/// The parts of a message, if they are in shared memory.
pub(super) type SharedParts = Option<Arc<Parts>>;

/// Memory for a frame, in which its parts are aligned.
///
/// The frame starts at a multiple of 64 bytes, after as many bytes as that takes. The memory has
/// room for all of it, so it does not move while the frame is appended.
#[derive(Debug, Default)]
pub(super) struct FrameMemory {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl FrameMemory {
    /// Memory for a frame of that length.
    pub(super) fn new(len: usize) -> Self {
        let mut bytes = Vec::<u8>::with_capacity(len.saturating_add(FRAME_ALIGNMENT));
        let start = bytes.as_ptr().align_offset(FRAME_ALIGNMENT).min(FRAME_ALIGNMENT);
        bytes.resize(start, 0);
        Self { bytes, start, end: start.saturating_add(len) }
    }

    /// A copy of a whole frame.
    pub(super) fn of(frame: &[u8]) -> Self {
        let mut memory = Self::new(frame.len());
        memory.bytes.extend_from_slice(frame);
        memory
    }

    /// Where to append the next bytes, and how many at most.
    pub(super) fn space(&mut self) -> (&mut Vec<u8>, usize) {
        let missing = self.missing();
        (&mut self.bytes, missing)
    }

    pub(super) fn missing(&self) -> usize {
        self.end.saturating_sub(self.bytes.len())
    }

    pub(super) fn frame(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }
}

/// The head of the frame that bytes begin with, of up to `bytes_max` bytes; `None` if the head is
/// incomplete.
pub(super) fn frame_head(bytes: &[u8], bytes_max: usize) -> Result<Option<FrameHead>, ClientFault> {
    let mut limits = Limits::default();
    (limits.body_bytes_max, limits.parts_max) = (bytes_max, usize::from(u16::MAX));
    FrameHead::parse(bytes, &limits).map_err(fault_of)
}

pub(super) fn fault_of(error: FrameError) -> ClientFault {
    match error {
        FrameError::TooLong { max } => ClientFault::TooLarge { bytes_max: max },
        _ => ClientFault::Protocol(error.to_string()),
    }
}

/// A document with its parts.
#[derive(Debug)]
pub(super) struct IncomingFrame {
    /// The text.
    pub(super) text: Bytes,
    pub(super) parts: IncomingParts,
}

/// The parts of a document, and where in its text the objects are that stand for them.
#[derive(Clone, Debug)]
pub(super) struct IncomingParts {
    memory: Arc<Parts>,
    /// In their order. Each has the index of its part.
    marks: Vec<(Range<usize>, usize)>,
}

impl IncomingFrame {
    /// Checks a frame, and takes it over. Its parts may have been found in shared memory.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn of(memory: FrameMemory, shared: SharedParts) -> Result<Self, ClientFault> {
        let frame = memory.frame();
        // What lies in shared memory was checked already.
        let bytes_max = if shared.is_some() { usize::MAX } else { frame.len() };
        let head = frame_head(frame, bytes_max)?.filter(|head| head.len == frame.len());
        let head = head.ok_or_else(|| fault_of(FrameError::Length))?;
        if head.places.is_none() && !head.has_valid_padding(frame, 0) {
            return Err(fault_of(FrameError::Padding));
        }
        let text = Bytes::copy_from_slice(frame.get(head.text).unwrap_or_default());
        let start = memory.start;
        let parts = match (shared, head.places) {
            (Some(parts), Some(_)) => parts,
            (None, None) => {
                let in_memory = |part: &Range<usize>| (part.start + start..part.end + start, None);
                Arc::new(Parts::new(memory.bytes, head.parts.iter().map(in_memory).collect()))
            }
            _ => return Err(fault_of(FrameError::SharedMemory)),
        };
        Ok(Self { text, parts: IncomingParts { memory: parts, marks: Vec::new() } })
    }

    /// Finds what stands for the parts, after the text was validated.
    ///
    /// # Errors
    /// A part is missing, or is used twice; as a clause.
    pub(super) fn find_marks(&mut self) -> Result<(), &'static str> {
        if self.parts.memory.get(0).is_none() && !has_mark(&self.text) {
            return Ok(());
        }
        let mut finder = Finder { text: &self.text, marks: Vec::new() };
        finder.value(&mut Reader::new(&self.text));
        let marks = finder.marks;
        let mut used = vec![false; marks.len()];
        for (_, index) in &marks {
            // Only a valid frame has as many parts as it has uses of them.
            if self.parts.memory.get(*index).is_none() {
                return Err("a document that uses a part which is not there");
            }
            if used.len() <= *index {
                used.resize(index + 1, false);
            }
            match used.get_mut(*index) {
                Some(used) if !*used => *used = true,
                _ => return Err("a document that uses a part twice"),
            }
        }
        self.parts.marks = marks;
        Ok(())
    }
}

impl IncomingParts {
    /// Whether the document has none.
    pub(super) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The part that a value of the document stands for.
    pub(super) fn part(&self, value: Range<usize>) -> Option<usize> {
        self.marks.iter().find(|(mark, _)| *mark == value).map(|(_, index)| *index)
    }

    pub(super) fn memory(&self) -> &Arc<Parts> {
        &self.memory
    }

    /// The text with the parts as base64.
    pub(super) fn inlined(&self, text: &[u8]) -> Bytes {
        let mut out = Vec::with_capacity(text.len());
        let mut done = 0;
        for (range, index) in &self.marks {
            out.extend_from_slice(text.get(done..range.start).unwrap_or_default());
            done = range.end;
            out.push(b'"');
            let bytes = self.memory.get(*index).map_or(&[][..], |part| part.bytes);
            encode_both(&mut out, bytes, &[]);
            out.push(b'"');
        }
        out.extend_from_slice(text.get(done..).unwrap_or_default());
        out.into()
    }
}

/// The member of an object that stands for a part.
const PART: &[u8] = b"$part";

fn has_mark(text: &[u8]) -> bool {
    memchr::memmem::find(text, PART).is_some()
}

/// Finds the objects that stand for parts.
struct Finder<'a> {
    text: &'a [u8],
    marks: Vec<(Range<usize>, usize)>,
}

impl Finder<'_> {
    fn value(&mut self, reader: &mut Reader<'_>) {
        match reader.kind() {
            ValueKind::Array => {
                reader.enter();
                while reader.next_item() {
                    self.value(reader);
                }
            }
            ValueKind::Object => {
                let mut whole = reader.clone();
                if let Some(index) = part_index(reader.clone()) {
                    let text = whole.skip();
                    let start = text.as_ptr() as usize - self.text.as_ptr() as usize;
                    self.marks.push((start..start + text.len(), index));
                    *reader = whole;
                    return;
                }
                reader.enter();
                while reader.next_key().is_some() {
                    self.value(reader);
                }
            }
            _ => {
                reader.skip();
            }
        }
    }
}

/// The index in an object of one member that stands for a part.
fn part_index(mut reader: Reader<'_>) -> Option<usize> {
    reader.enter();
    let key = reader.next_key()?;
    if key.is_escaped() || key.raw() != PART || reader.kind() != ValueKind::Number {
        return None;
    }
    let index = reader.number().as_i64()?;
    if reader.next_key().is_some() {
        return None;
    }
    Some(usize::try_from(index).unwrap_or(usize::MAX))
}
