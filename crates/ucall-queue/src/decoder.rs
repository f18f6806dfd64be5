//! Decodes frames from bytes that arrive in any pieces.
//!
//! The bytes of one read are copied once, and short messages are slices of that copy. A long
//! message gets memory of its own, which an engine may fill directly ([`Decoder::poll_target`]).
//! The memory is reserved when the header has arrived; the system hands out its pages as bytes
//! arrive. It has room for the beginning of the next frame, so that long messages that follow each
//! other take one receive each.
#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Target;

use crate::accepted_names::NAMES_BYTES_MAX;
use crate::buffer_pool::BufferPool;
use crate::frame::{
    HEADER_BYTES, HELLO_BYTES, Header, Kind, PROGRESS_BYTES, ProtocolError, REASON_BYTES_MAX,
    SEGMENT_ENTRY_BYTES, read_u64, record_bytes,
};
use crate::message::{Body, Segment};

/// A message longer than this gets memory of its own.
const SHARED_BYTES_MAX: usize = 32 * 1024;
/// Fewer missing bytes are received without a target.
const TARGET_BYTES_MIN: usize = 16 * 1024;
/// The longest target, so that the progress of a slow peer is seen.
const TARGET_BYTES_MAX: usize = 8 << 20;

/// Bytes that a target receives after the end of a segment: the header of the next message, and the
/// table and stream of one with arrays. Received bytes of its buffers are copied.
const AHEAD_BYTES: usize = 1024;

/// The copy of a shorter read is always shared, however little of it is used.
const COPY_BYTES_MIN: usize = 1024;

/// A decoded frame.
#[derive(Debug)]
pub(crate) enum Frame {
    Control(Header, Bytes),
    Data(Header, Body),
}

/// Reads the frames of one link.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: DecoderState,
    pool: Arc<BufferPool>,
    message_bytes_max: usize,
    /// Before it is done, only a handshake is accepted.
    is_handshake_done: bool,
    /// The link has shared memory.
    allows_shared_memory: bool,
    /// The last message was long. The next may be, too: little of it is copied if its header is
    /// received before the rest.
    was_long: bool,
}

#[derive(Debug)]
enum DecoderState {
    /// Part of a header, or of a header and a short body.
    Partial(Vec<u8>),
    /// The table of a long message.
    Table(Header, Vec<u8>),
    /// The segments of a long message.
    Segments(Box<PartialMessage>),
    /// The body of a cancelled message, and its missing bytes.
    Skip(Header, u64),
    /// The engine receives into a segment.
    Receiving(Box<PartialMessage>),
    /// The engine receives into memory for the next header.
    ReceivingHeader,
}

#[derive(Debug)]
struct PartialMessage {
    header: Header,
    /// The lengths of the segments that are missing, the next one last.
    lengths: Vec<usize>,
    done: Vec<Segment>,
    current: Vec<u8>,
    /// The length of `current` once it is complete.
    length: usize,
}

impl Decoder {
    pub(crate) fn new(message_bytes_max: usize, pool: Arc<BufferPool>) -> Self {
        Self {
            state: DecoderState::Partial(Vec::new()),
            pool,
            message_bytes_max,
            is_handshake_done: false,
            allows_shared_memory: false,
            was_long: false,
        }
    }

    /// Accepts messages from now on.
    pub(crate) fn handshake_done(&mut self) {
        self.is_handshake_done = true;
    }

    /// Accepts messages in shared memory.
    pub(crate) fn enable_shared_memory(&mut self) {
        self.allows_shared_memory = true;
    }

    /// Removes the next frame from the front of `input`; `None` once that is used up. `shared`
    /// keeps the copy of the whole input, from which short messages are sliced.
    pub(crate) fn next(
        &mut self,
        input: &mut &[u8],
        shared: &mut ReadCopy<'_>,
    ) -> Result<Option<Frame>, ProtocolError> {
        loop {
            let state = std::mem::replace(&mut self.state, DecoderState::Partial(Vec::new()));
            let found = match state {
                DecoderState::Partial(partial) if partial.is_empty() => {
                    self.read_frame(input, shared)?
                }
                DecoderState::Partial(partial) => self.complete_frame(partial, input)?,
                DecoderState::Table(header, table) => self.read_table(header, table, input)?,
                DecoderState::Segments(message) => self.read_long(message, input)?,
                DecoderState::Skip(header, left) => self.skip(header, left, input),
                receiving @ (DecoderState::Receiving(_) | DecoderState::ReceivingHeader) => {
                    self.state = receiving;
                    return Ok(None);
                }
            };
            match found {
                DecodeStep::Frame(frame) => return Ok(Some(frame)),
                DecodeStep::NeedMore => return Ok(None),
                DecodeStep::Continue if input.is_empty() && !self.is_finished() => return Ok(None),
                DecodeStep::Continue => {}
            }
        }
    }

