//! Runs long documents, whose requests were found while they arrived.
//!
//! A call may keep the memory of its document: [`Service::share`] passes it on. Then the connection
//! goes on with a copy of the input behind the document.

use std::sync::Arc;

use super::calls::run_outlined;
use super::compression::ReplyStart;
use super::http::BodyForm;
use super::http_body::{Body, LongBody};
use super::{Environment, PlainConnection, Protocol, Step};
use crate::Limits;
use crate::http1::{self, Head, ReplyHeaders};
use crate::rpc::{DocumentOutline, Service};

impl PlainConnection {
    /// Runs the long document that `input` starts with, if it is complete and may run now. Returns
    /// the input, and how many bytes of it are used.
    #[inline(never)]
    pub(super) fn process_long<S: Service>(
        &mut self,
        input: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) -> (Vec<u8>, usize) {
        if !self.reading.takes_requests() || self.must_wait(environment) {
            return (input, 0);
        }
        match &mut self.protocol {
            Protocol::Raw(_) => self.process_long_raw(input, environment),
            Protocol::Http(_) => self.process_long_http(input, environment),
            Protocol::WebSocket(_) => self.process_long_frame(input, environment),
            _ => (input, 0),
        }
    }

    fn process_long_frame<S: Service>(
        &mut self,
        mut input: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) -> (Vec<u8>, usize) {
        let Protocol::WebSocket(socket) = &mut self.protocol else { return (input, 0) };
        let Some(frame) = socket.take_long(&mut input, environment.limits) else {
            return (input, 0);
        };
        let document = Arc::new(input);
        environment.service.share(Some(&document));
        self.run_long_message(&document, &frame, environment);
        environment.service.share(None);
        self.rest_of(document, frame.message.len)
    }

    fn process_long_raw<S: Service>(
        &mut self,
        input: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) -> (Vec<u8>, usize) {
        let Some((outline, len)) = self.take_long_raw(&input, environment.limits, environment.out)
        else {
            return (input, 0);
        };
        let document = Arc::new(input);
        environment.service.share(Some(&document));
        self.run_long_raw(&document, &outline, environment);
        environment.service.share(None);
        self.rest_of(document, len)
    }

    fn process_long_http<S: Service>(
        &mut self,
        input: Vec<u8>,
        environment: &mut Environment<'_, S>,
    ) -> (Vec<u8>, usize) {
        let Some(outline) = self.take_long_http(&input, environment.limits) else {
            return (input, 0);
        };
        let document = Arc::new(input);
        environment.service.share(Some(&document));
        let used = self.run_long_http(&document, &outline, environment);
        environment.service.share(None);
        self.rest_of(document, used)
    }

    /// Returns the input after a document of which `used` bytes have run.
    fn rest_of(&mut self, document: Arc<Vec<u8>>, used: usize) -> (Vec<u8>, usize) {
        // It counts from the start of the input.
        self.search = None;
        match Arc::try_unwrap(document) {
            Ok(input) => (input, used),
            Err(kept) => (kept.get(used..).unwrap_or_default().to_vec(), 0),
        }
    }

    /// Takes the outline of the body of the first request in `input`, if it is long and complete.
    fn take_long_http(&mut self, input: &[u8], limits: &Limits) -> Option<Box<DocumentOutline>> {
        let Protocol::Http(http) = &mut self.protocol else { return None };
        let Body::Length(body) = &mut http.body else { return None };
        let LongBody { head_len, outline } = body.long.as_mut()?;
        let request = input.get(..body.bytes_needed).unwrap_or(input);
        outline.scan_framed(request.get(*head_len..).unwrap_or_default(), limits);
        if input.len() < body.bytes_needed {
            return None;
        }
        let LongBody { outline, .. } = body.long.take()?;
        outline.has_requests().then(|| Box::new(outline))
    }

    /// Runs the request with a long body that `input` starts with. Returns how many bytes it has.
    fn run_long_http<S: Service>(
        &mut self,
        input: &[u8],
        outline: &DocumentOutline,
        environment: &mut Environment<'_, S>,
    ) -> usize {
        let Some(head) = self.read_head(input, environment) else { return 0 };
        match self.handle_head(&head, input, BodyForm::Outlined(outline), environment) {
            Step::Consumed(used) => used,
            Step::Incomplete => 0,
        }
    }

    /// Answers a complete call with a long body.
    #[cold]
    pub(super) fn run_long_request<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        outline: &DocumentOutline,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let earlier = self.begin_queued_reply(environment);
        let start = ReplyStart::of(environment);
        let reply = self.begin_rpc(head, reply_headers, environment);
        let context = reply.context(self);
        let ran = run_outlined(body, outline, context, environment);
        self.end_rpc(body, ran, reply, environment);
        start.compress(reply_headers.negotiation, environment);
        self.end_queued_reply(earlier, environment);
        if reply_headers.connection == http1::ConnectionOption::Close {
            self.discard_input();
        }
    }
}
