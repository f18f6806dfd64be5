//! Reads the frames of a peer, and collects the fragments of its messages.
//!
//! | a message in progress | frame | then |
//! |---|---|---|
//! | no | text or binary, final | the message |
//! | no | text or binary | a message is in progress |
//! | no | continuation | an error |
//! | yes | continuation, final | the message |
//! | yes | continuation | still in progress |
//! | yes | text or binary | an error |
//! | either | Ping, Pong, Close | the same as before |
//!
//! An error is reported as soon as the head of its frame is complete, except for invalid UTF-8 in
//! fragments, which is reported at the end of the fragment.

use std::borrow::Cow;
use std::mem;

use super::close::CloseCode;
use super::error::WebSocketError;
use super::head::{FINAL_TEXT, FrameHead, MASK, Opcode, SHORT_HEAD_LEN, SHORT_MAX};
use super::mask::unmask;

/// The limits on messages of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Bytes of the payload of one frame.
    pub frame_bytes_max: usize,
    /// Bytes of a message, its frames together.
    pub message_bytes_max: usize,
    /// Frames of a message, with empty ones.
    pub frames_max: usize,
}

/// Whether a message is text or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Text in UTF-8.
    Text,
    /// Bytes.
    Binary,
}

impl MessageKind {
    /// The opcode of such a message.
    #[must_use]
    pub fn opcode(self) -> Opcode {
        match self {
            Self::Text => Opcode::Text,
            Self::Binary => Opcode::Binary,
        }
    }
}

/// What a frame means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A complete message. Its payload is borrowed from the input if it came in one frame. Then
    /// text is not validated: valid JSON is valid UTF-8, so only text that is not JSON needs
    /// [`validate_text`].
    Message {
        /// Text or bytes.
        kind: MessageKind,
        /// Its payload.
        payload: Cow<'a, [u8]>,
    },
    /// A complete message that is compressed. See [`MessageReader::read_compressed`].
    Compressed {
        /// Text or bytes, when it is decoded.
        kind: MessageKind,
        /// Its payload as it was sent.
        payload: Vec<u8>,
    },
    /// A fragment of a message, which is stored.
    Fragment {
        /// Whether the message begins with it.
        is_first: bool,
    },
    /// The peer expects a Pong with this payload.
    Ping(&'a [u8]),
    /// The reply to a Ping.
    Pong(&'a [u8]),
    /// The last frame of the peer.
    Close(Option<CloseFrame<'a>>),
}

/// What a Close frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseFrame<'a> {
    /// The code.
    pub code: CloseCode,
    /// Text for a log, often empty.
    pub reason: &'a str,
}

/// What the input starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// A part of a frame. Nothing was changed, and nothing needs to be read again before there are
    /// this many bytes.
    Incomplete {
        /// The length of the frame, or one byte more than there is of its head.
        bytes_needed: usize,
    },
    /// A frame of this length.
    Frame {
        /// Its bytes, with its head.
        len: usize,
        /// What it means.
        event: Event<'a>,
    },
}

/// A frame of a client that waits to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeekedFrame {
    /// A Ping or Pong frame, which may come between others.
    Control,
    /// A Close frame, which may, too.
    Close,
    /// A whole text message.
    Text(Vec<u8>),
    /// A longer one, or another.
    Other,
}

/// The length of the frame that `input` starts with, and what it is, with texts of up to
/// `text_bytes_max`; `None` if it is incomplete. The input stays masked.
///
/// # Errors
/// [`WebSocketError`] if it is no frame.
pub fn peek_frame(
    input: &[u8],
    text_bytes_max: usize,
) -> Result<Option<(usize, PeekedFrame)>, WebSocketError> {
    let (head, is_compressed) = match FrameHead::parse::<true>(input) {
        Err(WebSocketError::ReservedBits) => (FrameHead::parse_compressed(input)?, true),
        parsed => (parsed?, false),
    };
    let Some(head) = head else { return Ok(None) };
    let len = head.len.saturating_add(head.payload_len);
    let Some(payload) = input.get(head.len..len) else { return Ok(None) };
    let frame = match head.opcode {
        _ if is_compressed => PeekedFrame::Other,
        Opcode::Close => PeekedFrame::Close,
        Opcode::Ping | Opcode::Pong => PeekedFrame::Control,
        Opcode::Text if head.is_final && payload.len() <= text_bytes_max => {
            let mut text = payload.to_vec();
            unmask(&mut text, head.key);
            PeekedFrame::Text(text)
        }
        _ => PeekedFrame::Other,
    };
    Ok(Some((len, frame)))
}

/// A text message in one long frame, which is unmasked while it arrives.
#[derive(Debug)]
pub(crate) struct LongMessage {
    head_len: usize,
    /// The bytes of its frame.
    pub(crate) len: usize,
    key: [u8; 4],
    /// How many of them are read.
    read: usize,
}

