//! Documents that come in frames, with binary parts behind their text.
//!
//! | protocol | a frame is | the reply with parts |
//! |---|---|---|
//! | HTTP | a body | is a body of the type [`FRAME_MEDIA_TYPE`] |
//! | WebSocket | a binary message | is one, too |
//! | raw TCP | between documents, nothing behind it | is one, too |
//!
//! A reply without parts is text, as are those to batches. A reply with parts is an exchange that
//! is complete at once, so that it keeps its place among the others.

use super::calls::{DocumentOutcome, RequestContext, run_other};
use super::exchange::ExchangeReply;
use super::http::BegunReply;
use super::{Environment, PlainConnection, Protocol, Step};
use crate::http1::ReplyHeaders;
use crate::json::{JsonError, Reader};
use crate::rpc::frame::{FRAME_MEDIA_TYPE, Frame, FrameError, FrameHead, ResultFrame};
use crate::rpc::{
    Binary, CallNumber, ResultFormat, ResultPart, RpcError, Service, too_large, write_error_reply,
};
use crate::websocket::{MessageKind, Opcode, write_head};

impl PlainConnection {
    /// Answers a request whose body is a frame.
    #[cold]
    #[inline(never)]
    pub(super) fn run_frame_body<S: Service>(
        &mut self,
        body: &[u8],
        reply: BegunReply<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let frame = self.read_frame(body, environment);
        self.answer_frame(frame, reply, environment);
    }

    /// Answers a request whose body is this frame.
    pub(super) fn answer_frame<S: Service>(
        &mut self,
        frame: Result<Frame<'_>, FrameError>,
        reply: BegunReply<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let is_broken = matches!(frame, Err(FrameError::SharedMemory));
        let number = CallNumber { request: reply.request, item: 0 };
        let ran = run_frame(frame, reply.context(self), environment);
        self.end_rpc(b"", ran, reply, environment);
        self.flush_completed(number, environment);
        self.end_if(is_broken);
    }

    /// Writes a reply that is a frame, over HTTP.
    pub(super) fn write_frame_reply<S>(
        &mut self,
        mut frame: ResultFrame,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        self.share_result(&mut frame);
        let len = frame.len();
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {FRAME_MEDIA_TYPE}\r\nContent-Length: {len}\r\n\r\n"
        );
        let Environment { replies, out, .. } = environment;
        replies.response(out, head.as_bytes(), reply_headers, false);
        self.write_result_frame(frame, environment);
    }

    /// Answers a message that is a frame.
    #[cold]
    #[inline(never)]
    pub(super) fn run_frame_message<S: Service>(
        &mut self,
        payload: &[u8],
        environment: &mut Environment<'_, S>,
    ) {
        let frame = self.read_frame(payload, environment);
        let is_broken = matches!(frame, Err(FrameError::SharedMemory));
        let number = CallNumber { request: self.requests + 1, item: 0 };
        let run = |context: RequestContext<'_>, environment: &mut _| {
            run_frame(frame, context, environment)
        };
        self.run_message_with(MessageKind::Binary, payload, environment, run);
        self.flush_completed(number, environment);
        self.end_if(is_broken);
    }

    /// Writes a reply that is a frame, over raw TCP or WebSocket.
    pub(super) fn write_frame_message<S>(
        &mut self,
        mut frame: ResultFrame,
        environment: &mut Environment<'_, S>,
    ) {
        self.share_result(&mut frame);
        if matches!(self.protocol, Protocol::WebSocket(_)) {
            write_head(environment.out, Opcode::Binary, frame.len());
        }
        self.write_result_frame(frame, environment);
    }

    fn write_result_frame<S>(&mut self, frame: ResultFrame, environment: &mut Environment<'_, S>) {
        let Environment { out, scratch, queued_bytes, .. } = environment;
        // TLS encrypts a copy.
        let attachments = self.session.is_none().then_some(&mut scratch.attachments);
        *queued_bytes += frame.write(out, attachments);
    }

    /// Runs the frame that `rest` starts with, over raw TCP.
    #[cold]
    #[inline(never)]
    pub(super) fn step_raw_frame<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::Raw(raw) = &mut self.protocol else { return Step::Incomplete };
        let has_begun = raw.frame_bytes > 0;
        if rest.len() < raw.frame_bytes {
            return Step::Incomplete;
        }
        // Nothing says where a frame ends whose lengths are invalid.
        let head = match FrameHead::parse(rest, environment.limits) {
            Ok(head) => head,
            Err(error) => return self.refuse_with(&error.rpc_error(), environment.out),
        };
        raw.frame_bytes = head.map_or(rest.len() + 1, |head| head.len);
        let Some(bytes) = rest.get(..raw.frame_bytes) else {
            if !has_begun && environment.scratch.is_full(environment.limits) {
                return self.refuse_with(&RpcError::overloaded(), environment.out);
            }
            return Step::Incomplete;
        };
        let frame = self.read_frame(bytes, environment);
        self.run_raw_frame(frame, environment);
        Step::Consumed(bytes.len())
    }

    /// Runs a frame over raw TCP.
    pub(super) fn run_raw_frame<S: Service>(
        &mut self,
        frame: Result<Frame<'_>, FrameError>,
        environment: &mut Environment<'_, S>,
    ) {
        let Protocol::Raw(raw) = &mut self.protocol else { return };
        raw.frame_bytes = 0;
        if environment.service.requires_authentication()
            && let Some(identity) = &raw.identity
        {
            environment.service.set_identity(identity);
        }
        let is_broken = matches!(frame, Err(FrameError::SharedMemory));
        let request = self.requests + 1;
        let context = RequestContext { request, head: None, session: self.session.as_ref() };
        let ran = match run_frame(frame, context, environment) {
            Ok(ran) => ran,
            Err(fault) => refused(&RpcError::parse(fault, environment.limits), environment),
        };
        self.end_raw(request, ran, environment);
        self.flush_completed(CallNumber { request, item: 0 }, environment);
        self.end_if(is_broken);
    }

    fn read_frame<'a, S>(
        &mut self,
        bytes: &'a [u8],
        environment: &Environment<'_, S>,
    ) -> Result<Frame<'a>, FrameError> {
        let budget = environment.scratch.budget();
        Frame::read(bytes, environment.limits, budget, self.shared_memory())
    }

    fn share_result(&mut self, frame: &mut ResultFrame) {
        if let Some(memory) = self.shared_memory() {
            frame.share(memory);
        }
    }

    /// Reads no more of a peer whose shared memory `is_broken`, since nothing says what it has.
    fn end_if(&mut self, is_broken: bool) {
        if is_broken {
            self.discard_input();
        }
    }
}