    /// Memory to receive the next bytes into, if many of one segment are missing or the header of a
    /// long message is expected.
    pub(crate) fn poll_target(&mut self) -> Option<Target> {
        let message = match &mut self.state {
            DecoderState::Segments(message) => message,
            DecoderState::Partial(partial) if partial.len() < HEADER_BYTES && self.was_long => {
                let partial = std::mem::take(partial);
                let missing = HEADER_BYTES - partial.len();
                self.state = DecoderState::ReceivingHeader;
                return Some(Target::with_extra(partial, missing, AHEAD_BYTES));
            }
            _ => return None,
        };
        let missing = message.length - message.current.len();
        if missing < TARGET_BYTES_MIN {
            return None;
        }
        let memory = std::mem::take(&mut message.current);
        let state = std::mem::replace(&mut self.state, DecoderState::Partial(Vec::new()));
        if let DecoderState::Segments(message) = state {
            self.state = DecoderState::Receiving(message);
        }
        Some(match missing > TARGET_BYTES_MAX {
            true => Target::from_vec(memory, TARGET_BYTES_MAX),
            false => Target::with_extra(memory, missing, AHEAD_BYTES),
        })
    }

    /// Takes a target back with its received bytes; returns those after the segment.
    pub(crate) fn return_target(&mut self, target: Target) -> Vec<u8> {
        let mut received = target.into_vec();
        let state = std::mem::replace(&mut self.state, DecoderState::Partial(Vec::new()));
        let (state, tail) = match state {
            DecoderState::Receiving(mut message) => {
                let tail = received.split_off(received.len().min(message.length));
                message.current = received;
                (DecoderState::Segments(message), tail)
            }
            DecoderState::ReceivingHeader => (DecoderState::Partial(Vec::new()), received),
            state => (state, Vec::new()),
        };
        self.state = state;
        tail
    }

    /// Whether the state is complete without another byte.
    fn is_finished(&self) -> bool {
        match &self.state {
            DecoderState::Segments(message) => message.current.len() == message.length,
            DecoderState::Skip(_, left) => *left == 0,
            DecoderState::Table(header, table) => table.len() == table_bytes(header),
            DecoderState::Partial(_)
            | DecoderState::Receiving(_)
            | DecoderState::ReceivingHeader => false,
        }
    }

    fn read_frame(
        &mut self,
        input: &mut &[u8],
        shared: &mut ReadCopy<'_>,
    ) -> Result<DecodeStep, ProtocolError> {
        let Some((head, tail)) = input.split_first_chunk::<HEADER_BYTES>() else {
            self.state = DecoderState::Partial(input.to_vec());
            *input = &[];
            return Ok(DecodeStep::NeedMore);
        };
        let header = self.check_header(Header::read(head)?)?;
        let length = header.length as usize;
        if self.is_long(&header) {
            *input = tail;
            return self.begin_long(header);
        }
        let Some((body, rest)) = tail.split_at_checked(length) else {
            self.state = DecoderState::Partial(input.to_vec());
            *input = &[];
            return Ok(DecodeStep::NeedMore);
        };
        let body = shared.slice(body);
        *input = rest;
        frame(header, body).map(DecodeStep::Frame)
    }

    /// Continues a frame of which part has arrived.
    fn complete_frame(
        &mut self,
        mut partial: Vec<u8>,
        input: &mut &[u8],
    ) -> Result<DecodeStep, ProtocolError> {
        take_up_to(&mut partial, HEADER_BYTES, input);
        let Some(head) = partial.first_chunk::<HEADER_BYTES>() else {
            self.state = DecoderState::Partial(partial);
            return Ok(DecodeStep::NeedMore);
        };
        let header = self.check_header(Header::read(head)?)?;
        if self.is_long(&header) {
            return self.begin_long(header);
        }
        let length = HEADER_BYTES + header.length as usize;
        take_up_to(&mut partial, length, input);
        if partial.len() < length {
            self.state = DecoderState::Partial(partial);
            return Ok(DecodeStep::NeedMore);
        }
        frame(header, Bytes::from(partial).slice(HEADER_BYTES..)).map(DecodeStep::Frame)
    }

