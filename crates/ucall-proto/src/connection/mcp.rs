//! Requests of the Model Context Protocol over HTTP: `POST /mcp` with one JSON-RPC document, or in
//! an older era an array of them.
//!
//! [`McpRequest`] says which era a request is of. [`McpService`] stands in for the service, so that
//! documents run as those of other calls do.

use super::calls::{DocumentOutcome, RequestContext, run_document};
use super::http_framing::{HttpFraming, HttpItems};
use super::mcp_response::take_response;
use super::{Environment, PlainConnection};
use crate::http1::{Head, ReplyHeaders, write_json_response};
use crate::json::JsonError;
use crate::rpc::mcp::{McpStatus, status};
use crate::rpc::{Call, CallOutcome, McpRequest, Reply, RpcError, Service};

/// How a reply begins whose request had no valid id. MCP leaves the member out.
const UNKNOWN_ID: &[u8] = br#"{"jsonrpc":"2.0","id":null,"#;
const BEFORE_ID: usize = br#"{"jsonrpc":"2.0""#.len();

/// Runs the calls of a document as requests of MCP.
struct McpService<'a, S> {
    service: &'a mut S,
    /// That of the reply to the last valid request.
    status: McpStatus,
    /// Whether that is of the newest era.
    is_newest: bool,
}

impl<S: Service> Service for McpService<'_, S> {
    const NEEDS_MEMBERS: bool = false;

    fn call(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        let request = match McpRequest::read(call) {
            Ok(request) => request,
            Err(error) => {
                reply.error(&error);
                return CallOutcome::Done;
            }
        };
        let outcome = self.service.call_mcp(call, &request, reply);
        // One error of an array is not that of the others, whose results a client would miss.
        let is_alone = outcome == CallOutcome::Done && call.number.item == 0;
        let error = if is_alone { reply.error_code() } else { None };
        self.is_newest = request.is_newest();
        self.status = status(error, self.is_newest);
        reply.adapt_to_mcp();
        outcome
    }
}

impl PlainConnection {
    /// Answers a request of MCP.
    pub(super) fn run_mcp<S: Service>(
        &mut self,
        head: &Head<'_>,
        body: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        environment: &mut Environment<'_, S>,
    ) {
        let request = self.next_request();
        let pending = environment.replies.begin(environment.out, reply_headers);
        let context = RequestContext { request, head: Some(head), session: self.session.as_ref() };
        let (mut ran, mut status, is_newest) = run(body, context, environment);
        if status == McpStatus::BadRequest
            && ran.is_ok()
            && take_response(body, request, Some(head), environment)
        {
            ran = Ok(DocumentOutcome::NoReply);
        }
        let challenge = self.scope_challenge(head, status, environment);
        let Environment { replies, out, limits, now, .. } = environment;
        match ran {
            Ok(DocumentOutcome::Replied) if status == McpStatus::Ok => replies.end(out, pending),
            Ok(DocumentOutcome::Deferred(reply)) => {
                replies.abort(out, pending);
                let items = HttpItems::of_mcp(head, *now).filter(|_| reply.is_single());
                let is_newest_mcp = reply.is_single().then_some(is_newest);
                let framing =
                    HttpFraming { items, is_newest_mcp, ..HttpFraming::new(head, reply_headers) };
                self.exchanges.push(request, framing, *reply);
            }
            Ok(DocumentOutcome::NoReply) => {
                replies.abort(out, pending);
                let response = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
                replies.response(out, response, reply_headers, false);
            }
            Ok(DocumentOutcome::Replied) | Err(_) => {
                let mut text = out.split_off(pending.body_at());
                replies.abort(out, pending);
                if let Err(fault) = ran {
                    status = McpStatus::BadRequest;
                    text = refusal(fault, limits);
                }
                if text.starts_with(UNKNOWN_ID) {
                    text.drain(BEFORE_ID..UNKNOWN_ID.len() - 1);
                }
                let (line, headers) = status.lines();
                let headers = challenge.as_deref().unwrap_or(headers);
                let mut response = Vec::new();
                write_json_response(&mut response, line, headers, &text);
                replies.response(out, &response, reply_headers, false);
            }
        }
    }

    /// The header by which a client learns that its token lacks scopes of the tool.
    fn scope_challenge<S: Service>(
        &self,
        head: &Head<'_>,
        status: McpStatus,
        environment: &mut Environment<'_, S>,
    ) -> Option<String> {
        if status != McpStatus::Forbidden {
            return None;
        }
        let scopes = environment.service.take_missing_scopes()?;
        let challenge = environment.service.challenge(head, self.is_tls(), Some(&scopes))?;
        Some(format!("WWW-Authenticate: {challenge}\r\n"))
    }
}

/// Runs a document; returns the status of its reply, too, and whether it is of the newest era.
fn run<S: Service>(
    body: &[u8],
    context: RequestContext<'_>,
    environment: &mut Environment<'_, S>,
) -> (Result<DocumentOutcome, JsonError>, McpStatus, bool) {
    // Only a valid request changes it.
    let mut service = McpService {
        service: &mut *environment.service,
        status: McpStatus::BadRequest,
        is_newest: false,
    };
    let mut environment = Environment {
        limits: environment.limits,
        access: environment.access,
        now: environment.now,
        replies: &mut *environment.replies,
        service: &mut service,
        scratch: &mut *environment.scratch,
        out: &mut *environment.out,
        queued_bytes: environment.queued_bytes,
        drain: environment.drain,
        load: environment.load,
    };
    let ran = run_document::<true, _>(body, context, &mut environment).map(|(ran, _)| ran);
    (ran, service.status, service.is_newest)
}

/// The reply to what is no JSON. It has no id: the one of a request is unknown.
fn refusal(fault: JsonError, limits: &crate::Limits) -> Vec<u8> {
    let mut text = br#"{"jsonrpc":"2.0","error":"#.to_vec();
    RpcError::parse(fault, limits).write(&mut text);
    text.push(b'}');
    text
}
