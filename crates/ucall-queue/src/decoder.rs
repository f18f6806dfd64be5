//! Frames out of bytes that come in any pieces.
//!
//! What one read brought is copied once, and short messages are slices of that copy. A long one
//! gets memory of its own, which an engine may fill directly ([`Decoder::poll_target`]). That
//! memory is reserved when a length within the limit is told; the system hands out its pages as
//! bytes arrive. Behind it there is room for the beginning of the next frame, so that one receive
//! brings both, and messages of any length that follow each other take one each.
#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Target;

use crate::frame::{
    HEADER_BYTES, HELLO_BYTES, Header, Kind, PROGRESS_BYTES, ProtocolError, REASON_BYTES_MAX,
    SEGMENT_ENTRY_BYTES, word,
};
use crate::message::{Body, Segment};
use crate::pool::Pool;
use crate::shared::record_bytes;

/// A message longer than this gets memory of its own.
const SHARED_BYTES_MAX: usize = 32 * 1024;
/// Less than this is not worth a target.
const TARGET_BYTES_MIN: usize = 16 * 1024;
/// A target is at most this long, so that a slow peer is seen to get on.
const TARGET_BYTES_MAX: usize = 8 << 20;

/// What is received behind the end of a segment: the header of the next message, and the table and
/// stream of one with arrays. What comes of its buffers is copied.
const AHEAD_BYTES: usize = 1024;

/// A smaller copy of a read is shared, however little of it is used.
const COPY_BYTES_MIN: usize = 1024;

/// What was decoded.
#[derive(Debug)]
pub(crate) enum Frame {
    Control(Header, Bytes),
    Data(Header, Body),
}

/// Reads the frames of one link.
#[derive(Debug)]
pub(crate) struct Decoder {
    state: State,
    pool: Arc<Pool>,
    message_bytes_max: usize,
    /// A handshake comes first.
    is_shaken: bool,
    /// Messages may lie in shared memory.
    is_shared: bool,
    /// The last message was long. The next may be too, and little of it is copied if not much more
    /// than its header is received before its memory is there.
    was_long: bool,
}

#[derive(Debug)]
enum State {
    /// What came of a header, or of a header and a short body.
    Whole(Vec<u8>),
    /// The table of a long message.
    Table(Header, Vec<u8>),
    /// The segments of a long message.
    Long(Box<Long>),
    /// The bytes of a message that nobody wants.
    Skip(Header, u64),
    /// A segment is in the hands of the engine.
    Lent(Box<Long>),
    /// Memory for the rest of the next header is, with what came of it.
    LentHead,
}

#[derive(Debug)]
struct Long {
    header: Header,
    /// How long the segments are that did not come yet, the next one last.
    lengths: Vec<usize>,
    done: Vec<Segment>,
    current: Vec<u8>,
    /// What `current` is to be.
    length: usize,
}

impl Decoder {
    pub(crate) fn new(message_bytes_max: usize, pool: Arc<Pool>) -> Self {
        Self {
            state: State::Whole(Vec::new()),
            pool,
            message_bytes_max,
            is_shaken: false,
            is_shared: false,
            was_long: false,
        }
    }

    /// The handshake is over.
    pub(crate) fn shake(&mut self) {
        self.is_shaken = true;
    }

