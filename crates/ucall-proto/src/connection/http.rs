//! HTTP messages one after another, answered in order.

use std::sync::Arc;

use super::calls::{DocumentOutcome, RequestContext, run_document};
use super::exchange::{ExchangeReply, ReplyPart};
use super::http_framing::{HttpFraming, HttpItems, write_deferred_reply};
use super::http_route::{self, ResponseFraming};
use super::long::LongBody;
use super::{
    Drain, Environment, LoadState, PlainConnection, Protocol, ReadEvent, Reading, Step, WaitState,
    body_time,
};
use crate::Limits;
use crate::http1::{
    self, BodyLength, ChunkedDecoder, ChunkedLimits, Head, HeadParser, HttpError, Method,
    PendingReply, ReplyHeaders,
};
use crate::json::JsonError;
use crate::rpc::{
    CallNumber, CallOutcome, CallerIdentity, DocumentOutline, ItemFormat, ROUTE_ID, RpcError,
    Service, write_error_reply,
};

/// The state of the current request, while it is incomplete.
#[derive(Debug, Default)]
pub(super) struct Http {
    parser: HeadParser,
    /// The bytes of head and body together, once the head is complete.
    pub(super) bytes_needed: usize,
    /// The requests of a long body with a Content-Length.
    pub(super) long: Option<Box<LongBody>>,
    chunked: Option<Box<Chunked>>,
    /// The foreign origin that may read the reply to a request whose body is incomplete.
    pub(super) allowed_origin: Option<Box<[u8]>>,
    /// The caller of the current request, if the service requires authentication.
    pub(super) identity: Option<CallerIdentity>,
}

/// A chunked body that is being received, and its request's head.
#[derive(Debug)]
struct Chunked {
    head: Vec<u8>,
    decoder: ChunkedDecoder,
    body: Vec<u8>,
    /// The requests of a long body.
    outline: DocumentOutline,
}

/// The reply to a document, whose head is written.
pub(super) struct BegunReply<'a> {
    request: u64,
    pending: PendingReply,
    head: &'a Head<'a>,
    reply_headers: &'a ReplyHeaders<'a>,
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

impl Http {
    pub(super) fn bytes_needed(&self) -> usize {
        self.bytes_needed
    }

    /// Discards the body that is being received.
    pub(super) fn discard_body(&mut self) {
        (self.bytes_needed, self.chunked, self.long) = (0, None, None);
    }

    /// The memory of a chunked body.
    pub(super) fn held_bytes(&self) -> usize {
        self.chunked.as_ref().map_or(0, |chunked| chunked.head.len() + chunked.body.capacity())
            + self.long.as_ref().map_or(0, |long| long.outline.held_bytes())
    }

    pub(super) fn wait_state(&self, input_is_empty: bool, limits: &Limits) -> WaitState {
        if let Some(chunked) = &self.chunked {
            WaitState::Body { total: body_time(chunked.body.len(), limits) }
        } else if self.bytes_needed > 0 {
            WaitState::Body { total: body_time(self.bytes_needed, limits) }
        } else if input_is_empty {
            WaitState::Request
        } else {
            WaitState::Head
        }
    }

    /// Whether no request is being received, apart from bytes in the input buffer.
    #[inline]
    pub(super) fn is_between_requests(&self) -> bool {
        self.bytes_needed == 0 && self.chunked.is_none()
    }
}

