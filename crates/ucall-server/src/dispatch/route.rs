//! Finds and runs what answers HTTP requests other than calls.

use ucall_engine::Peer;
use ucall_proto::http1::{Head, Method, request_origin};
use ucall_proto::{Call, CallOutcome, Reply};

use super::interceptor::rejection_error;
use super::mounted::end_request;
use super::{Dispatch, Dispatcher, method_not_found};
use crate::handler::Handler;
use crate::routes::{Route, RouteTarget};
use crate::{health, inference};

impl<H: Handler> Dispatch<'_, H> {
    /// The route of a request, unless a function answers it.
    pub(super) fn route(&self, head: &Head<'_>) -> Option<&Route<H::Procedure>> {
        let (path, _) = head.path_and_query();
        let route = self.dispatcher.procedures.routes().find(path, head.method())?;
        // A function comes before an application.
        let is_passed = matches!(*route.target, RouteTarget::Mount(_))
            && head.method() == Method::Post
            && self.dispatcher.has_body_method(path);
        (!is_passed).then_some(route)
    }

    /// Answers the request of a route, which has come from `peer`. Its body follows in parts if
    /// there is none.
    pub(super) fn run_route(
        &mut self,
        call: &Call<'_>,
        body: Option<&[u8]>,
        peer: Option<Peer>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let (rejection, problem) = (self.rejection(), self.problem());
        let Dispatcher { handler, procedures, calls, interceptor, .. } = &mut *self.dispatcher;
        let find = |head: &Head<'_>| procedures.routes().find(call.method.raw(), head.method());
        let Some(route) = call.head.and_then(find) else {
            reply.error(&method_not_found(call.method));
            return CallOutcome::Done;
        };
        let caller = &*self.caller;
        let outcome = match (&*route.target, rejection) {
            (RouteTarget::Live, _) => answer(reply, &health::liveness()),
            (RouteTarget::Ready(checks), _) => match (problem, checks) {
                (None, Some(checks)) => handler.check_ready(checks, call, caller, reply),
                (problem, _) => answer(reply, &health::readiness(problem)),
            },
            (RouteTarget::InferenceLive, _) => answer(reply, &inference::liveness()),
            (RouteTarget::InferenceReady(checks), _) => match (problem, checks) {
                (None, Some(checks)) => handler.check_ready(checks, call, caller, reply),
                (problem, _) => answer(reply, &inference::inference_readiness(problem)),
            },
            (RouteTarget::Inference, _) => match call.head.zip(procedures.inference()) {
                Some((head, table)) => answer(reply, &table.response(head, problem)),
                None => {
                    reply.error(&method_not_found(call.method));
                    CallOutcome::Done
                }
            },
            (_, Some(cause)) => {
                *calls += 1;
                reply.error(&rejection_error(cause));
                CallOutcome::Done
            }
            (RouteTarget::Procedure(procedure), None) => {
                *calls += 1;
                handler.respond(procedure, call, body, caller, reply)
            }
            (RouteTarget::Mount(procedure), None) => {
                *calls += 1;
                let body_bytes = body.map_or(0, <[u8]>::len);
                let interceptor = interceptor.as_deref();
                let logged = interceptor.and_then(|it| it.begin_request(call, body_bytes, caller));
                let outcome = handler.respond(procedure, call, body, caller, reply);
                if let Some(logged) = logged {
                    end_request(logged, outcome, reply, handler);
                }
                outcome
            }
            (RouteTarget::Metrics(reader), None) => {
                *calls += 1;
                answer(reply, &reader.response(call.head))
            }
            // Its requests are documents, which do not come here.
            (RouteTarget::Mcp, None) => CallOutcome::Done,
            (RouteTarget::Resource(resource), None) => {
                let resource = resource.clone();
                let (proxies, is_tls) = (self.trusted_proxies(peer), call.session.is_some());
                let origin = call.head.and_then(|head| request_origin(head, proxies, is_tls));
                answer(reply, &resource.response(call.head, origin.as_deref()))
            }
        };
        self.dispatcher.end_child();
        outcome
    }
}

/// Replies with a whole response.
fn answer(reply: &mut Reply<'_>, response: &[u8]) -> CallOutcome {
    reply.response().extend_from_slice(response);
    CallOutcome::Done
}
