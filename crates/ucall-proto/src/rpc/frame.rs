//! Frames: a JSON-RPC document whose arrays, images and bytes lie behind it.
//!
//! | at | of a frame, numbers with their lowest byte first |
//! |---|---|
//! | 0 | [`FRAME_BYTE`], which begins no JSON, no text in UTF-8, no HTTP and no TLS |
//! | 1 | the version, 1 |
//! | 2 | the number of parts, 16 bits |
//! | 4 | the length of the JSON text, 32 bits |
//! | 8 | the length of each part, 64 bits |
//! | then | the JSON text |
//! | with parts | each part, behind zero bytes up to a multiple of [`FRAME_ALIGNMENT`] |
//!
//! In the JSON text `{"$part": 0}` stands where the base64 of the first part may stand. All lengths
//! are checked against the limits before anything is allocated.
//!
//! The parts of frames of version 2 lie in memory that both sides share.
//!
//! | at | of a frame of version 2, numbers with their lowest byte first |
//! |---|---|
//! | 0 | as in version 1, up to the length of the JSON text |
//! | 8 | the place of each part, four numbers of 64 bits |
//! | then | the JSON text |
//!
//! | number | of a place |
//! |---|---|
//! | 1 | the slot that has the part, one of the receiver with the highest bit |
//! | 2 | the number of the descriptor that was sent for the slot; 0 if the receiver has it |
//! | 3 | where the part begins in the slot, a multiple of [`FRAME_ALIGNMENT`] |
//! | 4 | its length |
//!
//! Only a connection that has agreed on shared memory has such frames; its short ones are of
//! version 1, as are all for which no slot is free.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ucall_buffer::{
    BufferPool, Bytes, PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace,
};

use super::parts::{Parts, ResultPart, inline_results};
use crate::connection::MemoryBudget;
use crate::{Limits, RpcError};

/// The first byte of a frame.
pub const FRAME_BYTE: u8 = 0xB1;
/// What the start of each part is a multiple of.
pub const FRAME_ALIGNMENT: usize = 64;
/// The media type of a frame.
pub const FRAME_MEDIA_TYPE: &str = "application/vnd.ucall.parts";

const VERSION: u8 = 1;
/// The version of frames whose parts are in shared memory.
const SHARED_VERSION: u8 = 2;
/// The bytes of a place, and of each number of it.
const PLACE_BYTES: usize = 4 * NUMBER_BYTES;
const NUMBER_BYTES: usize = 8;
/// What marks a slot of the receiver.
const RECEIVERS: u64 = 1 << 63;
/// Shorter parts, all of a frame together, are faster through the socket.
const SHARED_BYTES_MIN: usize = 64 << 10;
const FIXED_BYTES: usize = 8;
const LENGTH_BYTES: usize = 8;

/// Shorter parts of a result are copied into the output.
pub(crate) const ATTACHED_BYTES_MIN: usize = 64 << 10;

/// Bytes that are sent behind the first bytes of an output, without a copy.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// How many bytes of the output precede them.
    pub at: usize,
    /// The bytes.
    pub bytes: Bytes,
}

/// Where the text and the parts of a frame are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FrameHead {
    /// The JSON text.
    pub text: Range<usize>,
    /// The parts, in order.
    pub parts: Vec<Range<usize>>,
    /// The length of the frame.
    pub len: usize,
    /// Where the parts are in memory that both sides share; `None` if they are in the frame. Then
    /// `parts` has none.
    pub places: Option<Vec<PartPlace>>,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A version other than 1, and than 2 between sides that share memory.
    Version(u8),
    /// More parts than [`Limits::parts_max`].
    TooManyParts {
        /// The limit.
        max: usize,
    },
    /// More bytes than [`Limits::body_bytes_max`].
    TooLong {
        /// The limit.
        max: usize,
    },
    /// The lengths are not those of the message that has the frame.
    Length,
    /// Bytes between parts that are not 0.
    Padding,
    /// There is no memory for the parts.
    NoMemory,
    /// The memory that both sides share does not have the parts.
    SharedMemory,
}

