//! The parts of large frames, which are received into memory of their own.
//!
//! Once the text of a large frame is there, the bytes of its parts go to aligned memory, which the
//! engine fills as a target, and the input keeps what precedes them. All of the memory is allocated
//! at once, so that it never moves: kept memory of an earlier message, or new memory, whose pages
//! the system provides as they are filled. Only what is filled is reserved.
//!
//! | the frame is | its parts are received |
//! |---|---|
//! | the body of HTTP with a `Content-Length`, or a document of raw TCP | by the engine |
//! | the same under TLS | as they are decrypted |
//! | a chunked body, or a message of a WebSocket | with the rest, and copied |

use std::mem;

use ucall_buffer::Target;

use super::compression::ReplyStart;
use super::http::BodyForm;
use super::http_body::Body;
use super::{Environment, MemoryBudget, PlainConnection, Protocol, ReadEvent, Step};
use crate::Limits;
use crate::http1::{ConnectionOption, Head, ReplyHeaders};
use crate::rpc::Service;
use crate::rpc::frame::{Frame, FrameHead, TailMemory, begins_frame};

/// More bytes are received in several turns.
const TARGET_BYTES_MAX: usize = 1 << 20;

/// The parts of a frame whose front is in the input.
#[derive(Debug)]
pub(super) struct FrameTail {
    head: FrameHead,
    pub(super) memory: TailMemory,
}

impl FrameTail {
    /// The bytes that have not arrived.
    pub(super) fn missing(&self) -> usize {
        (self.head.len - self.head.tail_at()).saturating_sub(self.memory.len())
    }

    /// Takes the bytes that are its own; returns the others.
    pub(super) fn receive<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (own, rest) = bytes.split_at(bytes.len().min(self.missing()));
        self.memory.extend(own);
        rest
    }

    /// A target for the next bytes.
    pub(super) fn target(&mut self) -> Target {
        let len = self.missing().min(TARGET_BYTES_MAX);
        Target::from_vec(self.memory.take(), len)
    }
}

impl PlainConnection {
    /// Where in `input` the frame begins that is being received, if it is one.
    fn frame_at(&self, input: &[u8]) -> Option<usize> {
        match &self.protocol {
            Protocol::Raw(raw) if raw.frame_bytes > 0 => Some(0),
            Protocol::Http(http) => match &http.body {
                Body::Length(body) => {
                    let at = body.frame_at?;
                    let is_frame = match input.get(at..) {
                        Some(front @ [_, ..]) => begins_frame(front),
                        _ => body.is_frame_type,
                    };
                    is_frame.then_some(at)
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the input has not got the front of a frame yet.
    pub(super) fn awaits_tail(&self) -> bool {
        self.tail.is_none() && self.frame_at(&self.input).is_some()
    }

    /// Separates the parts of a frame from the input, once that has all in front of them. A frame
    /// that is invalid is received as other bodies are, and refused when it is complete.
    pub(super) fn begin_tail<S>(&mut self, environment: &Environment<'_, S>) {
        let mut input = mem::take(&mut self.input);
        if let Some(front_len) = self.copy_tail(&input, environment) {
            input.truncate(front_len);
            input.shrink_to_fit();
        }
        self.input = input;
    }

    /// Begins the parts of a frame with those that `input` has, if it has all in front of them.
    /// Returns where they begin.
    pub(super) fn copy_tail<S>(
        &mut self,
        input: &[u8],
        environment: &Environment<'_, S>,
    ) -> Option<usize> {
        if self.tail.is_some() {
            return None;
        }
        let at = self.frame_at(input)?;
        let budget = environment.scratch.budget();
        let (head, memory) = self.tail_of(input.get(at..)?, at, environment.limits, budget)?;
        let front_len = at + head.tail_at();
        self.tail = Some(Box::new(FrameTail { head, memory }));
        Some(front_len)
    }

    /// The head of the frame that is received `at` bytes after the start of a request, and the
    /// parts that it has so far.
    fn tail_of(
        &self,
        frame: &[u8],
        at: usize,
        limits: &Limits,
        budget: &MemoryBudget,
    ) -> Option<(FrameHead, TailMemory)> {
        let head = FrameHead::parse(frame, limits).ok()??;
        let tail = frame.get(head.tail_at()..)?;
        let is_whole = match &self.protocol {
            Protocol::Http(http) => http.body.bytes_needed() == at + head.len,
            _ => true,
        };
        if !is_whole || head.parts.is_empty() {
            return None;
        }
        let mut memory = TailMemory::new(head.len - head.tail_at(), budget.pool()).ok()?;
        memory.extend(tail);
        Some((head, memory))
    }

    /// Runs the frame that `input` starts with, if its parts are complete and it may run now.
    /// Returns how many bytes of the input are used.
    #[cold]
    pub(super) fn process_tail<S: Service>(
        &mut self,
        input: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> usize {
        self.reading.handle(ReadEvent::Run);
        let Some(tail) = self.tail.as_ref().filter(|tail| tail.missing() == 0) else { return 0 };
        let front_len = tail.head.tail_at();
        if self.must_wait(environment) {
            self.reading.handle(ReadEvent::Wait);
            return 0;
        }
        if self.is_raw() {
            self.run_raw_tail(input, environment);
            return front_len;
        }
        let Some(head) = self.read_head(input, environment) else { return 0 };
        match self.handle_head(&head, input, BodyForm::Tail { front_len }, environment) {
            Step::Consumed(used) => used,
            Step::Incomplete => 0,
        }
    }

    fn run_raw_tail<S: Service>(&mut self, input: &[u8], environment: &mut Environment<'_, S>) {
        if let Some(tail) = self.tail.take() {
            let frame = self.frame_of(*tail, input, environment);
            self.run_raw_frame(frame, environment);
        }
    }

    /// Answers a call whose parts are apart from its body.
    pub(super) fn run_tail_request<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let Some(tail) = self.tail.take() else { return };
        let earlier = self.begin_queued_reply(environment);
        let start = ReplyStart::of(environment);
        let reply = self.begin_rpc(head, reply_headers, environment);
        let frame = self.frame_of(*tail, body, environment);
        self.answer_frame(frame, reply, environment);
        start.compress(reply_headers.negotiation, environment);
        self.end_queued_reply(earlier, environment);
        if reply_headers.connection == ConnectionOption::Close {
            self.discard_input();
        }
    }

    /// The frame of these parts, which are reserved by themselves from now on.
    fn frame_of<'a, S>(
        &mut self,
        FrameTail { head, memory }: FrameTail,
        front: &'a [u8],
        environment: &Environment<'_, S>,
    ) -> Result<Frame<'a>, crate::FrameError> {
        let budget = environment.scratch.budget();
        let rest = self.reserved.bytes().saturating_sub(memory.len());
        self.reserved.resize(rest, budget);
        let front = front.get(..head.tail_at()).unwrap_or_default();
        Frame::with_tail(front, &head, memory, budget)
    }
}
