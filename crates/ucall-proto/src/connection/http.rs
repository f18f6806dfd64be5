//! HTTP messages one after another, answered in order.

use std::mem;

use super::calls::{DocumentOutcome, RequestContext, run_document};
use super::compression::{ReplyStart, negotiate};
use super::exchange::{ExchangeReply, ReplyPart, write_outcome};
use super::http_body::Body;
use super::http_framing::{HttpFraming, HttpItems, write_deferred_reply};
use super::http_route::{self, ResponseFraming};
use super::{Drain, Environment, LoadState, PlainConnection, Protocol, ReadEvent, Step};
use crate::Limits;
use crate::http1::{
    self, BodyLength, ErrorBody, Head, HeadParser, HttpError, Method, PendingReply, ReplyHeaders,
};
use crate::json::JsonError;
use crate::rpc::frame::begins_frame;
use crate::rpc::{
    CallNumber, CallerIdentity, DocumentOutline, ItemFormat, ItemToken, ROUTE_ID, ReplyLimit,
    RpcError, Service, write_error_reply,
};

/// The state of the current request, while it is incomplete.
#[derive(Debug, Default)]
pub(super) struct Http {
    parser: HeadParser,
    pub(super) body: Body,
    /// The caller of the current request, if the service requires authentication.
    pub(super) identity: Option<CallerIdentity>,
}

/// What there is of a body that has arrived.
#[derive(Clone, Copy)]
pub(super) enum BodyForm<'a> {
    /// Its bytes.
    Whole,
    /// Its bytes, with the requests in them.
    Outlined(&'a DocumentOutline),
    /// The front of a frame, whose parts are apart from the input.
    Tail { front_len: usize },
}

/// The output of a step before a reply that is queued.
pub(super) struct EarlierOutput {
    out: Vec<u8>,
    /// The number of requests before that of the reply.
    requests: u64,
}

/// The reply to a document, whose head is written.
pub(super) struct BegunReply<'a> {
    pub(super) request: u64,
    pub(super) pending: PendingReply,
    pub(super) head: &'a Head<'a>,
    pub(super) reply_headers: &'a ReplyHeaders<'a>,
}

impl<'a> BegunReply<'a> {
    #[inline(always)]
    pub(super) fn context<'c>(&self, connection: &'c PlainConnection) -> RequestContext<'c>
    where
        'a: 'c,
    {
        let session = connection.session.as_ref();
        RequestContext { request: self.request, head: Some(self.head), session }
    }
}