impl fmt::Display for FrameError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => {
                write!(formatter, "expected a frame of version {VERSION}, not {version}")
            }
            Self::TooManyParts { max } => {
                write!(formatter, "expected a frame of at most {max} parts (max_parts)")
            }
            Self::TooLong { max } => {
                write!(formatter, "expected a frame of at most {max} bytes (max_body_bytes)")
            }
            Self::Length => {
                formatter.write_str("expected a frame whose lengths add up to that of the message")
            }
            Self::Padding => {
                formatter.write_str("expected zero bytes between the parts of a frame")
            }
            Self::NoMemory => formatter.write_str("there is no memory for the parts"),
            Self::SharedMemory => formatter.write_str(
                "expected parts in shared memory that is sealed, long enough and not in use",
            ),
        }
    }
}

impl FrameError {
    /// The error that the peer gets.
    pub(crate) fn rpc_error(self) -> RpcError {
        match self {
            Self::NoMemory => RpcError::overloaded(),
            _ => RpcError::invalid_request(&self.to_string()),
        }
    }
}

/// The first multiple of [`FRAME_ALIGNMENT`] from `at` on.
pub(super) fn aligned(at: usize) -> Option<usize> {
    at.checked_next_multiple_of(FRAME_ALIGNMENT)
}

/// Whether bytes begin as a frame.
#[inline]
pub(crate) fn begins_frame(bytes: &[u8]) -> bool {
    bytes.first() == Some(&FRAME_BYTE)
}

impl FrameHead {
    /// Reads the head of a frame, of which `bytes` may be a part; `None` if its lengths are
    /// incomplete. The text and the parts may still be missing.
    ///
    /// # Errors
    /// [`FrameError`], before anything is allocated.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Option<Self>, FrameError> {
        let Some((&[_, version, parts @ .., a, b, c, d], rest)) =
            bytes.split_first_chunk::<FIXED_BYTES>()
        else {
            return Ok(None);
        };
        let number_bytes = match version {
            VERSION => LENGTH_BYTES,
            SHARED_VERSION => PLACE_BYTES,
            _ => return Err(FrameError::Version(version)),
        };
        let count = usize::from(u16::from_le_bytes(parts));
        if count > limits.parts_max {
            return Err(FrameError::TooManyParts { max: limits.parts_max });
        }
        let too_long = FrameError::TooLong { max: limits.body_bytes_max };
        let within = |end: &usize| *end <= limits.body_bytes_max;
        let text_at = FIXED_BYTES + count * number_bytes;
        let text_len = usize::try_from(u32::from_le_bytes([a, b, c, d])).ok();
        let text_end = text_len.and_then(|len| text_at.checked_add(len)).filter(within);
        let text_end = text_end.ok_or(too_long)?;
        let Some(numbers) = rest.get(..count * number_bytes) else { return Ok(None) };
        if version == SHARED_VERSION {
            let places = read_places(numbers);
            let lens = places.iter().map(|place| place.bytes);
            part_ranges(0, lens, limits.body_bytes_max)?;
            let text = text_at..text_end;
            return Ok(Some(Self { text, parts: Vec::new(), len: text_end, places: Some(places) }));
        }
        let lens = numbers.as_chunks().0.iter().map(|len| u64::from_le_bytes(*len));
        let parts = part_ranges(text_end, lens, limits.body_bytes_max)?;
        let len = parts.last().map_or(text_end, |part| part.end);
        Ok(Some(Self { text: text_at..text_end, parts, len, places: None }))
    }

    /// Where the first part begins; the length of the frame if it has none.
    pub fn tail_at(&self) -> usize {
        self.parts.first().map_or(self.len, |part| part.start)
    }

    /// Whether the zero bytes are 0 that precede each part. `bytes` begin `skipped` bytes after the
    /// start of the frame, and those that precede them are not looked at.
    pub fn has_valid_padding(&self, bytes: &[u8], skipped: usize) -> bool {
        let mut end = self.text.end;
        self.parts.iter().all(|part| {
            let gap = end.max(skipped)..part.start.max(skipped);
            end = part.end;
            bytes
                .get(gap.start - skipped..gap.end - skipped)
                .is_some_and(|gap| gap.iter().all(|&byte| byte == 0))
        })
    }
}