    /// Takes messages in shared memory as well.
    #[cfg(target_os = "linux")]
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Reads the next frame from the front of `input`, which is moved on; `None` when it is used
    /// up. `shared` keeps the copy of the whole of it, from which short messages are sliced.
    pub(crate) fn next(
        &mut self,
        input: &mut &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<Option<Frame>, ProtocolError> {
        loop {
            let state = std::mem::replace(&mut self.state, State::Whole(Vec::new()));
            let found = match state {
                State::Whole(partial) if partial.is_empty() => self.read_whole(input, shared)?,
                State::Whole(partial) => self.complete(partial, input)?,
                State::Table(header, table) => self.read_table(header, table, input)?,
                State::Long(long) => self.read_long(long, input)?,
                State::Skip(header, left) => self.skip(header, left, input),
                lent @ (State::Lent(_) | State::LentHead) => {
                    self.state = lent;
                    return Ok(None);
                }
            };
            match found {
                Found::Frame(frame) => return Ok(Some(frame)),
                Found::More => return Ok(None),
                Found::GoOn if input.is_empty() && !self.is_finished() => return Ok(None),
                Found::GoOn => {}
            }
        }
    }

    /// Memory that the next bytes are to be received into, if there are many of one segment to
    /// come, or into which the header of the next long message is.
    pub(crate) fn poll_target(&mut self) -> Option<Target> {
        let long = match &mut self.state {
            State::Long(long) => long,
            State::Whole(partial) if partial.len() < HEADER_BYTES && self.was_long => {
                let partial = std::mem::take(partial);
                let missing = HEADER_BYTES - partial.len();
                self.state = State::LentHead;
                return Some(Target::with_spare(partial, missing, AHEAD_BYTES));
            }
            _ => return None,
        };
        let missing = long.length - long.current.len();
        if missing < TARGET_BYTES_MIN {
            return None;
        }
        let memory = std::mem::take(&mut long.current);
        let state = std::mem::replace(&mut self.state, State::Whole(Vec::new()));
        if let State::Long(long) = state {
            self.state = State::Lent(long);
        }
        Some(match missing > TARGET_BYTES_MAX {
            true => Target::from_vec(memory, TARGET_BYTES_MAX),
            false => Target::with_spare(memory, missing, AHEAD_BYTES),
        })
    }

    /// Takes a target back, filled as far as it was; what came behind it is to be read next.
    pub(crate) fn return_target(&mut self, target: Target) -> Vec<u8> {
        let mut received = target.into_vec();
        let state = std::mem::replace(&mut self.state, State::Whole(Vec::new()));
        let (state, behind) = match state {
            State::Lent(mut long) => {
                let behind = received.split_off(received.len().min(long.length));
                long.current = received;
                (State::Long(long), behind)
            }
            State::LentHead => (State::Whole(Vec::new()), received),
            state => (state, Vec::new()),
        };
        self.state = state;
        behind
    }

    /// Whether something is complete without another byte.
    fn is_finished(&self) -> bool {
        match &self.state {
            State::Long(long) => long.current.len() == long.length,
            State::Skip(_, left) => *left == 0,
            State::Table(header, table) => table.len() == table_bytes(header),
            State::Whole(_) | State::Lent(_) | State::LentHead => false,
        }
    }

    fn read_whole(
        &mut self,
        input: &mut &[u8],
        shared: &mut Shared<'_>,
    ) -> Result<Found, ProtocolError> {
        let Some((head, behind)) = input.split_first_chunk::<HEADER_BYTES>() else {
            self.state = State::Whole(input.to_vec());
            *input = &[];
            return Ok(Found::More);
        };
        let header = self.check(Header::read(head)?)?;
        let length = header.length as usize;
        if self.is_long(&header) {
            *input = behind;
            return self.begin_long(header);
        }
        let Some((body, rest)) = behind.split_at_checked(length) else {
            self.state = State::Whole(input.to_vec());
            *input = &[];
            return Ok(Found::More);
        };
        let body = shared.slice(body);
        *input = rest;
        frame(header, body).map(Found::Frame)
    }

    /// Goes on with a frame that did not come whole.
    fn complete(
        &mut self,
        mut partial: Vec<u8>,
        input: &mut &[u8],
    ) -> Result<Found, ProtocolError> {
        take_up_to(&mut partial, HEADER_BYTES, input);
        let Some(head) = partial.first_chunk::<HEADER_BYTES>() else {
            self.state = State::Whole(partial);
            return Ok(Found::More);
        };
        let header = self.check(Header::read(head)?)?;
        if self.is_long(&header) {
            return self.begin_long(header);
        }
        let length = HEADER_BYTES + header.length as usize;
        take_up_to(&mut partial, length, input);
        if partial.len() < length {
            self.state = State::Whole(partial);
            return Ok(Found::More);
        }
        frame(header, Bytes::from(partial).slice(HEADER_BYTES..)).map(Found::Frame)
    }

    /// Believes a header, or does not.
    fn check(&mut self, header: Header) -> Result<Header, ProtocolError> {
        let is_handshake = matches!(header.kind, Kind::Hello | Kind::Welcome | Kind::Refuse);
        if is_handshake == self.is_shaken {
            return Err(ProtocolError::Unexpected);
        }
        match header.kind {
            Kind::Data | Kind::Void => self.was_long = self.is_long(&header),
            Kind::Shared => self.was_long = false,
            // What the sides say of their messages comes between those.
            _ => {}
        }
        let is_well_formed = match header.kind {
            Kind::Hello | Kind::Welcome => header.length == HELLO_BYTES as u64,
            Kind::Refuse => header.length <= REASON_BYTES_MAX as u64,
            Kind::Acknowledge => header.length == PROGRESS_BYTES as u64,
            Kind::Gap => header.length == 8,
            Kind::End | Kind::Ping | Kind::Pong | Kind::Blocked | Kind::Finish => {
                header.length == 0
            }
            Kind::Shared | Kind::Release if !self.is_shared => {
                return Err(ProtocolError::Unexpected);
            }
            Kind::Shared => header.segments > 0 && header.length == record_bytes(header.segments),
            Kind::Release => header.length == 0,
            Kind::Data | Kind::Void => {
                if header.length > self.message_bytes_max as u64 {
                    return Err(ProtocolError::TooLong);
                }
                header.segments > 0 && table_bytes(&header) as u64 <= header.length
            }
        };
        if is_well_formed { Ok(header) } else { Err(ProtocolError::Malformed) }
    }

    fn is_long(&self, header: &Header) -> bool {
        let is_message = matches!(header.kind, Kind::Data | Kind::Void);
        is_message && (header.length > SHARED_BYTES_MAX as u64 || header.segments > 1)
    }

    fn begin_long(&mut self, header: Header) -> Result<Found, ProtocolError> {
        self.state = if header.kind == Kind::Void {
            State::Skip(header, header.length)
        } else if header.segments > 1 {
            State::Table(header, Vec::new())
        } else {
            State::Long(Long::new(header, vec![header.length as usize], &self.pool)?)
        };
        Ok(Found::GoOn)
    }

    fn read_table(
        &mut self,
        header: Header,
        mut table: Vec<u8>,
        input: &mut &[u8],
    ) -> Result<Found, ProtocolError> {
        let bytes = table_bytes(&header);
        take_up_to(&mut table, bytes, input);
        if table.len() < bytes {
            self.state = State::Table(header, table);
            return Ok(Found::More);
        }
        let mut left = header.length - bytes as u64;
        let mut lengths = Vec::with_capacity(usize::from(header.segments));
        for at in (0..bytes).step_by(SEGMENT_ENTRY_BYTES) {
            let length = word(&table, at);
            left = left.checked_sub(length).ok_or(ProtocolError::Malformed)?;
            lengths.push(length as usize);
        }
        if left != 0 {
            return Err(ProtocolError::Malformed);
        }
        lengths.reverse();
        self.state = State::Long(Long::new(header, lengths, &self.pool)?);
        Ok(Found::GoOn)
    }

    fn read_long(
        &mut self,
        mut long: Box<Long>,
        input: &mut &[u8],
    ) -> Result<Found, ProtocolError> {
        take_up_to(&mut long.current, long.length, input);
        if long.current.len() < long.length {
            self.state = State::Long(long);
            return Ok(Found::More);
        }
        if long.next(&self.pool)? {
            self.state = State::Long(long);
            return Ok(Found::GoOn);
        }
        let Long { header, mut done, .. } = *long;
        let body = match (done.pop(), header.segments) {
            (Some(only), 1) => Body::One(only),
            (last, _) => {
                done.extend(last);
                Body::Many(done)
            }
        };
        Ok(Found::Frame(Frame::Data(header, body)))
    }

    fn skip(&mut self, header: Header, left: u64, input: &mut &[u8]) -> Found {
        let count = (input.len() as u64).min(left);
        *input = input.get(count as usize..).unwrap_or_default();
        if count < left {
            self.state = State::Skip(header, left - count);
            return Found::More;
        }
        Found::Frame(Frame::Control(header, Bytes::new()))
    }
}

enum Found {
    Frame(Frame),
    /// More bytes are needed.
    More,
    GoOn,
}

impl Long {
    fn new(header: Header, lengths: Vec<usize>, pool: &Pool) -> Result<Box<Self>, ProtocolError> {
        let done = Vec::with_capacity(lengths.len());
        let mut long = Box::new(Self { header, lengths, done, current: Vec::new(), length: 0 });
        long.begin(pool)?;
        Ok(long)
    }