impl PlainConnection {
    /// Runs the request that `rest` starts with.
    #[inline(always)]
    pub(super) fn step_http<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        match &http.body {
            Body::None => {}
            Body::Pieces(_) => return self.step_pieces(rest, environment),
            Body::Streamed(_) => return self.step_streamed(rest, environment),
            Body::Length(it) if rest.len() < it.bytes_needed => return Step::Incomplete,
            Body::Length(_) => {}
        }
        let head = match http.parser.match_cached_head(rest) {
            Some(head) => head,
            None => match self.read_head(rest, environment) {
                Some(head) => head,
                None => return Step::Incomplete,
            },
        };
        self.handle_head(&head, rest, BodyForm::Whole, environment)
    }

    /// Parses a head that differs from the cached one; refuses an invalid one.
    #[inline(never)]
    pub(super) fn read_head<'a, S: Service>(
        &mut self,
        rest: &'a [u8],
        environment: &mut Environment<'_, S>,
    ) -> Option<Head<'a>> {
        let Protocol::Http(http) = &mut self.protocol else { return None };
        // The parser drops a complete head, so it parses the head again when the body has arrived.
        let Limits { head, call_paths, .. } = environment.limits;
        match http.parser.parse_general(rest, head, call_paths) {
            Ok(head) => head,
            Err(error) => {
                let body = environment.service.error_body(http1::begun_path(rest));
                self.refuse_http(&error, body, environment);
                None
            }
        }
    }

    #[inline(always)]
    pub(super) fn handle_head<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        form: BodyForm<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let is_last = self.is_last(self.requests + 1, environment);
        // Nearly all requests are served, and answered without optional headers.
        let is_fast_path = !is_last
            && head.is_fast_path()
            && environment.access.allows_unchecked(head.names_loopback())
            && environment.drain == Drain::No
            && environment.load == LoadState::Normal;
        let mut reply_headers = ReplyHeaders::default();
        if !is_fast_path {
            match self.check_or_upgrade(head, is_last, environment) {
                Ok(checked) => reply_headers = checked,
                Err(step) => return step,
            }
        }
        if environment.service.requires_authentication() {
            return self.handle_authenticated(head, rest, form, &reply_headers, environment);
        }
        self.handle_admitted(head, rest, form, &reply_headers, environment)
    }

    /// Handles a request that may run, once its body has arrived.
    #[inline(always)]
    pub(super) fn handle_admitted<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        form: BodyForm<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let length = match head.body() {
            BodyLength::None => 0,
            BodyLength::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            BodyLength::Chunked | BodyLength::Coded(_) => {
                return self.begin_pieces(head, rest, environment);
            }
        };
        if length > environment.limits.body_bytes_max
            && let Err(error) = http_route::check_long(head, environment)
        {
            return self.refuse_request(head, &error, environment);
        }
        let total = head.len() + length;
        let end = match form {
            BodyForm::Tail { front_len } => head.len() + front_len,
            BodyForm::Whole | BodyForm::Outlined(_) => total,
        };
        let Some(body) = rest.get(head.len()..end) else {
            return self.wait_for_body(head, total, rest.len() == head.len(), environment);
        };
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Step::Incomplete;
        }
        if let Protocol::Http(http) = &mut self.protocol
            && !http.body.is_none()
        {
            http.body.discard();
        }
        match form {
            BodyForm::Whole => self.run_request(head, body, reply_headers, environment),
            BodyForm::Outlined(outline) => {
                self.run_long_request(head, body, outline, reply_headers, environment);
            }
            BodyForm::Tail { .. } => {
                self.run_tail_request(head, body, reply_headers, environment);
            }
        }
        Step::Consumed(end)
    }

    /// Checks a request that is not on the fast path. Returns the step of a request that is refused
    /// or upgrades the connection.
    #[inline(never)]
    fn check_or_upgrade<'a, S: Service>(
        &mut self,
        head: &Head<'a>,
        is_last: bool,
        environment: &mut Environment<'_, S>,
    ) -> Result<ReplyHeaders<'a>, Step> {
        if head.method() == Method::Get
            && let Some(step) = self.upgrade(head, environment)
        {
            return Err(step);
        }
        self.check_or_refuse(head, is_last, environment)
    }

    /// Checks a request, and refuses it in a way that a page of an allowed origin may read.
    pub(super) fn check_or_refuse<'a, S: Service>(
        &mut self,
        head: &Head<'a>,
        is_last: bool,
        environment: &mut Environment<'_, S>,
    ) -> Result<ReplyHeaders<'a>, Step> {
        check_access(head, is_last, self.is_tls(), environment)
            .map_err(|error| self.refuse_request(head, &error, environment))
    }

    /// Whether a request may start a stream, as those of routes may, whose items follow the replies
    /// to earlier requests. It waits for these.
    #[cold]
    pub(super) fn must_follow(&mut self, head: &Head<'_>) -> bool {
        let must_follow = !head.is_call() || ItemFormat::accepted_by(head).is_some();
        if must_follow {
            self.reading.handle(ReadEvent::Wait);
        }
        must_follow
    }

    /// Answers a complete request.
    #[inline(never)]
    pub(super) fn run_request<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        if self.exchanges.is_empty() && head.is_fast_path() {
            self.run_rpc(head, body, reply_headers, environment);
        } else {
            self.run_general(head, body, reply_headers, environment);
        }
        if reply_headers.connection == http1::ConnectionOption::Close {
            self.discard_input();
        }
    }

    /// Answers a request that is not on the fast path, or waits for earlier exchanges.
    #[inline(never)]
    fn run_general<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let earlier = self.begin_queued_reply(environment);
        let start = ReplyStart::of(environment);
        match head.method() {
            Method::Options if !http_route::is_mounted(head, environment.service) => {
                self.next_request();
                let methods = http_route::methods(head, environment.service);
                environment.replies.options(environment.out, methods, reply_headers);
            }
            _ if head.is_call() => self.run_rpc(head, body, reply_headers, environment),
            Method::Post if environment.service.serves_mcp(head) => {
                self.run_mcp(head, body, reply_headers, environment);
            }
            Method::Post => match environment.service.endpoint(head) {
                Some(it) => self.run_endpoint(&it, head, body, reply_headers, environment),
                None => self.run_route(head, body, reply_headers, environment),
            },
            _ => self.run_route(head, body, reply_headers, environment),
        }
        start.compress(reply_headers.negotiation, environment);
        self.end_queued_reply(earlier, environment);
    }

    /// Begins a reply, which gets a buffer of its own if it waits for earlier ones. Returns the
    /// output of the step until then.
    #[inline(always)]
    pub(super) fn begin_queued_reply<S>(
        &self,
        environment: &mut Environment<'_, S>,
    ) -> Option<EarlierOutput> {
        if self.exchanges.is_empty() {
            return None;
        }
        Some(EarlierOutput { out: mem::take(environment.out), requests: self.requests })
    }

    /// Queues the reply of [`PlainConnection::begin_queued_reply`], if it waits.
    #[inline(always)]
    pub(super) fn end_queued_reply<S>(
        &mut self,
        earlier: Option<EarlierOutput>,
        environment: &mut Environment<'_, S>,
    ) {
        let Some(EarlierOutput { out, requests }) = earlier else { return };
        let reply = mem::replace(environment.out, out);
        if !reply.is_empty() {
            // A request that is refused has no number yet.
            let is_numbered = self.requests != requests;
            let request = if is_numbered { self.requests } else { self.next_request() };
            self.queue_reply(request, reply);
        }
    }

    /// Writes the replies that are complete, up to the first that is not. During a drain, and
    /// after the peer has shut down its side, the last one closes the connection.
    pub(super) fn flush_in_order<S>(&mut self, environment: &mut Environment<'_, S>) {
        while let Some((mut framing, reply)) = self.exchanges.pop_first_whole() {
            if !matches!(reply, ExchangeReply::Framed(_)) {
                self.close_after_last(&mut framing, environment);
            }
            let start = ReplyStart::of(environment);
            let negotiation = framing.negotiation;
            self.write_whole(framing, reply, environment);
            start.compress(negotiation, environment);
        }
    }

    /// Has the reply that is written next be the last one, if the connection is about to end.
    #[inline]
    fn close_after_last<S>(&mut self, framing: &mut HttpFraming, environment: &Environment<'_, S>) {
        if (environment.drain != Drain::No || self.reading.is_ended())
            && self.exchanges.is_empty()
            && self.input.is_empty()
        {
            framing.connection = http1::ConnectionOption::Close;
            self.discard_input();
        }
    }

    /// Writes the reply to a call straight to the output, if it is the first one and of that call
    /// alone, as most are. Returns whether it has.
    pub(super) fn complete_first<S>(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        let Protocol::Http(_) = &self.protocol else { return false };
        let first = self.exchanges.pop_first_call(number, HttpFraming::is_of_call);
        let Some((mut framing, id)) = first else { return false };
        self.close_after_last(&mut framing, environment);
        let start = ReplyStart::of(environment);
        let Environment { replies, out, limits, .. } = environment;
        let pending = replies.begin(out, &framing.reply_headers());
        let limit = ReplyLimit::after(out, limits.reply_bytes_max);
        write_outcome(out, &id, outcome, &limit);
        replies.end(out, pending);
        start.compress(framing.negotiation, environment);
        true
    }

    /// Writes a reply that had to wait.
    #[inline]
    fn write_whole<S>(
        &mut self,
        mut framing: HttpFraming,
        reply: ExchangeReply,
        environment: &mut Environment<'_, S>,
    ) {
        if let Some(response) = framing.response.take() {
            return self.end_response(response, &framing, &reply, environment);
        }
        if let Some(endpoint) = framing.endpoint.take() {
            return self.end_endpoint(&endpoint, &framing, reply, environment);
        }
        match (framing.items.take().filter(HttpItems::frame_reply), reply) {
            (Some(items), reply) => items.write_reply(&framing, &reply, environment),
            (None, ExchangeReply::WithParts(frame)) if framing.is_newest_mcp.is_none() => {
                self.write_frame_reply(*frame, &framing.reply_headers(), environment);
            }
            (None, reply) => {
                let Environment { replies, out, .. } = environment;
                write_deferred_reply(&framing, &reply, replies, out);
            }
        }
    }

    /// Writes what remains of a response. One that ends too early, or by the end of the
    /// connection, is the last reply.
    fn end_response<S>(
        &mut self,
        response: ResponseFraming,
        framing: &HttpFraming,
        reply: &ExchangeReply,
        environment: &mut Environment<'_, S>,
    ) {
        let mut text = Vec::new();
        reply.write(&mut text);
        if !response.end(&text, &framing.reply_headers(), environment.replies, environment.out) {
            self.cancel();
        } else if self.asks_for_upgrade() {
            self.discard_input();
        }
    }

    /// Queues a reply after those of earlier requests.
    pub(super) fn queue_reply(&mut self, request: u64, framed: Vec<u8>) {
        self.exchanges.push(request, HttpFraming::default(), ExchangeReply::Framed(framed));
    }

    #[inline(always)]
    fn run_rpc<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let reply = self.begin_rpc(head, reply_headers, environment);
        let context = reply.context(self);
        let ran = run_document::<true, S>(body, context, environment).map(|(ran, _)| ran);
        self.end_rpc(body, ran, reply, environment);
    }

    #[inline(always)]
    pub(super) fn begin_rpc<'a, S>(
        &mut self,
        head: &'a Head<'a>,
        reply_headers: &'a ReplyHeaders<'a>,
        environment: &mut Environment<'_, S>,
    ) -> BegunReply<'a> {
        let request = self.next_request();
        let pending = environment.replies.begin(environment.out, reply_headers);
        BegunReply { request, pending, head, reply_headers }
    }

    /// Ends the reply to a document, or keeps its framing for calls that are deferred.
    #[inline(always)]
    pub(super) fn end_rpc<S: Service>(
        &mut self,
        body: &[u8],
        ran: Result<DocumentOutcome, JsonError>,
        reply: BegunReply<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        if ran.is_err() && begins_frame(body) {
            return self.run_frame_body(body, reply, environment);
        }
        let BegunReply { request, pending, head, reply_headers } = reply;
        let Environment { limits, now, replies, out, .. } = environment;
        let ran = match ran {
            Ok(ran) => ran,
            Err(fault) => {
                if let Some(error) = unsupported_media(head) {
                    replies.abort(out, pending);
                    let body = ErrorBody::Text;
                    replies.error(out, &error, reply_headers, body, false);
                    return;
                }
                write_error_reply(out, None, &RpcError::parse(fault, limits));
                DocumentOutcome::Replied
            }
        };
        match ran {
            DocumentOutcome::Replied => replies.end(out, pending),
            DocumentOutcome::NoReply => {
                replies.abort(out, pending);
                replies.no_content(out, reply_headers);
            }
            DocumentOutcome::Deferred(reply) => {
                replies.abort(out, pending);
                let is_reporting = reply.is_reporting();
                let items = reply.is_stream().then(|| HttpItems::new(head, is_reporting, *now));
                let framing = HttpFraming { items, ..HttpFraming::new(head, reply_headers) };
                self.exchanges.push(request, framing, *reply);
            }
        }
    }

    /// Runs a request of a route.
    fn run_route<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let number = CallNumber { request: self.next_request(), item: 0 };
        let session = self.session.as_ref();
        let mut framing = HttpFraming::new(head, reply_headers);
        let response = ResponseFraming::new(head);
        let body = (!self.streams_body()).then_some(body);
        match http_route::respond(head, body, number, session, environment) {
            (outcome, _) if outcome.is_deferred() => {
                framing.response = Some(response);
                let (id, token) = (ROUTE_ID.to_vec(), Some(ItemToken::Progress(ROUTE_ID.to_vec())));
                let part = ReplyPart::Waiting { item: 0, id, token, is_reporting: false };
                self.exchanges.push(number.request, framing, ExchangeReply::Single(part));
            }
            (_, text) => {
                response.end(&text, reply_headers, environment.replies, environment.out);
            }
        }
    }

    /// Runs a request of a route whose body follows in parts.
    pub(super) fn run_streamed_route<S: Service>(
        &mut self,
        head: &Head<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let earlier = self.begin_queued_reply(environment);
        self.run_route(head, &[], reply_headers, environment);
        self.end_queued_reply(earlier, environment);
    }
}

