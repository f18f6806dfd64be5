//! Calls by HTTP requests that are no JSON-RPC: [`crate::endpoint`] reads the params and writes the
//! response. In between they run as any other call, so they have the same limits, deadlines and
//! logs, and end when their caller leaves.

use super::calls::{DocumentOutcome, RequestContext, run_params};
use super::exchange::ExchangeReply;
use super::http_framing::HttpFraming;
use super::{Environment, MemoryBudget, PlainConnection};
use crate::Limits;
use crate::endpoint::reply::{EndpointReply, Response};
use crate::endpoint::{CallParams, Endpoint, ParamKind, Refusal, body, inference};
use crate::http1::{Head, ReplyHeaders};
use crate::rpc::frame::{ATTACHED_BYTES_MIN, attach};
use crate::rpc::{Binary, ResultFormat, RpcError, Service, write_error_reply};

/// The id of a call that its caller does not see.
const ID: &[u8] = b"1";

/// A call that a request asks for.
struct EndpointCall {
    method: String,
    params: CallParams,
    reply: EndpointReply,
}

impl PlainConnection {
    /// Answers a request of an endpoint.
    pub(super) fn run_endpoint<S: Service>(
        &mut self,
        endpoint: &Endpoint,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let request = self.next_request();
        let (limits, budget) = (environment.limits, environment.scratch.budget());
        let EndpointCall { method, params, reply } =
            match read(endpoint, head, body, &*environment.service, limits, budget) {
                Ok(call) => call,
                Err(response) => {
                    environment.replies.response(environment.out, &response, reply_headers, false);
                    return;
                }
            };
        let context = RequestContext { request, head: Some(head), session: self.session.as_ref() };
        let (text, parts) = params.finish();
        let binary = Binary { parts, results: ResultFormat::Parts };
        environment.service.set_binary(Some(&binary));
        let start = environment.out.len();
        let ran = run_params(method.as_bytes(), &text, Some(ID), context, environment);
        let mut parts = Vec::new();
        if let Ok(DocumentOutcome::Replied) = ran {
            parts = environment.service.take_result_parts();
        }
        environment.service.set_binary(None);
        let Environment { limits, out, .. } = environment;
        match ran {
            Ok(DocumentOutcome::Deferred(exchange)) => {
                let endpoint = Some(Box::new(reply));
                let framing = HttpFraming { endpoint, ..HttpFraming::new(head, reply_headers) };
                return self.exchanges.push(request, framing, *exchange);
            }
            Ok(DocumentOutcome::Replied | DocumentOutcome::NoReply) => {}
            Err(fault) => write_error_reply(out, Some(ID), &RpcError::parse(fault, limits)),
        }
        let text = out.split_off(start);
        let response = reply.response(&text, &parts, limits.reply_bytes_max);
        drop(parts);
        self.write_endpoint_response(response, reply_headers, environment);
    }

    /// Writes a response. Large parts of its tail are attached to the output: a request of an
    /// endpoint waits for the replies before it, so this is the output of the connection.
    fn write_endpoint_response<S>(
        &self,
        response: Response,
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let Environment { replies, out, scratch, queued_bytes, .. } = environment;
        replies.response(out, &response.text, reply_headers, false);
        for piece in response.tail {
            // TLS encrypts a copy.
            if self.session.is_none() && piece.len() >= ATTACHED_BYTES_MIN {
                *queued_bytes += attach(piece, out, &mut scratch.attachments);
            } else {
                out.extend_from_slice(&piece);
            }
        }
    }

    /// Writes the response to a call that was deferred.
    pub(super) fn end_endpoint<S>(
        &self,
        endpoint: &EndpointReply,
        framing: &HttpFraming,
        reply: ExchangeReply,
        environment: &mut Environment<'_, S>,
    ) {
        let (text, parts) = match reply {
            ExchangeReply::WithParts(frame) => frame.into_parts(),
            reply => {
                let mut text = Vec::new();
                reply.write(&mut text);
                (text, Vec::new())
            }
        };
        let response = endpoint.response(&text, &parts, environment.limits.reply_bytes_max);
        drop(parts);
        self.write_endpoint_response(response, &framing.reply_headers(), environment);
    }
}

/// Reads the request of an endpoint.
///
/// # Errors
/// The response to one that is wrong.
fn read<S: Service>(
    endpoint: &Endpoint,
    head: &Head<'_>,
    body: &[u8],
    service: &S,
    limits: &Limits,
    budget: &MemoryBudget,
) -> Result<EndpointCall, Vec<u8>> {
    match endpoint {
        Endpoint::Inference(model) => {
            let read = inference::read(model, head, body, limits, budget);
            let (params, reply) = read.map_err(|refusal| inference::refused(&refusal))?;
            let reply = EndpointReply::Inference(reply);
            Ok(EndpointCall { method: model.method.clone(), params, reply })
        }
        Endpoint::UnknownModel(name) => {
            let problem = format!("there is no model {name:?}");
            let refusal = Refusal::new(404, RpcError::METHOD_NOT_FOUND, problem);
            Err(inference::refused(&refusal))
        }
        Endpoint::Body(method) => {
            let read = body::read(head, body, &Params { service, method }, limits, budget);
            let body::BodyRequest { params, reply } =
                read.map_err(|refusal| body::refused(&refusal))?;
            Ok(EndpointCall { method: method.clone(), params, reply: EndpointReply::Body(reply) })
        }
    }
}

/// The params of a method.
struct Params<'a, S> {
    service: &'a S,
    method: &'a str,
}

impl<S: Service> body::ParamKinds for Params<'_, S> {
    fn kind(&self, name: &str) -> ParamKind {
        self.service.param_kind(self.method, name)
    }

    fn first(&self) -> Option<String> {
        self.service.first_param(self.method)
    }
}
