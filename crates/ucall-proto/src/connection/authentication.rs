//! Authenticates requests, if the service requires it.
//!
//! | over | authenticated | the identity holds for |
//! |---|---|---|
//! | HTTP | each request, when its head is complete | that request |
//! | raw TCP | once, at the first byte of a document | the connection |
//! | WebSocket | once, at the upgrade | the connection |
//!
//! No body is read before that, unless the service keeps the credentials of a request and
//! authenticates its calls one by one. A request of a single call that it refuses then
//! ([`Service::take_refusal`]) gets the response of one that is refused by its head, and the
//! connection goes on. A preflight is not authenticated, because browsers send it without
//! credentials, nor is a route that the service has made public.

use std::sync::Arc;

use super::http::{BodyForm, Http};
use super::{Environment, PlainConnection, Protocol, Step, http_route};
use crate::http1::{Head, HttpError, Method, ReplyHeaders, parse_head};
use crate::rpc::{AuthenticationError, CallRefusal, CallerIdentity, RpcError, Service};
use crate::tls::TlsSession;
use crate::websocket::Upgrade;

/// Where the reply to a request begins.
pub(super) enum ReplyStart {
    /// At this byte of the output.
    Output(usize),
    /// It is queued behind the replies to earlier requests.
    Queue,
}

impl PlainConnection {
    /// Authenticates a WebSocket for all of its messages, if the service requires that.
    pub(super) fn authenticate_upgrade<S: Service>(
        &self,
        upgrade: &Upgrade<'_>,
        head: &Head<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Result<Option<CallerIdentity>, HttpError> {
        if !environment.service.requires_authentication() {
            return Ok(None);
        }
        let text = upgrade.authorized_head(head);
        let authorized = match &text {
            Some(text) => parse_head(text, &environment.limits.head)?,
            None => Some(*head),
        };
        let identity = environment.service.authenticate(authorized.as_ref(), self.session.as_ref());
        Ok(Some(identity.map_err(HttpError::from)?))
    }

    /// Handles a request of a service that requires authentication.
    #[inline(never)]
    pub(super) fn handle_authenticated<S: Service>(
        &mut self,
        head: &Head<'_>,
        rest: &[u8],
        form: BodyForm<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        if let Some(refused) = self.authenticate_http(head, reply_headers, environment) {
            return refused;
        }
        let start = self.begin_authenticated(environment);
        let step = self.handle_admitted(head, rest, form, reply_headers, environment);
        self.end_authenticated(start, head, reply_headers, environment);
        step
    }

    /// Marks where the reply to a request will be.
    pub(super) fn begin_authenticated<S: Service>(
        &self,
        environment: &mut Environment<'_, S>,
    ) -> ReplyStart {
        drop(environment.service.take_refusal());
        match self.exchanges.is_empty() {
            true => ReplyStart::Output(environment.out.len()),
            false => ReplyStart::Queue,
        }
    }

    /// Replaces the reply to a request whose only call was refused for its caller.
    pub(super) fn end_authenticated<S: Service>(
        &mut self,
        start: ReplyStart,
        head: &Head<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let Some(CallRefusal { error, challenge }) = environment.service.take_refusal() else {
            return;
        };
        let challenge = challenge.or_else(|| self.challenge_of(error, head, environment));
        let mut response = Vec::new();
        let body = environment.service.error_body(head.path_and_query().0);
        let error = HttpError::from(error);
        with_challenge(challenge, environment, |environment| {
            environment.replies.error(&mut response, &error, reply_headers, body, false);
        });
        match start {
            ReplyStart::Output(at) => {
                environment.out.truncate(at);
                environment.out.append(&mut response);
            }
            ReplyStart::Queue => {
                drop(self.exchanges.pop_whole(self.requests));
                self.queue_reply(self.requests, response);
            }
        }
    }

    /// Authenticates a request, unless that was done when its head arrived. Returns the rejection,
    /// if any.
    #[cold]
    pub(super) fn authenticate_http<S: Service>(
        &mut self,
        head: &Head<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Option<Step> {
        if head.method() == Method::Options || http_route::is_public(head, environment.service) {
            return None;
        }
        let Protocol::Http(http) = &mut self.protocol else { return None };
        match authenticate_request(http, head, self.session.as_ref(), environment) {
            Ok(identity) => {
                environment.service.set_identity(&identity);
                http.identity = Some(identity);
                None
            }
            Err(refusal) => Some(self.refuse_caller(refusal, head, reply_headers, environment)),
        }
    }

    /// Refuses a request whose caller is not authenticated.
    fn refuse_caller<S: Service>(
        &mut self,
        refusal: AuthenticationError,
        head: &Head<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) -> Step {
        let challenge = self.challenge_of(refusal, head, environment);
        let (error, origin) = (HttpError::from(refusal), reply_headers.allowed_origin);
        with_challenge(challenge, environment, |environment| {
            self.refuse_for_origin(origin, &error, head, environment)
        })
    }

    /// The challenge of a refused request, if it depends on the request.
    fn challenge_of<S: Service>(
        &self,
        refusal: AuthenticationError,
        head: &Head<'_>,
        environment: &Environment<'_, S>,
    ) -> Option<String> {
        let scopes = (refusal == AuthenticationError::InsufficientScope).then_some(&[][..]);
        environment.service.challenge(head, self.is_tls(), scopes)
    }

    /// Authenticates the connection for all of its requests.
    #[cold]
    pub(super) fn authenticate_raw<S: Service>(&mut self, environment: &mut Environment<'_, S>) {
        let Protocol::Raw(raw) = &mut self.protocol else { return };
        match environment.service.authenticate(None, self.session.as_ref()) {
            Ok(identity) => raw.identity = Some(identity),
            Err(refusal) => {
                self.refuse_with(&RpcError::unauthenticated(refusal), environment.out);
            }
        }
    }
}

impl From<AuthenticationError> for HttpError {
    fn from(error: AuthenticationError) -> Self {
        match error {
            AuthenticationError::Unauthorized => Self::Unauthorized,
            AuthenticationError::InsufficientScope => Self::InsufficientScope,
            AuthenticationError::Unavailable => Self::AuthenticationUnavailable,
            AuthenticationError::Failed => Self::AuthenticationFailed,
        }
    }
}

/// Writes a refusal with the challenge of its request, if that has one of its own.
fn with_challenge<S, T>(
    challenge: Option<String>,
    environment: &mut Environment<'_, S>,
    write: impl FnOnce(&mut Environment<'_, S>) -> T,
) -> T {
    let before = challenge.map(|challenge| environment.replies.set_challenge(challenge));
    let written = write(environment);
    if let Some(before) = before {
        environment.replies.set_challenge(before);
    }
    written
}

fn authenticate_request<S: Service>(
    http: &mut Http,
    head: &Head<'_>,
    session: Option<&Arc<TlsSession>>,
    environment: &mut Environment<'_, S>,
) -> Result<CallerIdentity, AuthenticationError> {
    match http.identity.take() {
        // The head is parsed a second time when its body has arrived.
        Some(identity) if http.body.bytes_needed() > 0 => Ok(identity),
        _ => environment.service.authenticate(Some(head), session),
    }
}