fn refused<S>(error: &RpcError, environment: &mut Environment<'_, S>) -> DocumentOutcome {
    write_error_reply(environment.out, None, error);
    DocumentOutcome::Replied
}

/// Runs the calls of a frame's document. A reply with parts is deferred, and complete.
fn run_frame<S: Service>(
    frame: Result<Frame<'_>, FrameError>,
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<DocumentOutcome, JsonError> {
    let Frame { text, parts } = match frame {
        Ok(frame) => frame,
        Err(error) => return Ok(refused(&error.rpc_error(), environment)),
    };
    let is_batch = text.trim_ascii_start().first() == Some(&b'[');
    let results = if is_batch { ResultFormat::Json } else { ResultFormat::Parts };
    let binary = Binary { parts, results };
    environment.service.set_binary(Some(&binary));
    let start = environment.out.len();
    let ran = run_other::<true, S>(text, context, environment);
    let mut parts = Vec::new();
    if let Ok((DocumentOutcome::Replied, _)) = ran
        && !is_batch
    {
        parts = environment.service.take_result_parts();
    }
    environment.service.set_binary(None);
    let (ran, _) = ran?;
    if parts.is_empty() {
        return Ok(ran);
    }
    let text = environment.out.split_off(start);
    Ok(with_parts(text, parts, environment))
}

/// The outcome of a call whose reply is this text with parts.
fn with_parts<S>(
    text: Vec<u8>,
    parts: Vec<ResultPart>,
    environment: &mut Environment<'_, S>,
) -> DocumentOutcome {
    let bytes_max = environment.limits.reply_bytes_max;
    let frame = match ResultFrame::new(text, parts) {
        Ok(frame) if frame.len() > bytes_max => {
            let id = Reader::new(frame.text()).members([b"id"]).and_then(|[id]| id);
            write_error_reply(environment.out, id, &too_large(bytes_max));
            return DocumentOutcome::Replied;
        }
        Ok(frame) => frame,
        Err(inlined) => {
            environment.out.extend_from_slice(&inlined);
            return DocumentOutcome::Replied;
        }
    };
    DocumentOutcome::Deferred(Box::new(ExchangeReply::WithParts(Box::new(frame))))
}