/// Checks access, method and target before the body is read.
#[inline(never)]
fn check_access<'a, S: Service>(
    head: &Head<'a>,
    is_last: bool,
    is_tls: bool,
    environment: &Environment<'_, S>,
) -> Result<ReplyHeaders<'a>, HttpError> {
    let is_mounted = http_route::is_mounted(head, environment.service);
    let origin = head.origin().filter(|_| !is_mounted);
    let allowed_origin = environment.access.check(head.host(), origin, is_tls)?;
    if environment.load == LoadState::Overloaded
        && environment.drain != Drain::Refusing
        && !http_route::is_health_check(head, environment.service)
    {
        return Err(HttpError::Overloaded);
    }
    let connection = match environment.drain {
        Drain::No if !is_last => head.reply_connection(),
        _ => http1::ConnectionOption::Close,
    };
    if !head.is_call() {
        http_route::check(head, environment.service)?;
    }
    let negotiation = negotiate(head, environment.limits);
    Ok(ReplyHeaders { connection, allowed_origin, negotiation })
}

/// Why a body that is not JSON cannot be read, if the headers say so.
#[cold]
fn unsupported_media(head: &Head<'_>) -> Option<HttpError> {
    let media_type = head.header("Content-Type").unwrap_or_default();
    let prefix = media_type.get(..b"multipart/".len()).unwrap_or_default();
    prefix.eq_ignore_ascii_case(b"multipart/").then_some(HttpError::MultipartUnsupported)
}
