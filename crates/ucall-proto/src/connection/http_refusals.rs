//! Requests that are refused, in a way that a page of an allowed origin may read why.

use super::{Environment, PlainConnection, Protocol, Step};
use crate::http1::{self, AllowedOrigin, Head, HttpError, Method, ReplyHeaders};
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
        self.refuse_for_origin(origin, error, head.method(), environment)
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
    pub(super) fn refuse_http<S: Service>(
        &mut self,
        error: &HttpError,
        method: Method,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        self.refuse_for_origin(None, error, method, environment)
    }

    /// Refuses a request whose body is incomplete.
    #[cold]
    pub(super) fn refuse_body<S: Service>(
        &mut self,
        error: &HttpError,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let Protocol::Http(http) = &mut self.protocol else { return Step::Incomplete };
        let origin = http.body.discard();
        let origin = origin.as_deref().map(AllowedOrigin::new);
        self.refuse_for_origin(origin, error, Method::Other, environment)
    }

    /// Refuses a request so that a page of an origin may read why.
    pub(super) fn refuse_for_origin<S: Service>(
        &mut self,
        allowed_origin: Option<AllowedOrigin<'_>>,
        error: &HttpError,
        method: Method,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let connection = http1::ConnectionOption::Close;
        let reply_headers = ReplyHeaders { connection, allowed_origin, ..Default::default() };
        let is_head = method == Method::Head;
        if self.exchanges.is_empty() {
            environment.replies.error(environment.out, error, &reply_headers, is_head);
        } else {
            let mut later = Vec::new();
            environment.replies.error(&mut later, error, &reply_headers, is_head);
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
            self.refuse_http(&error, Method::Other, environment);
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
            true => self.refuse_http(&HttpError::HeadTimeout, Method::Other, environment),
            false => self.refuse_body(&HttpError::BodyTimeout, environment),
        };
    }
}
