//! The line of the access log of a request to a mounted application.

use ucall_proto::{Call, CallOutcome, Reply};

use super::interceptor::Interceptor;
use crate::access_log::LoggedCall;
use crate::caller::Caller;
use crate::handler::Handler;

impl Interceptor {
    /// Begins the line of a request, if it is to have one.
    pub(super) fn begin_request(
        &self,
        call: &Call<'_>,
        body_bytes: usize,
        caller: &Caller,
    ) -> Option<LoggedCall> {
        let (log, clock) = self.access_log()?;
        log.begin_request(call.head?, body_bytes, caller, clock)
    }
}

/// Ends the line of a request, or leaves it to the handler if the response is deferred.
pub(super) fn end_request<H: Handler>(
    logged: LoggedCall,
    outcome: CallOutcome,
    reply: &Reply<'_>,
    handler: &mut H,
) {
    if outcome.is_deferred() {
        return handler.set_logged(logged);
    }
    let (status, body_bytes) = reply.response_summary().unwrap_or_default();
    logged.end(Some(i64::from(status)), body_bytes);
}
