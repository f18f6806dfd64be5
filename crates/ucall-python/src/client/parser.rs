//! Finds replies in bytes that come in any pieces. No I/O.
//!
//! Bytes are appended where [`Parser::space`] says, so that a long body goes straight to its place;
//! [`Parser::advance`] then takes what is whole. A claimed length is checked against the limit
//! before anything is reserved for it.
//!
//! | state        | what comes                 | next                           |
//! |--------------|----------------------------|--------------------------------|
//! | `Head`       | a head of status 1xx       | `Head`                         |
//! | `Head`       | a head                     | `Sized`, `Chunked`, `UntilClose` |
//! | `Sized`      | the last byte              | `Head`, with a message         |
//! | `Chunked`    | the last chunk             | `Head`, with a message         |
//! | `UntilClose` | the end of the connection  | `Head`, with a message         |
//! | `Raw`        | the end of a document      | `Raw`, with a message          |

use std::mem;

use ucall_proto::http1::{ChunkedDecoder, ChunkedLimits, HttpError};
use ucall_proto::json::DocumentStream;

use super::fault::Fault;
use super::head::{self, Body, HEAD_BYTES_MAX};

/// Results nest 128 deep at most; the reply and its batch are around them.
pub(super) const NESTING_MAX: usize = 130;
const CHUNK_OVERHEAD_BYTES_MAX: usize = 64 * 1024;
/// What is kept for the next reply, of the memory that one needed.
const KEPT_BYTES_MAX: usize = 256 * 1024;

/// One reply, not yet looked into.
#[derive(Debug, Default)]
pub(super) struct Message {
    /// The HTTP status; 0 on raw TCP.
    pub(super) status: u16,
    /// The words behind the status, when it is no success.
    pub(super) reason: String,
    pub(super) body: Vec<u8>,
}

/// Takes a connection's bytes apart.
#[derive(Debug)]
pub(super) struct Parser {
    bytes_max: usize,
    state: State,
    /// What came and is not yet understood. Used again and again.
    buffer: Vec<u8>,
    /// The message that is coming in.
    message: Message,
    keeps_alive: bool,
}

#[derive(Debug)]
enum State {
    Head,
    Sized { len: usize },
    Chunked(ChunkedDecoder),
    UntilClose,
    Raw { stream: DocumentStream, followed: usize },
}

impl State {
    fn raw() -> Self {
        Self::Raw { stream: DocumentStream::new(), followed: 0 }
    }
}

impl Parser {
    /// For replies of up to `bytes_max` bytes, over HTTP or raw.
    pub(super) fn new(http: bool, bytes_max: usize) -> Self {
        Self {
            bytes_max,
            state: if http { State::Head } else { State::raw() },
            buffer: Vec::new(),
            message: Message::default(),
            keeps_alive: true,
        }
    }

    /// Where the next bytes are to be appended, and how many at most.
    #[inline]
    pub(super) fn space(&mut self) -> (&mut Vec<u8>, usize) {
        match self.state {
            State::Sized { len } => {
                let left = len.saturating_sub(self.message.body.len());
                (&mut self.message.body, left)
            }
            State::UntilClose => (&mut self.message.body, usize::MAX),
            _ => (&mut self.buffer, usize::MAX),
        }
    }

    /// Takes a reply, if one is whole. To be called again until there is none.
    pub(super) fn advance(&mut self) -> Result<Option<Message>, Fault> {
        loop {
            let is_whole = match &mut self.state {
                State::Head => match self.take_head()? {
                    true => continue,
                    false => return Ok(None),
                },
                State::Sized { len } => self.message.body.len() >= *len,
                State::Chunked(_) => self.take_chunks()?,
                State::UntilClose => {
                    self.check_size(self.message.body.len())?;
                    false
                }
                State::Raw { .. } => return self.take_document(),
            };
            return Ok(is_whole.then(|| self.finish()));
        }
    }

    /// The connection has ended. The reply that ends with it, if there is one.
    pub(super) fn end(&mut self) -> Result<Option<Message>, Fault> {
        match self.state {
            State::UntilClose => Ok(Some(self.finish())),
            _ if self.is_idle() => Ok(None),
            _ => Err(Fault::Closed { within_reply: true }),
        }
    }

