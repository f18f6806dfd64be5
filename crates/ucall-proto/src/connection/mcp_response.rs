//! The replies of clients to requests of the server, which the Model Context Protocol has in its
//! older eras.

use super::Environment;
use crate::http1::Head;
use crate::json::{Reader, Text};
use crate::rpc::mcp::RESPONSE;
use crate::rpc::{Call, CallNumber, CallOutcome, McpRequest, Reply, ReplyLimit, Service};

/// Has the service take a client's reply to a request of the server, as a notification whose params
/// are the document, valid JSON; `false` if it is none.
#[cold]
pub(super) fn take_response<S: Service>(
    document: &[u8],
    request: u64,
    head: Option<&Head<'_>>,
    environment: &mut Environment<'_, S>,
) -> bool {
    let members = Reader::new(document).members([&b"method"[..], b"id", b"result", b"error"]);
    let Some([None, Some(_), result, error]) = members else { return false };
    if result.is_some() == error.is_some() {
        return false;
    }
    let call = Call {
        method: Text::plain(RESPONSE),
        params: Some(document),
        members: None,
        id: None,
        meta: None,
        number: CallNumber { request, item: 0 },
        head,
        session: None,
        mcp: None,
    };
    let Ok(request) = McpRequest::read(&call) else { return false };
    let mut unused = Vec::new();
    let limit = ReplyLimit::after(&unused, environment.limits.reply_bytes_max);
    let mut reply = Reply::new(&mut unused, None, &limit);
    environment.service.call_mcp(&call, &request, &mut reply) != CallOutcome::Stream
}