impl LongMessage {
    /// The message of the frame that `input` starts with, if its payload has more than `bytes_min`
    /// bytes.
    pub(crate) fn begin(input: &[u8], bytes_min: usize) -> Option<Self> {
        let FrameHead { opcode, is_final, payload_len, key, len } =
            FrameHead::parse::<true>(input).ok()??;
        let is_long = opcode == Opcode::Text && is_final && payload_len > bytes_min;
        is_long.then(|| Self { head_len: len, len: len + payload_len, key, read: len })
    }

    /// Unmasks the bytes that have arrived since the last time, in place.
    pub(crate) fn read(&mut self, input: &mut [u8]) {
        let end = self.len.min(input.len());
        let mut key = self.key;
        key.rotate_left((self.read - self.head_len) % 4);
        unmask(input.get_mut(self.read..end).unwrap_or_default(), key);
        self.read = end;
    }

    /// The payload as far as it is read.
    pub(crate) fn payload<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        input.get(self.head_len..self.read).unwrap_or_default()
    }
}

impl FrameHead {
    /// The kind of the message that begins with it.
    fn kind(&self) -> MessageKind {
        match self.opcode {
            Opcode::Text => MessageKind::Text,
            _ => MessageKind::Binary,
        }
    }
}

/// Reads the frames of one peer.
#[derive(Debug, Default)]
pub struct MessageReader {
    /// The message in progress.
    fragments: Option<Box<Fragments>>,
}

/// A message whose last frame has not arrived.
#[derive(Debug)]
struct Fragments {
    kind: MessageKind,
    bytes: Vec<u8>,
    frames: usize,
    is_compressed: bool,
    /// How many of the bytes are valid UTF-8, if they are text.
    validated: usize,
}

impl MessageReader {
    /// Reads the frame of a client that `input` starts with, and unmasks its payload in place.
    ///
    /// # Errors
    /// [`WebSocketError`] if the peer violates the protocol or a limit. The connection must close.
    ///
    /// Inlined, so that what it returns stays in registers.
    #[inline(always)]
    pub fn read<'a>(
        &mut self,
        input: &'a mut [u8],
        limits: &MessageLimits,
    ) -> Result<Progress<'a>, WebSocketError> {
        self.read_frame::<true>(input, limits)
    }

    /// Reads a frame that [`read`](Self::read) has refused for a reserved bit, if the extension
    /// permessage-deflate (RFC 7692) is agreed on: it begins a compressed message.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_compressed<'a>(
        &mut self,
        input: &'a mut [u8],
        limits: &MessageLimits,
    ) -> Result<Progress<'a>, WebSocketError> {
        let Some(head) = FrameHead::parse_compressed(input)? else {
            return Ok(Progress::Incomplete { bytes_needed: input.len() + 1 });
        };
        self.check(&head, limits)?;
        let len = head.len.saturating_add(head.payload_len);
        let Some(payload) = input.get_mut(head.len..len) else {
            return Ok(Progress::Incomplete { bytes_needed: len });
        };
        unmask(payload, head.key);
        let mut fragments = Fragments::new(head.kind());
        fragments.is_compressed = true;
        self.fragments = Some(Box::new(fragments));
        Ok(Progress::Frame { len, event: self.add_fragment(&head, payload)? })
    }

    /// Reads the frame of a server that `input` starts with, which has no mask.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_from_server<'a>(
        &mut self,
        input: &'a mut [u8],
        limits: &MessageLimits,
    ) -> Result<Progress<'a>, WebSocketError> {
        self.read_frame::<false>(input, limits)
    }

    #[inline(always)]
    fn read_frame<'a, const MASKED: bool>(
        &mut self,
        input: &'a mut [u8],
        limits: &MessageLimits,
    ) -> Result<Progress<'a>, WebSocketError> {
        let Some(head) = FrameHead::parse::<MASKED>(input)? else {
            return Ok(Progress::Incomplete { bytes_needed: input.len() + 1 });
        };
        self.check(&head, limits)?;
        let len = head.len.saturating_add(head.payload_len);
        let Some(payload) = input.get_mut(head.len..len) else {
            return Ok(Progress::Incomplete { bytes_needed: len });
        };
        if MASKED {
            unmask(payload, head.key);
        }
        let event = match head.opcode {
            Opcode::Text if head.is_final => {
                Event::Message { kind: MessageKind::Text, payload: Cow::Borrowed(payload) }
            }
            Opcode::Binary if head.is_final => {
                Event::Message { kind: MessageKind::Binary, payload: Cow::Borrowed(payload) }
            }
            Opcode::Close => Event::Close(CloseFrame::parse(payload)?),
            Opcode::Ping => Event::Ping(payload),
            Opcode::Pong => Event::Pong(payload),
            _ => self.add_fragment(&head, payload)?,
        };
        Ok(Progress::Frame { len, event })
    }

    /// The payload of the message that `input` starts with, and the length of its frame, if it is
    /// text in one frame with the shortest head; `None` means to [`read`](Self::read). Most
    /// messages have this form, which takes no choice between kinds of frames.
    #[inline(always)]
    pub fn read_short<'a>(
        &self,
        input: &'a mut [u8],
        limits: &MessageLimits,
    ) -> Option<(&'a [u8], usize)> {
        let [FINAL_TEXT, second, a, b, c, d, rest @ ..] = input else { return None };
        let len = usize::from(second.checked_sub(MASK)?);
        let MessageLimits { frame_bytes_max, message_bytes_max, frames_max } = *limits;
        let is_allowed = len <= SHORT_MAX.min(frame_bytes_max).min(message_bytes_max);
        if !is_allowed || frames_max == 0 || self.has_fragments() {
            return None;
        }
        let payload = rest.get_mut(..len)?;
        unmask(payload, [*a, *b, *c, *d]);
        Some((payload, SHORT_HEAD_LEN + len))
    }

    /// The bytes that the reader holds for a message in progress.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.fragments.as_ref().map_or(0, |fragments| fragments.bytes.capacity())
    }

    /// Whether a message is in progress.
    #[must_use]
    pub fn has_fragments(&self) -> bool {
        self.fragments.is_some()
    }

    /// Checks a frame against the message in progress and the limits, before its payload arrives.
    #[inline(always)]
    fn check(&self, head: &FrameHead, limits: &MessageLimits) -> Result<(), WebSocketError> {
        match (head.opcode, &self.fragments) {
            (Opcode::Text | Opcode::Binary, Some(_)) => {
                return Err(WebSocketError::MessageInterrupted);
            }
            (Opcode::Continuation, None) => return Err(WebSocketError::ContinuationUnexpected),
            (Opcode::Text | Opcode::Binary | Opcode::Continuation, _) => {}
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) => return Ok(()),
        }
        let MessageLimits { frame_bytes_max, message_bytes_max, frames_max } = *limits;
        let fragments = self.fragments.as_ref();
        let before = fragments.map_or(0, |fragments| fragments.bytes.len());
        if head.payload_len > frame_bytes_max {
            return Err(WebSocketError::FrameTooLarge { limit: frame_bytes_max });
        }
        if head.payload_len > message_bytes_max.saturating_sub(before) {
            return Err(WebSocketError::MessageTooLarge { limit: message_bytes_max });
        }
        if fragments.map_or(0, |fragments| fragments.frames) >= frames_max {
            return Err(WebSocketError::TooManyFrames { limit: frames_max });
        }
        Ok(())
    }

    /// Stores a fragment; returns the message after the last one.
    #[inline(never)]
    fn add_fragment(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
    ) -> Result<Event<'static>, WebSocketError> {
        let kind = head.kind();
        let fragments = self.fragments.get_or_insert_with(|| Box::new(Fragments::new(kind)));
        fragments.add(payload, head.is_final)?;
        if !head.is_final {
            return Ok(Event::Fragment { is_first: head.opcode != Opcode::Continuation });
        }
        let (kind, payload) = (fragments.kind, mem::take(&mut fragments.bytes));
        let is_compressed = fragments.is_compressed;
        self.fragments = None;
        Ok(match is_compressed {
            true => Event::Compressed { kind, payload },
            false => Event::Message { kind, payload: Cow::Owned(payload) },
        })
    }
}