impl PlainConnection {
    /// Runs the request that `rest` starts with.
    #[inline(always)]
    pub(super) fn step_http<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        if http.chunked.is_some() {
            return self.step_chunked(rest, environment, out);
        }
        if rest.len() < http.bytes_needed {
            return Step::Incomplete;
        }
        let head = match http.parser.match_cached_head(rest) {
            Some(head) => head,
            None => match self.read_head(rest, environment, out) {
                Some(head) => head,
                None => return Step::Incomplete,
            },
        };
        self.handle_head(&head, rest, None, environment, out)
    }

    /// Parses a head that differs from the cached one; refuses an invalid one.
    #[inline(never)]
    pub(super) fn read_head<'a, S: Service>(
        &mut self,
        rest: &'a [u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Option<Head<'a>> {
        let Protocol::Http(http) = &mut self.protocol else { return None };
        // The parser drops a complete head, so it parses the head again when the body has arrived.
        match http.parser.parse_general(rest, &environment.limits.head) {
            Ok(head) => head,
            Err(error) => {
                self.refuse_http(&error, Method::Other, environment, out);
                None
            }
        }
    }

    #[inline(always)]
    pub(super) fn handle_head<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        outline: Option<&DocumentOutline>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
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
            match self.check_or_upgrade(head, is_last, environment, out) {
                Ok(checked) => reply_headers = checked,
                Err(step) => return step,
            }
        }
        if environment.service.requires_authentication()
            && let Some(refused) = self.authenticate_http(head, &reply_headers, environment, out)
        {
            return refused;
        }
        let limit = environment.limits.body_bytes_max;
        let length = match head.body() {
            BodyLength::None => 0,
            BodyLength::Length(length) => usize::try_from(length).unwrap_or(usize::MAX),
            BodyLength::Chunked => return self.begin_chunked(head, rest, environment, out),
        };
        if length > limit {
            let error = HttpError::BodyTooLarge { limit: limit as u64 };
            return self.refuse_request(head, &error, environment, out);
        }
        let total = head.len() + length;
        let Some(body) = rest.get(head.len()..total) else {
            return self.wait_for_body(head, total, rest.len() == head.len(), environment, out);
        };
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Step::Incomplete;
        }
        if let Protocol::Http(http) = &mut self.protocol {
            http.bytes_needed = 0;
        }
        match outline {
            None => self.run_request(head, body, &reply_headers, environment, out),
            Some(it) => self.run_long_request(head, body, it, &reply_headers, environment, out),
        }
        Step::Consumed(total)
    }

    /// Checks a request that is not on the fast path. Returns the step of a request that is refused
    /// or upgrades the connection.
    #[inline(never)]
    fn check_or_upgrade<'a, S: Service>(
        &mut self,
        head: &Head<'a>,
        is_last: bool,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Result<ReplyHeaders<'a>, Step> {
        if head.method() == Method::Get
            && let Some(step) = self.upgrade(head, environment, out)
        {
            return Err(step);
        }
        self.check_or_refuse(head, is_last, environment, out)
    }

    /// Checks a request, and refuses it in a way that a page of an allowed origin may read.
    fn check_or_refuse<'a, S: Service>(
        &mut self,
        head: &Head<'a>,
        is_last: bool,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Result<ReplyHeaders<'a>, Step> {
        check_access(head, is_last, self.is_tls(), environment)
            .map_err(|error| self.refuse_request(head, &error, environment, out))
    }

    /// Whether a request may start a stream, as those of routes may, whose items follow the replies
    /// to earlier requests. It waits for these.
    #[cold]
    fn must_follow(&mut self, head: &Head<'_>) -> bool {
        let must_follow = !head.is_call() || ItemFormat::accepted_by(head).is_some();
        if must_follow {
            self.reading.handle(ReadEvent::Wait);
        }
        must_follow
    }

    #[cold]
    fn wait_for_body<S: Service>(
        &mut self,
        head: &Head<'_>,
        total: usize,
        nothing_came: bool,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Step {
        if environment.scratch.is_full(environment.limits) {
            return self.refuse_request(head, &HttpError::Overloaded, environment, out);
        }
        if head.expect_continue() && nothing_came {
            if !self.exchanges.is_empty() {
                // The interim reply goes out after the replies to earlier requests.
                self.reading.handle(ReadEvent::Wait);
                return Step::Incomplete;
            }
            http1::continue_100(out);
        }
        let origin = self.allowed_origin(head, environment);
        if let Protocol::Http(http) = &mut self.protocol {
            http.bytes_needed = total;
            http.allowed_origin = origin.map(|it| it.as_bytes().into());
            if total > environment.limits.long_bytes_min && head.is_call() {
                http.long = Some(Box::new(LongBody::after(head)));
            }
        }
        Step::Incomplete
    }

    #[cold]
    fn begin_chunked<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Step {
        if !self.exchanges.is_empty() && self.must_follow(head) {
            return Step::Incomplete;
        }
        let step = self.wait_for_body(head, 0, rest.len() == head.len(), environment, out);
        if !matches!(self.reading, Reading::Open { .. }) {
            return step;
        }
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        http.chunked = Some(Box::new(Chunked {
            head: rest.get(..head.len()).unwrap_or_default().to_vec(),
            decoder: ChunkedDecoder::default(),
            body: Vec::new(),
            outline: DocumentOutline::default(),
        }));
        Step::Consumed(head.len())
    }

    #[inline(never)]
    fn step_chunked<S: Service>(
        &mut self,
        rest: &[u8],
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        let Some(mut chunked) = http.chunked.take() else { return Step::Incomplete };
        let limits = ChunkedLimits {
            body_bytes_max: environment.limits.body_bytes_max as u64,
            overhead_bytes_max: environment.limits.chunk_overhead_bytes_max,
        };
        match chunked.decoder.decode(rest, &mut chunked.body, &limits) {
            Err(error) => self.refuse_body(&error, environment, out),
            Ok(progress) => {
                if chunked.body.len() > environment.limits.long_bytes_min {
                    chunked.outline.scan_framed(&chunked.body, environment.limits);
                }
                match progress.is_done {
                    true => self.run_chunked(*chunked, environment, out),
                    false => http.chunked = Some(chunked),
                }
                Step::Consumed(progress.consumed)
            }
        }
    }

    /// Answers a request with a chunked body, whose head was accepted before. If the worker is
    /// overloaded now, it refuses the request.
    fn run_chunked<S: Service>(
        &mut self,
        chunked: Chunked,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let head = http1::parse_head(&chunked.head, &environment.limits.head);
        let Ok(Some(head)) = head else { return };
        let is_last = self.is_last(self.requests + 1, environment);
        let Ok(reply_headers) = self.check_or_refuse(&head, is_last, environment, out) else {
            return;
        };
        if let Protocol::Http(Http { identity: Some(identity), .. }) = &self.protocol {
            environment.service.set_identity(identity);
        }
        let Chunked { body, outline, .. } = chunked;
        if !head.is_call()
            || body.len() <= environment.limits.long_bytes_min
            || !outline.has_requests()
        {
            return self.run_request(&head, &body, &reply_headers, environment, out);
        }
        let document = Arc::new(body);
        environment.service.share(Some(&document));
        self.run_long_request(&head, &document, &outline, &reply_headers, environment, out);
        environment.service.share(None);
    }

    /// Answers a complete request.
    #[inline(never)]
    fn run_request<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        if self.exchanges.is_empty() && head.is_fast_path() {
            self.run_rpc(head, body, reply_headers, environment, out);
        } else {
            self.run_general(head, body, reply_headers, environment, out);
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
        out: &mut Vec<u8>,
    ) {
        let (mut later, before) = (Vec::new(), self.requests);
        let waits = !self.exchanges.is_empty();
        let output = if waits { &mut later } else { out };
        match head.method() {
            Method::Options => {
                self.next_request();
                let methods = http_route::methods(head, environment.service);
                environment.replies.options(output, methods, reply_headers);
            }
            _ if head.is_call() => self.run_rpc(head, body, reply_headers, environment, output),
            _ => self.run_route(head, body, reply_headers, environment, output),
        }
        self.queue_if_later(later, before);
    }

    /// Queues the reply `later` of a request after `before` others, if it waits for theirs.
    #[inline(always)]
    pub(super) fn queue_if_later(&mut self, later: Vec<u8>, before: u64) {
        if !later.is_empty() {
            // What is refused has no number yet, and that of the last one is taken.
            let is_numbered = self.requests != before;
            let request = if is_numbered { self.requests } else { self.next_request() };
            self.queue_reply(request, later);
        }
    }

    /// Writes the replies that are complete, up to the first that is not. During a drain, and
    /// after the peer has shut down its side, the last one closes the connection.
    pub(super) fn flush_in_order<S>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        while let Some((mut framing, answer)) = self.exchanges.pop_first_whole() {
            let is_framed = matches!(answer, ExchangeReply::Framed(_));
            if (environment.drain != Drain::No || self.reading.is_ended())
                && !is_framed
                && self.exchanges.is_empty()
                && self.input.is_empty()
            {
                framing.connection = http1::ConnectionOption::Close;
                self.discard_input();
            }
            if let Some(response) = framing.response.take() {
                self.end_response(response, &framing, &answer, environment, out);
                continue;
            }
            match framing.items.take() {
                Some(items) => items.write_reply(&framing, &answer, environment.replies, out),
                None => write_deferred_reply(&framing, &answer, environment.replies, out),
            }
        }
    }

    /// Writes what remains of a response. One that ends too early, or by the end of the
    /// connection, is the last reply.
    fn end_response<S>(
        &mut self,
        response: ResponseFraming,
        framing: &HttpFraming,
        answer: &ExchangeReply,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let mut text = Vec::new();
        answer.write(&mut text);
        if !response.end(&text, &framing.reply_headers(), environment.replies, out) {
            self.cancel();
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
        out: &mut Vec<u8>,
    ) {
        let reply = self.begin_rpc(head, reply_headers, environment, out);
        let context = reply.context(self);
        let ran = run_document::<true, S>(body, context, environment, out).map(|(ran, _)| ran);
        self.end_rpc(ran, reply, environment, out);
    }

    #[inline(always)]
    pub(super) fn begin_rpc<'a, S>(
        &mut self,
        head: &'a Head<'a>,
        reply_headers: &'a ReplyHeaders<'a>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> BegunReply<'a> {
        let request = self.next_request();
        let pending = environment.replies.begin(out, reply_headers);
        BegunReply { request, pending, head, reply_headers }
    }

    /// Ends the reply to a document, or keeps its framing for calls that are deferred.
    #[inline(always)]
    pub(super) fn end_rpc<S: Service>(
        &mut self,
        ran: Result<DocumentOutcome, JsonError>,
        reply: BegunReply<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let BegunReply { request, pending, head, reply_headers } = reply;
        let ran = match ran {
            Ok(ran) => ran,
            Err(fault) => {
                if let Some(error) = unsupported_media(head) {
                    environment.replies.abort(out, pending);
                    environment.replies.error(out, &error, reply_headers, false);
                    return;
                }
                write_error_reply(out, None, &RpcError::parse(fault, environment.limits));
                DocumentOutcome::Replied
            }
        };
        match ran {
            DocumentOutcome::Replied => environment.replies.end(out, pending),
            DocumentOutcome::NoReply => {
                environment.replies.abort(out, pending);
                environment.replies.no_content(out, reply_headers);
            }
            DocumentOutcome::Deferred(answer) => {
                environment.replies.abort(out, pending);
                let items = answer.is_stream().then(|| HttpItems::new(head, environment.now));
                let framing = HttpFraming { items, ..HttpFraming::new(head, reply_headers) };
                self.exchanges.push(request, framing, answer);
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
        out: &mut Vec<u8>,
    ) {
        let number = CallNumber { request: self.next_request(), item: 0 };
        let session = self.session.as_ref();
        let mut framing = HttpFraming::new(head, reply_headers);
        let response = ResponseFraming::new(head);
        match http_route::respond(head, body, number, session, environment) {
            (CallOutcome::Deferred | CallOutcome::Stream, _) => {
                framing.response = Some(response);
                let token = Some(ROUTE_ID.to_vec());
                let part = ReplyPart::Waiting { item: 0, id: ROUTE_ID.to_vec(), token };
                self.exchanges.push(number.request, framing, ExchangeReply::Single(part));
            }
            (_, text) => {
                response.end(&text, reply_headers, environment.replies, out);
            }
        }
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
    let allowed_origin = environment.access.check(head.host(), head.origin(), is_tls)?;
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
    Ok(ReplyHeaders { connection, allowed_origin })
}

/// Why a body that is not JSON cannot be read, if the headers say so.
#[cold]
fn unsupported_media(head: &Head<'_>) -> Option<HttpError> {
    let coding = head.header("Content-Encoding").unwrap_or_default();
    if !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity") {
        return Some(HttpError::ContentCodingUnsupported);
    }
    let media_type = head.header("Content-Type").unwrap_or_default();
    let prefix = media_type.get(..b"multipart/".len()).unwrap_or_default();
    prefix.eq_ignore_ascii_case(b"multipart/").then_some(HttpError::MultipartUnsupported)
}
