//! Messages that are put, and messages that were received.
#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffer_pool::PooledBuffer;
use crate::delivery_state::ReceiveCredit;
use crate::frame::{Encoding, HEADER_BYTES, Header, Kind, SEGMENT_ENTRY_BYTES};
use crate::identity::Identity;
use crate::view::View;

/// The weight of a message beyond its length, so that empty messages count against limits.
pub const MESSAGE_WEIGHT: usize = 128;
/// The weight of each segment but the first beyond its length, because each has memory of its own.
const SEGMENT_WEIGHT: usize = 64;
/// Messages up to this length are copied into a batch; longer ones are sent from where they are.
pub const COPIED_BYTES_MAX: usize = 8 * 1024;

/// The weight of a message of this many bytes and segments in a queue or an inbox.
pub(crate) fn weight(bytes: usize, segments: usize) -> usize {
    bytes + MESSAGE_WEIGHT + segments.saturating_sub(1) * SEGMENT_WEIGHT
}

/// A message to be put.
#[derive(Clone, Debug)]
pub struct Outgoing<'a> {
    /// The meaning of its bytes.
    pub encoding: Encoding,
    /// Its bytes, if they are one slice that may be copied.
    pub copied: &'a [u8],
    /// Or else its bytes in several parts.
    pub parts: Vec<Bytes>,
    /// The lengths of its segments, if there are several. Their sum is that of the parts.
    pub segments: Vec<u64>,
    /// The names in it that not every side accepts.
    pub names: &'a [String],
}

impl<'a> Outgoing<'a> {
    /// A message of one segment, to be copied.
    pub fn copied(encoding: Encoding, bytes: &'a [u8]) -> Self {
        Self { encoding, copied: bytes, parts: Vec::new(), segments: Vec::new(), names: &[] }
    }

    /// Its length, with the table of segments.
    pub fn len(&self) -> usize {
        let parts = self.parts.iter().map(Bytes::len).sum::<usize>();
        self.copied.len() + parts + self.segments.len() * SEGMENT_ENTRY_BYTES
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its weight in a queue.
    pub fn weight(&self) -> usize {
        weight(self.len(), self.segments.len())
    }

    /// Appends the header of its frame, and the table of segments if there is one.
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

/// A segment of a received message.
#[derive(Debug)]
pub enum Segment {
    /// A slice of the copy of one read, shared with other messages.
    Shared(Bytes),
    /// Memory of its own.
    Owned(PooledBuffer),
    /// Memory that another process has mapped, too.
    Mapped(View),
}

impl Segment {
    /// The bytes, copied if the peer could change them meanwhile.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Shared(bytes) => Cow::Borrowed(bytes),
            Self::Owned(bytes) => Cow::Borrowed(bytes),
            Self::Mapped(view) => {
                view.as_slice().map_or_else(|| Cow::Owned(view.to_vec()), Cow::Borrowed)
            }
        }
    }

    /// Its address and length, readable for as long as the segment exists. A peer may change a
    /// [`Segment::Mapped`] meanwhile; writing to that is never allowed.
    pub fn as_raw(&self) -> (*const u8, usize) {
        match self {
            Self::Shared(bytes) => (bytes.as_ptr(), bytes.len()),
            Self::Owned(bytes) => (bytes.as_ptr(), bytes.len()),
            Self::Mapped(view) => (view.as_ptr(), view.len()),
        }
    }

    /// Copies a shared segment into memory of its own.
    pub(crate) fn detach(&mut self) {
        if let Self::Shared(bytes) = self {
            *bytes = Bytes::copy_from_slice(bytes);
        }
    }
}

/// The segments of a received message.
#[derive(Debug)]
pub enum Body {
    /// One segment.
    One(Segment),
    /// The serializer's stream, then its out-of-band buffers.
    Many(Vec<Segment>),
}

impl Body {
    /// Copies shared segments into memory of their own.
    pub(crate) fn detach(&mut self) {
        match self {
            Self::One(segment) => segment.detach(),
            Self::Many(segments) => segments.iter_mut().for_each(Segment::detach),
        }
    }
}

/// A received message.
#[derive(Debug)]
pub struct Incoming {
    /// Its sender.
    pub peer: Identity,
    /// Where `get` counts it as taken.
    pub credit: Arc<ReceiveCredit>,
    /// Its number in the session.
    pub sequence: u64,
    /// Its weight in the inbox.
    pub weight: usize,
    /// The meaning of its bytes.
    pub encoding: Encoding,
    /// An earlier incarnation of this communicator may have received it.
    pub redelivered: bool,
    /// Its bytes.
    pub body: Body,
}