    /// Validates a header.
    fn check_header(&mut self, header: Header) -> Result<Header, ProtocolError> {
        let is_handshake = matches!(header.kind, Kind::Hello | Kind::Welcome | Kind::Refuse);
        if is_handshake == self.is_handshake_done {
            return Err(ProtocolError::Unexpected);
        }
        match header.kind {
            Kind::Data | Kind::Cancelled => self.was_long = self.is_long(&header),
            Kind::Shared => self.was_long = false,
            // Control frames come between messages.
            _ => {}
        }
        let is_well_formed = match header.kind {
            Kind::Hello | Kind::Welcome => header.length == HELLO_BYTES as u64,
            Kind::Refuse | Kind::Rejected => header.length <= REASON_BYTES_MAX as u64,
            Kind::Accepts => header.length <= NAMES_BYTES_MAX as u64,
            Kind::Acknowledge => header.length == PROGRESS_BYTES as u64,
            Kind::Gap => header.length == 8,
            Kind::End | Kind::Ping | Kind::Pong | Kind::Blocked | Kind::Finish => {
                header.length == 0
            }
            Kind::Shared | Kind::Release if !self.allows_shared_memory => {
                return Err(ProtocolError::Unexpected);
            }
            Kind::Shared => header.segments > 0 && header.length == record_bytes(header.segments),
            Kind::Release => header.length == 0,
            Kind::Data | Kind::Cancelled => {
                if header.length > self.message_bytes_max as u64 {
                    return Err(ProtocolError::TooLong);
                }
                header.segments > 0 && table_bytes(&header) as u64 <= header.length
            }
        };
        if is_well_formed { Ok(header) } else { Err(ProtocolError::Malformed) }
    }

    fn is_long(&self, header: &Header) -> bool {
        let is_message = matches!(header.kind, Kind::Data | Kind::Cancelled);
        is_message && (header.length > SHARED_BYTES_MAX as u64 || header.segments > 1)
    }

    fn begin_long(&mut self, header: Header) -> Result<DecodeStep, ProtocolError> {
        self.state = if header.kind == Kind::Cancelled {
            DecoderState::Skip(header, header.length)
        } else if header.segments > 1 {
            DecoderState::Table(header, Vec::new())
        } else {
            DecoderState::Segments(PartialMessage::new(
                header,
                vec![header.length as usize],
                &self.pool,
            )?)
        };
        Ok(DecodeStep::Continue)
    }

    fn read_table(
        &mut self,
        header: Header,
        mut table: Vec<u8>,
        input: &mut &[u8],
    ) -> Result<DecodeStep, ProtocolError> {
        let bytes = table_bytes(&header);
        take_up_to(&mut table, bytes, input);
        if table.len() < bytes {
            self.state = DecoderState::Table(header, table);
            return Ok(DecodeStep::NeedMore);
        }
        let mut left = header.length - bytes as u64;
        let mut lengths = Vec::with_capacity(usize::from(header.segments));
        for at in (0..bytes).step_by(SEGMENT_ENTRY_BYTES) {
            let length = read_u64(&table, at);
            left = left.checked_sub(length).ok_or(ProtocolError::Malformed)?;
            lengths.push(length as usize);
        }
        if left != 0 {
            return Err(ProtocolError::Malformed);
        }
        lengths.reverse();
        self.state = DecoderState::Segments(PartialMessage::new(header, lengths, &self.pool)?);
        Ok(DecodeStep::Continue)
    }

    fn read_long(
        &mut self,
        mut message: Box<PartialMessage>,
        input: &mut &[u8],
    ) -> Result<DecodeStep, ProtocolError> {
        take_up_to(&mut message.current, message.length, input);
        if message.current.len() < message.length {
            self.state = DecoderState::Segments(message);
            return Ok(DecodeStep::NeedMore);
        }
        if message.next(&self.pool)? {
            self.state = DecoderState::Segments(message);
            return Ok(DecodeStep::Continue);
        }
        let PartialMessage { header, mut done, .. } = *message;
        let body = match (done.pop(), header.segments) {
            (Some(only), 1) => Body::One(only),
            (last, _) => {
                done.extend(last);
                Body::Many(done)
            }
        };
        Ok(DecodeStep::Frame(Frame::Data(header, body)))
    }

    fn skip(&mut self, header: Header, left: u64, input: &mut &[u8]) -> DecodeStep {
        let count = (input.len() as u64).min(left);
        *input = input.get(count as usize..).unwrap_or_default();
        if count < left {
            self.state = DecoderState::Skip(header, left - count);
            return DecodeStep::NeedMore;
        }
        DecodeStep::Frame(Frame::Control(header, Bytes::new()))
    }
}

enum DecodeStep {
    Frame(Frame),
    /// More bytes are needed.
    NeedMore,
    Continue,
}