    /// Whether nothing of a reply has come.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Head | State::Raw { .. })
            && self.buffer.trim_ascii_start().is_empty()
    }

    /// Whether another request may be sent.
    pub(super) fn is_reusable(&self) -> bool {
        self.keeps_alive && self.is_idle()
    }

    fn check_size(&self, len: usize) -> Result<(), Fault> {
        match len > self.bytes_max {
            true => Err(Fault::TooLarge { bytes_max: self.bytes_max }),
            false => Ok(()),
        }
    }

    /// Takes a head off the buffer; `false` when it is not whole.
    fn take_head(&mut self) -> Result<bool, Fault> {
        if self.buffer.is_empty() {
            return Ok(false);
        }
        let Some(head) = head::parse(&self.buffer)? else {
            return match self.buffer.len() > HEAD_BYTES_MAX {
                true => Err(Fault::HeadTooLarge),
                false => Ok(false),
            };
        };
        if head.status == 101 {
            return Err(Fault::Protocol("HTTP that changes to another protocol".to_owned()));
        }
        let rest = self.buffer.get(head.len..).unwrap_or_default();
        if (100..200).contains(&head.status) {
            self.buffer.drain(..head.len);
            return Ok(true);
        }
        let mut body = Vec::new();
        let (state, taken) = match head.body {
            Body::Sized(len) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                self.check_size(len)?;
                let taken = len.min(rest.len());
                body.reserve_exact(len);
                (State::Sized { len }, taken)
            }
            Body::Chunked => (State::Chunked(ChunkedDecoder::default()), 0),
            Body::UntilClose => (State::UntilClose, rest.len()),
        };
        body.extend_from_slice(rest.get(..taken).unwrap_or_default());
        self.buffer.drain(..head.len + taken);
        self.message = Message { status: head.status, reason: head.reason, body };
        self.keeps_alive = head.keeps_alive;
        self.state = state;
        Ok(true)
    }

    /// Decodes what has come of a chunked body; `true` when it is whole.
    fn take_chunks(&mut self) -> Result<bool, Fault> {
        let State::Chunked(decoder) = &mut self.state else { return Ok(false) };
        let limits = ChunkedLimits {
            body_bytes_max: self.bytes_max as u64,
            overhead_bytes_max: CHUNK_OVERHEAD_BYTES_MAX,
        };
        let bytes_max = self.bytes_max;
        let progress = decoder.decode(&self.buffer, &mut self.message.body, &limits);
        let progress = progress.map_err(|error| match error {
            HttpError::BodyTooLarge { .. } => Fault::TooLarge { bytes_max },
            error => Fault::Protocol(format!("HTTP where {error}")),
        })?;
        self.buffer.drain(..progress.consumed);
        Ok(progress.is_done)
    }

    fn finish(&mut self) -> Message {
        self.state = State::Head;
        self.buffer.shrink_to(KEPT_BYTES_MAX);
        mem::take(&mut self.message)
    }

    /// Takes a raw document off the buffer, with the white space around it.
    fn take_document(&mut self) -> Result<Option<Message>, Fault> {
        let State::Raw { stream, followed } = &mut self.state else { return Ok(None) };
        if *followed == 0 {
            match self.buffer.trim_ascii_start().first() {
                None => {
                    self.buffer.clear();
                    return Ok(None);
                }
                Some(b'{' | b'[') => {}
                Some(_) => {
                    let text = Fault::shown(&self.buffer);
                    return Err(Fault::Protocol(format!("{text:?}")));
                }
            }
        }
        let fresh = self.buffer.get(*followed..).unwrap_or_default();
        let end = match stream.follow(fresh, NESTING_MAX) {
            Ok(end) => end.map(|end| *followed + end),
            Err(_) => return Err(Fault::Protocol("broken JSON".to_owned())),
        };
        *followed = self.buffer.len();
        self.check_size(end.unwrap_or(self.buffer.len()))?;
        let Some(end) = end else { return Ok(None) };
        self.state = State::raw();
        let rest = self.buffer.get(end..).unwrap_or_default().trim_ascii_start().to_vec();
        self.buffer.truncate(end);
        // A long document keeps its memory; a short one leaves it for the next.
        let body = match end > KEPT_BYTES_MAX {
            true => mem::take(&mut self.buffer),
            false => self.buffer.clone(),
        };
        self.buffer.clear();
        self.buffer.extend_from_slice(&rest);
        self.buffer.shrink_to(KEPT_BYTES_MAX.max(rest.len()));
        Ok(Some(Message { body, ..Message::default() }))
    }
}
