//! Calls of native procedures that hooks of the handler make.
//!
//! Only the worker has the native procedures. So the handler has it run such a call within the call
//! that the hook is around ([`Handler::next_native`](crate::Handler::next_native)), and gets the
//! outcome. The call has the connection of its caller, whose end cancels it, and a number that no
//! request has.

use ucall_proto::CallNumber;

use crate::caller::{CallId, Caller};

/// Set in the numbers of these calls: no connection has so many requests.
const INNER: u64 = 1 << 63;

/// What a hook has the worker do.
#[derive(Debug)]
pub enum NativeRequest {
    /// Call a native procedure.
    Call(Box<InnerCall>),
    /// Cancel such a call.
    Cancel(CallId),
}

impl NativeRequest {
    /// The call that it is about.
    pub fn id(&self) -> CallId {
        match self {
            Self::Call(inner) => inner.id,
            Self::Cancel(call) => *call,
        }
    }
}

/// A call of a native procedure within a call with hooks.
#[derive(Debug)]
pub struct InnerCall {
    /// Names the call. See [`InnerCall::id`].
    pub id: CallId,
    /// The caller of the call with hooks.
    pub caller: Caller,
    /// The name of the method, as JSON has it in quotes.
    pub method: Vec<u8>,
    /// The text of the params.
    pub params: Option<Vec<u8>>,
    /// The text of the `_meta`.
    pub meta: Vec<u8>,
    /// Whether it is no notification.
    pub has_reply: bool,
}

impl InnerCall {
    /// The id of the call of this number, which its caller's connection has no other time.
    pub fn id(caller: &Caller, number: u64) -> CallId {
        let number = CallNumber { request: INNER | number, item: 0 };
        CallId { connection: caller.connection, number }
    }
}

/// Whether a hook has made a call.
pub(crate) fn is_inner(call: CallId) -> bool {
    call.number.request & INNER != 0
}
