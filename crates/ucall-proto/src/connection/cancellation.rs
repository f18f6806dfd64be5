//! Cancels calls whose callers ask for that, also while further requests wait.
//!
//! At [`connection_calls_max`](crate::Limits::connection_calls_max) and
//! [`pipeline_max`](crate::Limits::pipeline_max) requests wait in the input until a call ends. A
//! stream may never end, so the input is searched for requests to cancel a call that runs; they go
//! ahead of the others. A request to cancel one that waits itself stays behind it, until that one
//! runs.
//!
//! | at a limit | then |
//! |---|---|
//! | a document or frame that asks to cancel a running call | runs, and leaves the input |
//! | a Ping, Pong or Close frame | the same |
//! | another | waits |
//! | more than [`SEARCHED_BYTES_MAX`] of input | reading pauses |
//!
//! The frames to an application without room for them are searched for control frames, too. Before
//! a Close frame all others are passed on to it.
//!
//! The time is proportional to the input: only requests that have begun pay for a second search.

use std::mem;

use memchr::memmem;

use super::calls::CancelRequest;
use super::{Environment, PlainConnection, Protocol, Step};
use crate::Limits;
use crate::json::FirstMembers;
use crate::json::stream::DocumentStream;
use crate::rpc::frame::{FrameHead, begins_frame};
use crate::rpc::mcp::CANCELLED;
use crate::rpc::{Content, RpcError, Service, scan_document};
use crate::websocket::{PeekedFrame, peek_frame};

/// The notification that asks to cancel a call. The Language Server Protocol has this name.
pub const CANCEL_REQUEST: &[u8] = b"$/cancelRequest";

/// The methods of documents that are searched for.
const CANCEL_METHODS: [&[u8]; 2] = [CANCEL_REQUEST, CANCELLED];

/// Input of requests that wait, in which reading goes on: as much as a turn reads.
const SEARCHED_BYTES_MAX: usize = 64 << 10;

/// The bytes of a request to cancel besides its id, at most.
const CANCEL_REQUEST_BYTES_MAX: usize = 256;

/// Input that is searched again for each request that has begun, if one of those before it asked to
/// cancel a call that did not run then.
const SEARCHED_AGAIN_BYTES: usize = 1 << 10;

/// How far the input of a connection that waits is searched.
#[derive(Debug, Default)]
pub(super) struct CancelSearch {
    /// The bytes of whole documents or frames.
    searched: usize,
    /// The document after them, and how much of it was scanned.
    partial: DocumentStream,
    scanned: usize,
    /// What follows is no JSON, or no frame. It is refused when its turn comes.
    is_over: bool,
    /// Whether a document asks to cancel a call that does not run yet.
    has_early: bool,
    /// Bytes that may be searched again for it.
    again_bytes: usize,
    /// Whether more input helps.
    seeks_more: bool,
}

impl CancelSearch {
    /// Whether more input helps.
    pub(super) fn seeks_more(&self) -> bool {
        self.seeks_more
    }

    /// `used` bytes have left the start of the input.
    fn advance(&mut self, used: usize) {
        let Some(searched) = self.searched.checked_sub(used) else {
            *self = Self::default();
            return;
        };
        self.searched = searched;
        self.again_bytes += if used > 0 { SEARCHED_AGAIN_BYTES } else { 0 };
        if self.has_early && self.again_bytes >= searched {
            *self = Self::default();
        }
    }

    /// The end of the document that `rest` starts with, white space before it included.
    fn document_end(&mut self, rest: &[u8], limits: &Limits) -> Option<usize> {
        if begins_frame(rest) {
            return self.frame_end(rest, limits);
        }
        let new = rest.get(self.scanned..).unwrap_or_default();
        match self.partial.scan(new, limits.nesting_max) {
            Ok(Some(end)) => {
                let end = self.scanned + end;
                (self.partial, self.scanned) = (DocumentStream::default(), 0);
                return Some(end);
            }
            Ok(None) => self.scanned = rest.len(),
            Err(_) => self.is_over = true,
        }
        None
    }

    /// The end of the frame that `rest` starts with.
    fn frame_end(&mut self, rest: &[u8], limits: &Limits) -> Option<usize> {
        match FrameHead::parse(rest, limits) {
            Ok(head) => head.map(|head| head.len).filter(|len| *len <= rest.len()),
            Err(_) => {
                self.is_over = true;
                None
            }
        }
    }
}

/// What a search has found.
enum Found {
    /// The bytes of something that goes ahead.
    Urgent(usize),
    /// The bytes of something that waits.
    Other(usize),
    Nothing,
}

impl PlainConnection {
    /// Runs the requests to cancel a call among those that wait. Returns whether there were any:
    /// others may run now. `used` bytes have left the start of the input since the last search.
    #[cold]
    pub(super) fn search_cancellations<S: Service>(
        &mut self,
        used: usize,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let is_between_messages = match &self.protocol {
            Protocol::Raw(raw) => !raw.is_partial(),
            Protocol::WebSocket(socket) if socket.mounted_by().is_some() => true,
            Protocol::WebSocket(socket) => socket.bytes_needed() == 0,
            _ => return false,
        };
        let mut search = self.search.take().unwrap_or_default();
        search.advance(used);
        let waits = self.is_mounted_websocket() || self.waits_for_calls(environment.limits);
        let may_search = waits && is_between_messages && !search.is_over;
        let mut has_run = false;
        if may_search && !self.is_output_full(environment) {
            has_run = self.search_input(&mut search, environment);
        }
        search.seeks_more = may_search && !search.is_over && self.input.len() < SEARCHED_BYTES_MAX;
        self.search = Some(search);
        has_run
    }

