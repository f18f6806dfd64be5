//! Messages on their way out, and in.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer_pool::PooledBuffer;
use crate::delivery_state::ReceiveCredit;
use crate::frame::{Encoding, HEADER_BYTES, Header, Kind, SEGMENT_ENTRY_BYTES};
use crate::identity::Identity;
use crate::shared::View;

/// What a message counts beyond its length where memory is bounded, so that empty ones count too.
pub const MESSAGE_WEIGHT: usize = 128;
/// What each segment of a message but the first counts beyond its length, so that a message of many
/// short ones, each with memory of its own, counts what it takes.
const SEGMENT_WEIGHT: usize = 64;
/// Messages up to this length are copied into a batch; longer ones are sent from where they lie.
pub const COPIED_BYTES_MAX: usize = 8 * 1024;

/// What a message of so many bytes and segments counts in a queue or an inbox.
pub(crate) fn weight(bytes: usize, segments: usize) -> usize {
    bytes + MESSAGE_WEIGHT + segments.saturating_sub(1) * SEGMENT_WEIGHT
}

/// A message to be put.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// What its bytes are.
    pub encoding: Encoding,
    /// Its bytes, if they lie in one place and may be copied.
    pub copied: &'a [u8],
    /// Or else, in order, where they lie.
    pub parts: Vec<Bytes>,
    /// The lengths of its segments; none when there is only one. Their sum is that of the parts.
    pub segments: Vec<u64>,
}

impl<'a> Outgoing<'a> {
    /// A message of one segment, to be copied.
    pub fn copied(encoding: Encoding, bytes: &'a [u8]) -> Self {
        Self { encoding, copied: bytes, parts: Vec::new(), segments: Vec::new() }
    }

    /// Its length, with the table of its segments.
    pub fn len(&self) -> usize {
        let parts = self.parts.iter().map(Bytes::len).sum::<usize>();
        self.copied.len() + parts + self.segments.len() * SEGMENT_ENTRY_BYTES
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it counts in a queue.
    pub fn weight(&self) -> usize {
        weight(self.len(), self.segments.len())
    }

    /// Appends the head of its frame: the header, and the table if there is one.
    pub(crate) fn write_head(&self, sequence: u64, output: &mut Vec<u8>) {
        let header = Header {
            kind: Kind::Data,
            encoding: self.encoding,
            repeated: false,
            segments: u16::try_from(self.segments.len().max(1)).unwrap_or(u16::MAX),
            sequence,
            length: self.len() as u64,
        };
        output.reserve(HEADER_BYTES + self.segments.len() * SEGMENT_ENTRY_BYTES);
        output.extend_from_slice(&header.write());
        for length in &self.segments {
            output.extend_from_slice(&length.to_le_bytes());
        }
    }
}

/// A piece of a message that came.
#[derive(Debug)]
pub enum Segment {
    /// Part of what one read brought, shared with its neighbours.
    Shared(Bytes),
    /// Memory of its own.
    Owned(PooledBuffer),
    /// Memory that another process has, too.
    Mapped(View),
}

impl Segment {
    /// The bytes: copied if the peer could change them meanwhile.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Shared(bytes) => Cow::Borrowed(bytes),
            Self::Owned(bytes) => Cow::Borrowed(bytes),
            Self::Mapped(view) => {
                view.as_slice().map_or_else(|| Cow::Owned(view.to_vec()), Cow::Borrowed)
            }
        }
    }

    /// Where it begins, and its length. It can be read for as long as the segment is there; what
    /// is [`Segment::Mapped`] may change meanwhile and is never to be written.
    pub fn as_raw(&self) -> (*const u8, usize) {
        match self {
            Self::Shared(bytes) => (bytes.as_ptr(), bytes.len()),
            Self::Owned(bytes) => (bytes.as_ptr(), bytes.len()),
            Self::Mapped(view) => (view.as_ptr(), view.len()),
        }
    }

    /// Leaves the neighbours.
    pub(crate) fn detach(&mut self) {
        if let Self::Shared(bytes) = self {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// The pieces of a message that came.
#[derive(Debug)]
pub enum Body {
    /// One.
    One(Segment),
    /// What the serializer wrote, then the buffers it left out.
    Many(Vec<Segment>),
}

impl Body {
    /// Leaves what else the same read has brought.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::One(segment) => segment.detach(),
            Self::Many(segments) => segments.iter_mut().for_each(Segment::detach),
        }
    }
}

/// A message that came.
#[derive(Debug)]
pub struct Incoming {
    /// Who sent it.
    pub peer: Identity,
    /// Where it is noted once it is taken.
    pub credit: Arc<ReceiveCredit>,
    /// Its number among the peer's.
    pub sequence: u64,
    /// What it counts in the inbox.
    pub weight: usize,
    /// What its bytes are.
    pub encoding: Encoding,
    /// It may have come to an earlier life of this communicator.
    pub redelivered: bool,
    /// Its bytes.
    pub body: Body,
}