/// Where parts of these lengths are, one after another from the first multiple of
/// [`FRAME_ALIGNMENT`] on.
fn part_ranges(
    from: usize,
    lens: impl ExactSizeIterator<Item = u64>,
    bytes_max: usize,
) -> Result<Vec<Range<usize>>, FrameError> {
    let too_long = FrameError::TooLong { max: bytes_max };
    let mut end = from;
    let mut ranges = Vec::with_capacity(lens.len());
    for len in lens {
        let start = aligned(end).ok_or(too_long)?;
        let len = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
        end = len.filter(|end| *end <= bytes_max).ok_or(too_long)?;
        ranges.push(start..end);
    }
    Ok(ranges)
}

/// The memory of the parts of a frame, whose first byte is aligned.
#[derive(Debug)]
pub(crate) struct TailMemory {
    bytes: Vec<u8>,
    start: usize,
}

impl TailMemory {
    /// Memory for `len` bytes; the system provides its pages as it is filled.
    ///
    /// # Errors
    /// There is not as much.
    pub(crate) fn new(len: usize, pool: &BufferPool) -> Result<Self, FrameError> {
        let bytes = pool.allocate(len.saturating_add(FRAME_ALIGNMENT - 1));
        let mut bytes = bytes.map_err(|_| FrameError::NoMemory)?;
        let start = bytes.as_ptr().align_offset(FRAME_ALIGNMENT);
        bytes.resize(start, 0);
        Ok(Self { bytes, start })
    }

    /// The bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len().saturating_sub(self.start)
    }

    /// Takes the vector out, to be filled behind its contents, where there is room.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Takes it back.
    pub(crate) fn put(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
    }

    /// Appends bytes, which fit.
    pub(crate) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The parts of a frame whose tail it is.
    ///
    /// # Errors
    /// Bytes between them are not 0.
    pub(crate) fn into_parts(
        self,
        head: &FrameHead,
        budget: &MemoryBudget,
    ) -> Result<Arc<Parts>, FrameError> {
        let Self { bytes, start } = self;
        let tail_at = head.tail_at();
        if !head.has_valid_padding(bytes.get(start..).unwrap_or_default(), tail_at) {
            return Err(FrameError::Padding);
        }
        let place =
            |part: &Range<usize>| (part.start - tail_at + start..part.end - tail_at + start, None);
        let reserved = budget.reserve_large(bytes.len());
        let bytes = budget.pool().share(bytes);
        let parts = Parts::new(bytes, head.parts.iter().map(place).collect());
        Ok(Arc::new(parts.reserving(reserved)))
    }
}

/// A frame that has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Frame<'a> {
    /// Its JSON text.
    pub(crate) text: &'a [u8],
    /// `None` without parts.
    pub(crate) parts: Option<Arc<Parts>>,
}

impl<'a> Frame<'a> {
    /// The frame that `bytes` are, whose parts are copied to memory of their own, or in `memory`.
    ///
    /// # Errors
    /// They are none.
    pub(crate) fn read(
        bytes: &'a [u8],
        limits: &Limits,
        budget: &MemoryBudget,
        memory: Option<&mut (dyn SharedMemory + '_)>,
    ) -> Result<Self, FrameError> {
        let head = FrameHead::parse(bytes, limits)?.ok_or(FrameError::Length)?;
        if head.len != bytes.len() {
            return Err(FrameError::Length);
        }
        if let Some(places) = &head.places {
            let text = bytes.get(head.text.clone()).ok_or(FrameError::Length)?;
            let parts = take_parts(memory, places)?;
            // A copy is held here; what lies in a slot is counted alike.
            let len = places.iter().map(|place| place.bytes as usize).sum();
            let parts = parts.reserving(budget.reserve_large(len));
            return Ok(Self { text, parts: Some(Arc::new(parts)) });
        }
        let tail = bytes.get(head.tail_at()..).unwrap_or_default();
        let mut memory = TailMemory::new(tail.len(), budget.pool())?;
        memory.extend(tail);
        Self::with_tail(bytes, &head, memory, budget)
    }

    /// The frame whose first bytes, up to its parts, are `bytes`, and whose parts are in `memory`.
    ///
    /// # Errors
    /// Bytes between parts are not 0.
    pub(crate) fn with_tail(
        bytes: &'a [u8],
        head: &FrameHead,
        memory: TailMemory,
        budget: &MemoryBudget,
    ) -> Result<Self, FrameError> {
        let text = bytes.get(head.text.clone()).ok_or(FrameError::Length)?;
        let gap = bytes.get(head.text.end..head.tail_at()).ok_or(FrameError::Length)?;
        if gap.iter().any(|&byte| byte != 0) {
            return Err(FrameError::Padding);
        }
        let parts = match head.parts.is_empty() {
            true => None,
            false => Some(memory.into_parts(head, budget)?),
        };
        Ok(Self { text, parts })
    }
}

/// Appends the head of a frame for a text of `text_len` bytes and parts of these lengths.
///
/// # Errors
/// There are more parts, or a longer text, than a frame may have.
pub fn write_frame_head(
    out: &mut Vec<u8>,
    text_len: usize,
    parts: &[usize],
) -> Result<(), FrameError> {
    write_head(out, VERSION, text_len, parts.len())?;
    for &part in parts {
        out.extend_from_slice(&(part as u64).to_le_bytes());
    }
    Ok(())
}

/// Appends the head of a frame up to its lengths.
fn write_head(
    out: &mut Vec<u8>,
    version: u8,
    text_len: usize,
    parts: usize,
) -> Result<(), FrameError> {
    let too_many = FrameError::TooManyParts { max: usize::from(u16::MAX) };
    let count = u16::try_from(parts).map_err(|_| too_many)?;
    let too_long = FrameError::TooLong { max: u32::MAX as usize };
    let text_len = u32::try_from(text_len).map_err(|_| too_long)?;
    out.extend_from_slice(&[FRAME_BYTE, version]);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&text_len.to_le_bytes());
    Ok(())
}

