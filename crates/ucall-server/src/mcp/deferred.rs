//! The requests that are deferred: the results of tools are wrapped when they end, and errors get
//! codes that MCP allows.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use ucall_engine::Id;
use ucall_proto::{Call, CallNumber, McpRequest, inline_results};

use super::Tool;
use super::result::{ToolOutcome, write_outcome};
use crate::caller::CallId;
use crate::handler::Polled;

#[derive(Debug)]
struct McpCall {
    /// `None` for a method, whose result stays as it is.
    tool: Option<Arc<Tool>>,
    is_newest: bool,
    /// Whether it came over HTTP.
    is_http: bool,
}

/// The deferred calls of tools of one worker.
#[derive(Debug, Default)]
pub(crate) struct McpCalls {
    /// In the order of their connections.
    calls: BTreeMap<CallId, McpCall>,
    /// Memory for results, used again and again.
    scratch: Vec<u8>,
}

/// More memory than that is not kept between requests.
const SCRATCH_BYTES_MAX: usize = 64 << 10;

impl McpCalls {
    pub(crate) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(crate) fn contains(&self, call: CallId) -> bool {
        self.calls.contains_key(&call)
    }

    pub(super) fn insert(
        &mut self,
        id: CallId,
        call: &Call<'_>,
        request: &McpRequest<'_>,
        tool: Option<Arc<Tool>>,
    ) {
        let (is_newest, is_http) = (request.is_newest(), call.head.is_some());
        self.calls.insert(id, McpCall { tool, is_newest, is_http });
    }

    /// Empty memory for the params or the result of a request, until [`McpCalls::give_back`].
    pub(super) fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = mem::take(&mut self.scratch);
        scratch.clear();
        scratch
    }

    pub(super) fn give_back(&mut self, scratch: Vec<u8>) {
        if scratch.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch = scratch;
        }
    }

    /// Forgets a call that gets its reply otherwise.
    pub(crate) fn remove(&mut self, call: CallId) {
        self.calls.remove(&call);
    }

    /// Forgets the calls of a connection that has closed. Returns whether they go on: in the older
    /// eras the end of an HTTP request does not cancel it.
    pub(crate) fn remove_connection(&mut self, connection: Id) -> bool {
        let mut goes_on = false;
        let first = CallNumber { request: 0, item: 0 };
        let mut next = CallId { connection, number: first };
        while let Some((&id, call)) = self.calls.range(next..).next()
            && id.connection == connection
        {
            goes_on |= call.is_http && !call.is_newest;
            self.calls.remove(&id);
            next = id;
        }
        goes_on
    }

    /// Wraps what has come of a call, if it is of a tool and has ended. `text` has its result.
    pub(crate) fn wrap(&mut self, call: CallId, polled: Polled, text: &mut Vec<u8>) -> Polled {
        let polled = match polled {
            Polled::Parts(parts) if self.contains(call) => {
                *text = inline_results(text, &parts);
                Polled::Result
            }
            polled => polled,
        };
        let outcome = match polled {
            Polled::Item(_) | Polled::Parts(_) | Polled::TakesBody | Polled::BeginsNative => {
                return polled;
            }
            Polled::Result => Ok(&text[..]),
            Polled::Error(ref error) => Err(error.clone()),
        };
        let Some(McpCall { tool, is_newest, .. }) = self.calls.remove(&call) else { return polled };
        let Some(tool) = tool else {
            return match polled {
                Polled::Error(error) => Polled::Error(error.for_mcp()),
                polled => polled,
            };
        };
        let mut wrapped = self.take_scratch();
        let outcome = write_outcome(&mut wrapped, outcome, &tool, is_newest);
        self.give_back(mem::replace(text, wrapped));
        match outcome {
            ToolOutcome::Result => Polled::Result,
            ToolOutcome::Error(error) => Polled::Error(error.for_mcp()),
        }
    }
}
