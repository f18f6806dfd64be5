//! Calls that come through a message broker, whose protocol another program speaks.
//!
//! There is no document and no connection: each message has the params of one call.

use super::Environment;
use super::calls::{DocumentOutcome, RequestContext, run_params};
use super::exchange::Exchanges;
use crate::Limits;
use crate::http1::parse_head;
use crate::rpc::{CallNumber, RpcError, Service, write_error_reply};

/// The id of each call, whose replies are found by their numbers.
const ID: &[u8] = b"1";

/// A call in a message.
#[derive(Clone, Copy, Debug)]
pub struct BrokeredCall<'a> {
    /// Larger than that of any earlier call of the worker.
    pub number: u64,
    /// The name of the method.
    pub method: &'a str,
    /// A list or an object, or nothing.
    pub params: &'a [u8],
    /// The head of the HTTP request that the message's headers stand for. It has to be that of a
    /// request without a body.
    pub head: &'a [u8],
    /// Whether it gets a reply.
    pub has_reply: bool,
}

/// The deferred calls of all brokers of one worker.
#[derive(Debug)]
pub struct BrokeredCalls {
    exchanges: Exchanges<()>,
}

impl Default for BrokeredCalls {
    fn default() -> Self {
        Self { exchanges: Exchanges::new() }
    }
}

impl BrokeredCalls {
    /// Runs a call, and appends the reply to the output: an error also of a notification, if that
    /// is refused. Returns whether the call is deferred: then [`BrokeredCalls::complete`] writes
    /// the reply.
    pub fn run<S: Service>(
        &mut self,
        call: &BrokeredCall<'_>,
        environment: &mut Environment<'_, S>,
    ) -> bool {
        match begin(call, environment) {
            Ok(DocumentOutcome::Deferred(reply)) => {
                self.exchanges.push(call.number, (), *reply);
                return true;
            }
            Ok(DocumentOutcome::Replied | DocumentOutcome::NoReply) => {}
            Err(error) => write_error_reply(environment.out, Some(ID), &error),
        }
        false
    }

    /// Takes the outcome of a deferred call: the JSON text of its result, or an error. Appends the
    /// reply; returns `false` if nothing waits for it any more.
    pub fn complete(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> bool {
        self.exchanges.complete_unframed(number, outcome, limits.reply_bytes_max, out)
    }

    /// Cancels a deferred call, which gets no reply.
    pub fn cancel<S: Service>(&mut self, number: u64, environment: &mut Environment<'_, S>) {
        let call = CallNumber { request: number, item: 0 };
        environment.service.cancel(call);
        let error = RpcError::new(RpcError::REQUEST_CANCELLED, "Request cancelled");
        self.exchanges.complete(call, Err(&error), environment.limits.reply_bytes_max);
        drop(self.exchanges.pop_whole(number));
    }
}

/// # Errors
/// The call is refused.
fn begin<S: Service>(
    call: &BrokeredCall<'_>,
    environment: &mut Environment<'_, S>,
) -> Result<DocumentOutcome, RpcError> {
    let bytes_max = environment.limits.body_bytes_max;
    if call.params.len() > bytes_max {
        let expected = format!("expected a payload of at most {bytes_max} bytes (max_body_bytes)");
        return Err(RpcError::invalid_request(&expected));
    }
    let Ok(Some(head)) = parse_head(call.head, &environment.limits.head) else {
        return Err(RpcError::invalid_request("expected headers that HTTP allows"));
    };
    if environment.service.requires_authentication() {
        let identity = environment.service.authenticate(Some(&head), None);
        environment.service.set_identity(&identity.map_err(RpcError::unauthenticated)?);
    }
    let context = RequestContext { request: call.number, head: Some(&head), session: None };
    let (name, params) = (call.method.as_bytes(), call.params.trim_ascii());
    let id = call.has_reply.then_some(ID);
    run_params(name, params, id, context, environment)
        .map_err(|_| RpcError::invalid_request("expected a list or an object as params"))
}