impl Fragments {
    fn new(kind: MessageKind) -> Self {
        Self { kind, bytes: Vec::new(), frames: 0, is_compressed: false, validated: 0 }
    }

    fn add(&mut self, payload: &[u8], is_last: bool) -> Result<(), WebSocketError> {
        self.bytes.extend_from_slice(payload);
        self.frames += 1;
        if self.kind == MessageKind::Text && !self.is_compressed {
            self.validate(is_last)?;
        }
        Ok(())
    }

    /// Validates the new text. Only its end may be an incomplete character, and not in the last
    /// frame.
    fn validate(&mut self, is_last: bool) -> Result<(), WebSocketError> {
        let new_bytes = self.bytes.get(self.validated..).unwrap_or_default();
        match simdutf8::compat::from_utf8(new_bytes) {
            Ok(_) => self.validated = self.bytes.len(),
            Err(error) if error.error_len().is_none() && !is_last => {
                self.validated += error.valid_up_to();
            }
            Err(_) => return Err(WebSocketError::TextNotUtf8),
        }
        Ok(())
    }
}

impl<'a> CloseFrame<'a> {
    /// Reads the payload of a Close frame, which may be empty.
    fn parse(payload: &'a [u8]) -> Result<Option<Self>, WebSocketError> {
        match payload {
            [] => Ok(None),
            [_] => Err(WebSocketError::CloseTruncated),
            [high, low, reason @ ..] => {
                let code = CloseCode::new(u16::from_be_bytes([*high, *low]))
                    .ok_or(WebSocketError::CloseCodeInvalid)?;
                let reason = simdutf8::basic::from_utf8(reason)
                    .map_err(|_| WebSocketError::ReasonNotUtf8)?;
                Ok(Some(Self { code, reason }))
            }
        }
    }
}

/// Checks that a text message is UTF-8.
///
/// # Errors
/// [`WebSocketError::TextNotUtf8`].
pub fn validate_text(payload: &[u8]) -> Result<(), WebSocketError> {
    match simdutf8::basic::from_utf8(payload) {
        Ok(_) => Ok(()),
        Err(_) => Err(WebSocketError::TextNotUtf8),
    }
}