    /// Makes room for the next segment; `false` when there is none.
    fn begin(&mut self, pool: &Pool) -> Result<bool, ProtocolError> {
        let Some(length) = self.lengths.pop() else { return Ok(false) };
        self.length = length;
        let room = if length < TARGET_BYTES_MIN { length } else { length + AHEAD_BYTES };
        self.current = pool.take(room).map_err(|_| ProtocolError::OutOfMemory)?;
        Ok(true)
    }

    /// Puts the segment away that is complete; `false` when it was the last.
    fn next(&mut self, pool: &Arc<Pool>) -> Result<bool, ProtocolError> {
        self.done.push(Segment::Owned(pool.lend(std::mem::take(&mut self.current))));
        self.begin(pool)
    }
}

/// The bytes of one read, and a copy of them once it is needed.
pub(crate) struct Shared<'a> {
    bytes: &'a [u8],
    copy: Option<Bytes>,
    used_bytes: usize,
}

impl<'a> Shared<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, copy: None, used_bytes: 0 }
    }

    /// Whether so little of the copy is used that its parts should not keep the whole of it.
    pub(crate) fn is_wasteful(&self) -> bool {
        let length = self.bytes.len();
        self.copy.is_some() && length > COPY_BYTES_MIN && self.used_bytes < length / 4
    }

    /// The copy of a part.
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
fn take_up_to(held: &mut Vec<u8>, length: usize, input: &mut &[u8]) {
    let count = length.saturating_sub(held.len()).min(input.len());
    let (taken, rest) = input.split_at(count);
    held.extend_from_slice(taken);
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

    /// Feeds a stream that has come whole into targets, once there is one; counts those and the
    /// messages.
    fn feed(stream: &[u8]) -> (usize, usize) {
        let mut decoder = Decoder::new(1 << 20, Pool::new(1 << 20));
        decoder.shake();
        let (mut targets, mut messages) = (0, 0);
        let mut behind = stream[..HEADER_BYTES].to_vec();
        let mut rest = &stream[HEADER_BYTES..];
        loop {
            let mut input = &behind[..];
            let mut shared = Shared::new(&behind);
            while let Some(frame) = decoder.next(&mut input, &mut shared).unwrap() {
                messages += usize::from(matches!(frame, Frame::Data(..)));
            }
            if rest.is_empty() {
                return (targets, messages);
            }
            let mut target = decoder.poll_target().expect("a target");
            targets += 1;
            rest = &rest[target.write(rest)..];
            behind = decoder.return_target(target);
        }
    }

    #[test]
    fn a_long_message_takes_one_receive() {
        let stream: Vec<u8> = (1..=10).flat_map(message).collect();
        assert_eq!(feed(&stream), (10, 10));
    }

    #[test]
    fn what_is_said_between_long_messages_changes_nothing() {
        let ping = Header::control(Kind::Ping, 0, 0).write();
        let stream: Vec<u8> =
            (1..=10).flat_map(|number| [message(number), ping.to_vec()].concat()).collect();
        assert_eq!(feed(&stream), (10, 10));
    }
}
