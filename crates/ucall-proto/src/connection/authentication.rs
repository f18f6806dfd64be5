//! Authenticates requests, if the service requires it.
//!
//! | over | authenticated | the identity holds for |
//! |---|---|---|
//! | HTTP | each request, when its head is complete | that request |
//! | raw TCP | once, at the first byte of a document | the connection |
//! | WebSocket | once, at the upgrade | the connection |
//!
//! No body is read before that. A preflight is not authenticated, because browsers send it without
//! credentials, nor is a route that the service has made public.

use std::sync::Arc;

use super::http::Http;
use super::{Environment, PlainConnection, Protocol, Step, http_route};
use crate::http1::{Head, HttpError, Method, ReplyHeaders};
use crate::rpc::{AuthenticationError, CallerIdentity, RpcError, Service};
use crate::tls::TlsSession;

impl PlainConnection {
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
        let scopes = (refusal == AuthenticationError::InsufficientScope).then_some(&[][..]);
        let challenge = environment.service.challenge(head, self.is_tls(), scopes);
        let before = challenge.map(|challenge| environment.replies.set_challenge(challenge));
        let error = HttpError::from(refusal);
        let origin = reply_headers.allowed_origin;
        let step = self.refuse_for_origin(origin, &error, head.method(), environment);
        if let Some(before) = before {
            environment.replies.set_challenge(before);
        }
        step
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
