//! Letting requests in, where the service wants to know who they come from.
//!
//! | over | asked | who it is holds for |
//! |---|---|---|
//! | HTTP | once for each request, when its head has come | that request |
//! | raw TCP | once, at the first byte of a document | the connection |
//!
//! Nothing of a body is read, or waited for, before. A preflight is not asked: browsers send it
//! without credentials.

use std::sync::Arc;

use super::http::Http;
use super::{Environment, PlainConnection, Protocol, Step};
use crate::http1::{Head, HttpError, Method, ReplyHeaders};
use crate::rpc::{AuthenticationError, CallerIdentity, RpcError, Service};
use crate::tls::TlsSession;

impl PlainConnection {
    /// Asks who sends this request, unless that is known from when its head came; gives the step
    /// that a refusal is.
    #[cold]
    pub(super) fn authenticate_http<S: Service>(
        &mut self,
        head: &Head<'_>,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) -> Option<Step> {
        if head.method() == Method::Options {
            return None;
        }
        let Protocol::Http(http) = &mut self.protocol else { return None };
        match authenticate_request(http, head, self.session.as_ref(), environment) {
            Ok(identity) => {
                environment.service.set_identity(&identity);
                http.identity = Some(identity);
                None
            }
            Err(refusal) => {
                let error = match refusal {
                    AuthenticationError::Unauthorized => HttpError::Unauthorized,
                    AuthenticationError::Failed => HttpError::AuthenticationFailed,
                };
                Some(self.refuse_for_origin(
                    reply_headers.allowed_origin,
                    &error,
                    head.method(),
                    environment,
                    out,
                ))
            }
        }
    }

    /// Asks who the requests of this connection come from.
    #[cold]
    pub(super) fn authenticate_raw<S: Service>(
        &mut self,
        environment: &mut Environment<'_, S>,
        out: &mut Vec<u8>,
    ) {
        let Protocol::Raw(raw) = &mut self.protocol else { return };
        match environment.service.authenticate(None, self.session.as_ref()) {
            Ok(identity) => raw.identity = Some(identity),
            Err(refusal) => {
                self.refuse_with(&RpcError::unauthenticated(refusal), out);
            }
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
        // This is the second look at a head whose body has come.
        Some(identity) if http.bytes_needed() > 0 => Ok(identity),
        _ => environment.service.authenticate(Some(head), session),
    }
}