/// The zero bytes that follow `len` bytes of a frame before its next part.
pub fn frame_padding(len: usize) -> &'static [u8] {
    const ZEROS: [u8; FRAME_ALIGNMENT] = [0; FRAME_ALIGNMENT];
    let over = len % FRAME_ALIGNMENT;
    ZEROS.get(over..).filter(|_| over > 0).unwrap_or_default()
}

/// The reply of a call with the parts of its result.
#[derive(Debug)]
pub(crate) struct ResultFrame {
    text: Vec<u8>,
    parts: Vec<ResultPart>,
    /// What precedes the bytes of each part.
    headers: Vec<Vec<u8>>,
    /// Where the parts are, if both sides share memory.
    places: Option<Vec<PartPlace>>,
}

impl ResultFrame {
    /// A reply whose text is this; the text with base64 in their place if there are more parts
    /// than a frame may have.
    pub(crate) fn new(text: Vec<u8>, parts: Vec<ResultPart>) -> Result<Self, Vec<u8>> {
        if parts.len() > usize::from(u16::MAX) || u32::try_from(text.len()).is_err() {
            return Err(inline_results(&text, &parts));
        }
        let headers = parts.iter().map(ResultPart::header).collect();
        Ok(Self { text, parts, headers, places: None })
    }

    /// The text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.text
    }

    /// The text and the parts, for other replies than frames.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<ResultPart>) {
        (self.text, self.parts)
    }

    /// The text with the base64 of the parts in their place.
    pub(crate) fn inlined(&self) -> Vec<u8> {
        inline_results(&self.text, &self.parts)
    }

    /// The length of each part.
    fn part_lens(&self) -> impl Iterator<Item = usize> {
        self.headers.iter().zip(&self.parts).map(|(header, part)| header.len() + part.bytes.len())
    }

    /// Puts the parts into shared memory, if there is room and they are worth it.
    pub(crate) fn share(&mut self, memory: &mut dyn SharedMemory) {
        let pairs = self.headers.iter().zip(&self.parts);
        let parts: Vec<_> = pairs.map(|(header, part)| [&header[..], &part.bytes[..]]).collect();
        // A peer that has broken the rules is noticed with its next frame.
        self.places = place_parts(memory, &parts).unwrap_or_default();
    }

    /// The length of the frame.
    pub(crate) fn len(&self) -> usize {
        if let Some(places) = &self.places {
            return FIXED_BYTES + places.len() * PLACE_BYTES + self.text.len();
        }
        let mut len = FIXED_BYTES + self.parts.len() * LENGTH_BYTES + self.text.len();
        for part in self.part_lens() {
            len += frame_padding(len).len() + part;
        }
        len
    }

    /// Appends the frame. Large parts are not copied, but attached; returns the bytes of these.
    pub(crate) fn write(
        self,
        out: &mut Vec<u8>,
        attachments: Option<&mut Vec<Attachment>>,
    ) -> usize {
        let start = out.len();
        let is_written = match &self.places {
            Some(places) => write_shared_head(out, self.text.len(), places),
            None => {
                let lens: Vec<usize> = self.part_lens().collect();
                write_frame_head(out, self.text.len(), &lens)
            }
        };
        debug_assert!(is_written.is_ok(), "`new` has checked the numbers");
        out.extend_from_slice(&self.text);
        if self.places.is_some() {
            return 0;
        }
        let mut attachments = attachments;
        let mut attached = 0;
        for (header, part) in self.headers.iter().zip(self.parts) {
            out.extend_from_slice(frame_padding(out.len() - start + attached));
            out.extend_from_slice(header);
            match &mut attachments {
                Some(list) if part.bytes.len() >= ATTACHED_BYTES_MIN => {
                    attached += attach(part.bytes, out, list);
                }
                _ => out.extend_from_slice(&part.bytes),
            }
        }
        attached
    }
}