impl PartialMessage {
    fn new(
        header: Header,
        lengths: Vec<usize>,
        pool: &BufferPool,
    ) -> Result<Box<Self>, ProtocolError> {
        let done = Vec::with_capacity(lengths.len());
        let mut message = Box::new(Self { header, lengths, done, current: Vec::new(), length: 0 });
        message.begin(pool)?;
        Ok(message)
    }

    /// Reserves memory for the next segment; `false` if there is none.
    fn begin(&mut self, pool: &BufferPool) -> Result<bool, ProtocolError> {
        let Some(length) = self.lengths.pop() else { return Ok(false) };
        self.length = length;
        let room = if length < TARGET_BYTES_MIN { length } else { length + AHEAD_BYTES };
        self.current = pool.take(room).map_err(|_| ProtocolError::OutOfMemory)?;
        Ok(true)
    }

    /// Ends the complete segment and begins the next; `false` if it was the last.
    fn next(&mut self, pool: &Arc<BufferPool>) -> Result<bool, ProtocolError> {
        self.done.push(Segment::Owned(pool.pooled(std::mem::take(&mut self.current))));
        self.begin(pool)
    }
}

/// The bytes of one read, and their copy once a message needs it.
pub(crate) struct ReadCopy<'a> {
    bytes: &'a [u8],
    copy: Option<Bytes>,
    used_bytes: usize,
}

impl<'a> ReadCopy<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, copy: None, used_bytes: 0 }
    }

    /// Whether so little of the copy is used that messages should not keep the whole of it.
    pub(crate) fn is_wasteful(&self) -> bool {
        let length = self.bytes.len();
        self.copy.is_some() && length > COPY_BYTES_MIN && self.used_bytes < length / 4
    }

    /// Copies a part of the read.
    fn slice(&mut self, part: &[u8]) -> Bytes {
        if part.is_empty() {
            return Bytes::new();
        }
        let start = part.as_ptr() as usize - self.bytes.as_ptr() as usize;
        let copy = self.copy.get_or_insert_with(|| Bytes::copy_from_slice(self.bytes));
        self.used_bytes += part.len();
        copy.slice(start..start + part.len())
    }
}

fn table_bytes(header: &Header) -> usize {
    match header.segments {
        0 | 1 => 0,
        segments => usize::from(segments) * SEGMENT_ENTRY_BYTES,
    }
}

/// Moves bytes from the front of `input` until there are `length` of them.
fn take_up_to(buffer: &mut Vec<u8>, length: usize, input: &mut &[u8]) {
    let count = length.saturating_sub(buffer.len()).min(input.len());
    let (taken, rest) = input.split_at(count);
    buffer.extend_from_slice(taken);
    *input = rest;
}

fn frame(header: Header, body: Bytes) -> Result<Frame, ProtocolError> {
    Ok(match header.kind {
        Kind::Data => Frame::Data(header, Body::One(Segment::Shared(body))),
        _ => Frame::Control(header, body),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Encoding;

    const LONG: usize = 100_000;

    fn message(sequence: u64) -> Vec<u8> {
        let length = LONG as u64;
        let (kind, encoding) = (Kind::Data, Encoding::Bytes);
        let header = Header { kind, encoding, repeated: false, segments: 1, sequence, length };
        let mut frame = header.write().to_vec();
        frame.resize(HEADER_BYTES + LONG, sequence as u8);
        frame
    }

    /// Feeds a whole stream into targets as they are offered; counts targets and messages.
    fn feed(stream: &[u8]) -> (usize, usize) {
        let mut decoder = Decoder::new(1 << 20, BufferPool::new(1 << 20));
        decoder.handshake_done();
        let (mut targets, mut messages) = (0, 0);
        let mut tail = stream[..HEADER_BYTES].to_vec();
        let mut rest = &stream[HEADER_BYTES..];
        loop {
            let mut input = &tail[..];
            let mut shared = ReadCopy::new(&tail);
            while let Some(frame) = decoder.next(&mut input, &mut shared).unwrap() {
                messages += usize::from(matches!(frame, Frame::Data(..)));
            }
            if rest.is_empty() {
                return (targets, messages);
            }
            let mut target = decoder.poll_target().expect("a target");
            targets += 1;
            rest = &rest[target.write(rest)..];
            tail = decoder.return_target(target);
        }
    }

    #[test]
    fn a_long_message_takes_one_receive() {
        let stream: Vec<u8> = (1..=10).flat_map(message).collect();
        assert_eq!(feed(&stream), (10, 10));
    }

    #[test]
    fn control_frames_between_long_messages_cost_nothing() {
        let ping = Header::control(Kind::Ping, 0, 0).write();
        let stream: Vec<u8> =
            (1..=10).flat_map(|number| [message(number), ping.to_vec()].concat()).collect();
        assert_eq!(feed(&stream), (10, 10));
    }
}
