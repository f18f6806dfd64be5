//! Finds and runs what a request of MCP asks for.

use ucall_proto::json::{Reader, Text};
use ucall_proto::{CANCELLED, Call, CallOutcome, McpRequest, Reply, RpcError, Service};

use super::Tool;
use super::result::{ToolOutcome, write_outcome};
use crate::caller::CallId;
use crate::dispatch::{Dispatch, method_not_found};
use crate::handler::Handler;

impl<H: Handler> Dispatch<'_, H> {
    /// Runs a call that has come otherwise than by HTTP as a request of MCP, if this server has
    /// MCP.
    #[cold]
    pub(crate) fn call_as_mcp(
        &mut self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        if call.head.is_some() || !self.dispatcher.has_mcp_method(&call.method.unescaped()) {
            return None;
        }
        self.leave_to_inner_call();
        let outcome = match McpRequest::read(call) {
            Ok(request) => self.run_mcp(call, &request, reply),
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        };
        reply.adapt_to_mcp();
        Some(outcome)
    }

    /// Runs a request of MCP.
    pub(crate) fn run_mcp(
        &mut self,
        call: &Call<'_>,
        request: &McpRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let method = call.method.unescaped();
        match &*method {
            b"tools/call" if call.id.is_some() => self.call_tool(call, request, reply),
            // Over HTTP a caller cancels by closing its stream.
            CANCELLED if call.head.is_none() && call.id.is_none() => CallOutcome::CancelRequest,
            _ => self.call_method(&method, call, request, reply),
        }
    }

    fn call_method(
        &mut self,
        method: &[u8],
        call: &Call<'_>,
        request: &McpRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let Some(procedure) = self.dispatcher.mcp_method(method) else {
            // Notifications that nobody waits for are fine.
            if call.id.is_some() {
                reply.error(&method_not_found(call.method));
            }
            return CallOutcome::Done;
        };
        let mut params = self.dispatcher.mcp_calls.take_scratch();
        params.push(b'[');
        params.extend_from_slice(request.params.unwrap_or(b"{}"));
        params.extend_from_slice(b",\"");
        params.extend_from_slice(request.version.as_bytes());
        params.extend_from_slice(b"\"]");
        let inner = Call {
            params: Some(&params),
            members: None,
            meta: request.meta,
            mcp: Some(request),
            ..*call
        };
        let outcome = self.run(&procedure, &inner, reply);
        // Nobody waits for the outcome of a notification.
        if outcome.is_deferred() && call.id.is_some() {
            let id = CallId { connection: self.caller.connection, number: call.number };
            self.dispatcher.mcp_calls.insert(id, call, request, None);
        }
        self.dispatcher.mcp_calls.give_back(params);
        outcome
    }

    fn call_tool(
        &mut self,
        call: &Call<'_>,
        request: &McpRequest<'_>,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let McpRequest { name, arguments, .. } = *request;
        let tool = name.filter(|name| name.starts_with(b"\"")).and_then(|name| {
            let name = Reader::new(name).string();
            self.dispatcher.tool(&name.unescaped())
        });
        let Some(tool) = tool else {
            reply.error(&unknown_tool(name));
            return CallOutcome::Done;
        };
        if arguments.is_some_and(|arguments| !arguments.starts_with(b"{")) {
            let error = RpcError::new(RpcError::INVALID_PARAMS, "Invalid params");
            reply.error(&error.expected("expected arguments that are an object"));
            return CallOutcome::Done;
        }
        if let Err(error) = check_headers(&tool, call, request, arguments) {
            reply.error(&error);
            return CallOutcome::Done;
        }
        let inner = Call {
            method: Text::plain(tool.method.as_bytes()),
            params: arguments,
            members: None,
            meta: request.meta,
            mcp: Some(request),
            ..*call
        };
        let mut text = self.dispatcher.mcp_calls.take_scratch();
        let mut inner_reply = reply.apart(&mut text);
        let outcome = self.call_function(&inner, &mut inner_reply);
        match outcome {
            CallOutcome::Done => {
                let result = inner_reply.outcome();
                let is_refused = |error: &RpcError| error.code == RpcError::UNAUTHORIZED;
                if result.as_ref().is_err_and(is_refused) {
                    self.dispatcher.note_missing_scopes(&tool);
                }
                let is_newest = request.is_newest();
                if let ToolOutcome::Error(error) =
                    write_outcome(reply.result(), result, &tool, is_newest)
                {
                    reply.error(&error);
                }
            }
            CallOutcome::Deferred | CallOutcome::Stream | CallOutcome::Reporting => {
                let id = CallId { connection: self.caller.connection, number: call.number };
                self.dispatcher.mcp_calls.insert(id, call, request, Some(tool));
            }
            CallOutcome::CancelRequest => {}
        }
        self.dispatcher.mcp_calls.give_back(text);
        outcome
    }

    /// [`Service::call`], compiled once for all tools.
    #[inline(never)]
    fn call_function(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        self.call(call, reply)
    }
}

/// Compares the headers of a tool's params with its arguments.
fn check_headers(
    tool: &Tool,
    call: &Call<'_>,
    request: &McpRequest<'_>,
    arguments: Option<&[u8]>,
) -> Result<(), RpcError> {
    let Some(head) = call.head.filter(|_| request.is_newest()) else { return Ok(()) };
    for (param, header) in &tool.headers {
        let value = arguments.and_then(|it| Reader::new(it).members([param.as_bytes()]));
        match value {
            Some([Some(value)]) => request.check_header(head, header, value)?,
            _ => request.check_absent(head, header)?,
        }
    }
    Ok(())
}

#[cold]
fn unknown_tool(name: Option<&[u8]>) -> RpcError {
    const SHOWN_MAX: usize = 64;
    let text = match name {
        Some(name) if name.starts_with(b"\"") => {
            let name = Reader::new(name).string().unescaped();
            let name: String = String::from_utf8_lossy(&name).chars().take(SHOWN_MAX).collect();
            format!("Unknown tool: {name}")
        }
        _ => "Invalid params: expected the name of a tool".to_owned(),
    };
    RpcError::new(RpcError::INVALID_PARAMS, text)
}