/// Attaches bytes to the end of an output; returns their number. So many of the first ones are
/// copied that the output is no small one: those are sent without a look at the attachments.
pub(crate) fn attach(bytes: Bytes, out: &mut Vec<u8>, attachments: &mut Vec<Attachment>) -> usize {
    let copied = (MemoryBudget::UNRESERVED_BYTES + 1).saturating_sub(out.len()).min(bytes.len());
    out.extend_from_slice(bytes.get(..copied).unwrap_or_default());
    let rest = bytes.slice(copied..);
    let len = rest.len();
    attachments.push(Attachment { at: out.len(), bytes: rest });
    len
}

/// The places in these bytes.
fn read_places(bytes: &[u8]) -> Vec<PartPlace> {
    let place = |[slot, descriptor, start, len]: [u64; 4]| PartPlace {
        owner: if slot & RECEIVERS == 0 { SlotOwner::Sender } else { SlotOwner::Receiver },
        slot: SlotPlace { slot: slot & !RECEIVERS, descriptor },
        start,
        bytes: len,
    };
    let numbers = bytes.as_chunks::<NUMBER_BYTES>().0.as_chunks::<4>().0;
    numbers.iter().map(|numbers| place(numbers.map(u64::from_le_bytes))).collect()
}

/// Appends the head of a frame whose parts are at these places.
///
/// # Errors
/// There are more parts, or a longer text, than a frame may have.
pub fn write_shared_head(
    out: &mut Vec<u8>,
    text_len: usize,
    places: &[PartPlace],
) -> Result<(), FrameError> {
    write_head(out, SHARED_VERSION, text_len, places.len())?;
    for PartPlace { owner, slot, start, bytes } in places {
        let mark = if *owner == SlotOwner::Receiver { RECEIVERS } else { 0 };
        for number in [slot.slot | mark, slot.descriptor, *start, *bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
    Ok(())
}

/// Places parts, each of which is a header and its bytes, in shared memory, if there are enough
/// bytes.
///
/// # Errors
/// The peer has broken the rules of shared memory.
pub fn place_parts(
    memory: &mut dyn SharedMemory,
    parts: &[[&[u8]; 2]],
) -> Result<Option<Vec<PartPlace>>, SharedMemoryError> {
    let bytes: usize = parts.iter().flatten().map(|piece| piece.len()).sum();
    if bytes < SHARED_BYTES_MIN { Ok(None) } else { memory.place(parts) }
}

/// The parts of a frame that are in shared memory.
///
/// # Errors
/// The connection has none, or the peer has broken its rules.
pub fn take_parts(
    memory: Option<&mut (dyn SharedMemory + '_)>,
    places: &[PartPlace],
) -> Result<Parts, FrameError> {
    let memory = memory.ok_or(FrameError::Version(SHARED_VERSION))?;
    let parts = memory.take(places).map_err(|error| match error {
        SharedMemoryError::OutOfMemory => FrameError::NoMemory,
        _ => FrameError::SharedMemory,
    })?;
    Ok(Parts::apart(parts))
}