    fn search_input<S: Service>(
        &mut self,
        search: &mut CancelSearch,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let mut input = mem::take(&mut self.input);
        let (mut read, mut kept) = (search.searched, search.searched);
        while self.reading.takes_requests() {
            let rest = input.get_mut(read..).unwrap_or_default();
            match self.find_urgent(rest, search, environment) {
                Found::Urgent(len) => {
                    self.run_urgent(rest.get_mut(..len).unwrap_or_default(), environment);
                    read += len;
                }
                Found::Other(len) => {
                    if read > kept {
                        input.copy_within(read..read + len, kept);
                    }
                    (read, kept) = (read + len, kept + len);
                }
                Found::Nothing => break,
            }
        }
        search.searched = kept;
        let has_run = read > kept || self.is_mounted_ending();
        if self.reading.takes_requests() {
            input.drain(kept..read);
            self.input = input;
        }
        has_run
    }

    fn find_urgent<S: Service>(
        &mut self,
        rest: &[u8],
        search: &mut CancelSearch,
        environment: &mut Environment<'_, S>,
    ) -> Found {
        if !self.is_websocket() {
            let Some(len) = search.document_end(rest, environment.limits) else {
                return Found::Nothing;
            };
            let document = rest.get(..len).unwrap_or_default();
            let is_urgent = self.cancels_running(document, search, environment);
            return if is_urgent { Found::Urgent(len) } else { Found::Other(len) };
        }
        let is_mounted = self.is_mounted_websocket();
        let text_bytes_max = match is_mounted {
            true => 0,
            false => environment.limits.id_bytes_max + CANCEL_REQUEST_BYTES_MAX,
        };
        match peek_frame(rest, text_bytes_max) {
            Ok(None) => Found::Nothing,
            Ok(Some((_, PeekedFrame::Close))) if is_mounted => {
                self.end_mounted_input();
                Found::Nothing
            }
            Ok(Some((len, PeekedFrame::Control | PeekedFrame::Close))) => Found::Urgent(len),
            Ok(Some((len, _))) if is_mounted => Found::Other(len),
            Ok(Some((len, PeekedFrame::Text(text))))
                if self.cancels_running(&text, search, environment) =>
            {
                Found::Urgent(len)
            }
            Ok(Some((len, _))) => Found::Other(len),
            Err(_) => {
                search.is_over = true;
                Found::Nothing
            }
        }
    }

    /// Whether a document asks to cancel a call that runs.
    fn cancels_running<S: Service>(
        &mut self,
        document: &[u8],
        search: &mut CancelSearch,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let limits = environment.limits;
        if document.len() > limits.id_bytes_max + CANCEL_REQUEST_BYTES_MAX
            || !CANCEL_METHODS.iter().any(|method| memmem::find(document, method).is_some())
        {
            return false;
        }
        let mut members = Vec::new();
        let document = document.trim_ascii_start();
        let parsed = scan_document(document, limits, &mut FirstMembers::new(&mut members, 0));
        let Ok(Content::Single(request)) = parsed.map(|parsed| parsed.content) else {
            return false;
        };
        if request.id.is_some() || !CANCEL_METHODS.contains(&request.method.raw()) {
            return false;
        }
        let cancel = CancelRequest::read(request.method.raw(), request.params);
        let runs = cancel.is_some_and(|it| self.exchanges.number_of(&it.id).is_some());
        search.has_early |= !runs;
        runs
    }

    fn run_urgent<S: Service>(&mut self, bytes: &mut [u8], environment: &mut Environment<'_, S>) {
        if self.is_mounted_websocket() {
            self.read_mounted_frame(bytes, environment);
            return;
        }
        if self.is_websocket() {
            self.run_frame(bytes, environment);
            return;
        }
        let mut used = 0;
        while let Some(rest @ [_, ..]) = bytes.get(used..)
            && let Step::Consumed(count) = self.step_raw(rest, environment)
        {
            used += count;
        }
    }

    /// Answers the calls that the last document has asked to cancel. Ids of calls that do not wait
    /// are ignored: their replies may be on the way.
    #[cold]
    pub(super) fn cancel_requested<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let error = RpcError::new(RpcError::REQUEST_CANCELLED, "Request cancelled");
        for CancelRequest { id, gets_reply } in mem::take(&mut environment.scratch.cancel_requests)
        {
            if let Some(number) = self.exchanges.number_of(&id) {
                environment.service.cancel(number);
                let bytes_max = environment.limits.reply_bytes_max;
                match gets_reply {
                    true => self.exchanges.complete(number, Err(&error), bytes_max),
                    false => self.exchanges.forget(number),
                }
                self.flush_completed(number, environment);
            }
        }
    }
}
