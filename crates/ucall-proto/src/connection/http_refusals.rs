//! Requests that are refused, in a way that a page of an allowed origin may read why.

use super::{Environment, PlainConnection, Protocol, Step};
use crate::http1::{self, AllowedOrigin, ErrorBody, Head, HttpError, Method, ReplyHeaders};
use crate::rpc::Service;

impl PlainConnection {
    /// Refuses a request whose head has been read.
    #[cold]
    pub(super) fn refuse_request<S: Service>(
        &mut self,
        head: &Head<'_>,
        error: &HttpError,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let origin = self.allowed_origin(head, environment);
        self.refuse_for_origin(origin, error, head, environment)
    }

    pub(super) fn allowed_origin<'a, S>(
        &self,
        head: &Head<'a>,
        environment: &Environment<'_, S>,
    ) -> Option<AllowedOrigin<'a>> {
        let origin = environment.access.check(head.host(), head.origin(), self.is_tls());
        origin.unwrap_or_default()
    }

    /// The foreign origin that may read the reply to a request, for as long as its body arrives.
    pub(super) fn origin_of<S>(
        &self,
        head: &Head<'_>,
        environment: &Environment<'_, S>,
    ) -> Option<Box<[u8]>> {
        self.allowed_origin(head, environment).map(|it| it.as_bytes().into())
    }

    /// Refuses a request whose end is unknown, so nothing after it can be parsed safely.
    #[cold]
    pub(super) fn refuse_http<S>(
        &mut self,
        error: &HttpError,
        body: ErrorBody,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        self.write_http_error(error, &ReplyHeaders::default(), body, false, environment)
    }

    /// Refuses the request that the input begins with, whose head is incomplete.
    #[cold]
    pub(super) fn refuse_head<S: Service>(
        &mut self,
        error: &HttpError,
        environment: &mut Environment<'_, S>,
    ) {
        let body = environment.service.error_body(http1::begun_path(&self.input));
        self.refuse_http(error, body, environment);
    }

    /// Refuses a request whose body is incomplete.
    #[cold]
    pub(super) fn refuse_body<S: Service>(
        &mut self,
        error: &HttpError,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        let path = http1::begun_path(http.body.head().unwrap_or(&self.input));
        let body = environment.service.error_body(path);
        let origin = http.body.discard();
        let allowed_origin = origin.as_deref().map(AllowedOrigin::new);
        let reply_headers = ReplyHeaders { allowed_origin, ..Default::default() };
        self.write_http_error(error, &reply_headers, body, false, environment)
    }

    /// Refuses a request so that a page of an origin may read why.
    pub(super) fn refuse_for_origin<S: Service>(
        &mut self,
        allowed_origin: Option<AllowedOrigin<'_>>,
        error: &HttpError,
        head: &Head<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let reply_headers = ReplyHeaders { allowed_origin, ..Default::default() };
        let body = environment.service.error_body(head.path_and_query().0);
        let is_head = head.method() == Method::Head;
        self.write_http_error(error, &reply_headers, body, is_head, environment)
    }

    /// Writes an error after the replies to earlier requests, and discards all further input.
    fn write_http_error<S>(
        &mut self,
        error: &HttpError,
        reply_headers: &ReplyHeaders<'_>,
        body: ErrorBody,
        is_head: bool,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let connection = http1::ConnectionOption::Close;
        let reply_headers = ReplyHeaders { connection, ..*reply_headers };
        if self.exchanges.is_empty() {
            environment.replies.error(environment.out, error, &reply_headers, body, is_head);
        } else {
            let mut later = Vec::new();
            environment.replies.error(&mut later, error, &reply_headers, body, is_head);
            let request = self.next_request();
            self.queue_reply(request, later);
        }
        self.discard_input();
        Step::Incomplete
    }

    /// The peer has shut down its side within a head: refuses an invalid head. The parser has not
    /// checked the last line of an incomplete head yet.
    #[cold]
    pub(super) fn refuse_partial_head<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let head = http1::parse_head(&self.input, &environment.limits.head);
        if let Err(error) = head {
            self.refuse_head(&error, environment);
        }
    }

    /// Replies that a head or a body was not complete in time.
    pub(super) fn refuse_timeout<S: Service>(
        &mut self,
        in_head: bool,
        environment: &mut Environment<'_, S>,
    ) {
        if self.streams_body() {
            self.refuse_streamed(&HttpError::BodyTimeout, environment);
            return;
        }
        match in_head {
            true => self.refuse_head(&HttpError::HeadTimeout, environment),
            false => _ = self.refuse_body(&HttpError::BodyTimeout, environment),
        }
    }
}
