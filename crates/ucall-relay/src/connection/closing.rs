//! Closes a connection, and returns the calls that it has not answered.

use std::mem;

use ucall_server::NativeContext;

use super::{Connection, ConnectionState};
use crate::ends::LostCall;
use crate::long_call::CallText;

impl Connection {
    /// Closes the socket; returns the calls that were not answered.
    pub(super) fn close(
        &mut self,
        reason: &str,
        is_shortage: bool,
        context: &mut dyn NativeContext,
    ) -> Vec<LostCall> {
        match mem::replace(&mut self.state, ConnectionState::Closed) {
            ConnectionState::Connecting { attempt: id, .. } | ConnectionState::Open(id) => {
                context.close(id);
            }
            ConnectionState::New | ConnectionState::Closed => {}
        }
        let unsent = mem::take(&mut self.unsent);
        let lost = self.slots.take_all().into_iter().map(|(slot, mut call)| {
            // The last one: an upstream may have answered the slot's call before it was sent.
            let text = unsent.iter().rfind(|(unsent, _)| *unsent == slot);
            let head = text.and_then(|(_, range)| self.output.get(range.clone()));
            let was_sent = head.is_none();
            let long = self.long.as_ref().map(|long| long.params.clone());
            let text = head.map(|head| Box::new(CallText { head: head.to_vec(), long }));
            let text = text.or_else(|| call.repeatable.take());
            LostCall { call, text, was_sent, reason: reason.to_owned(), is_shortage }
        });
        lost.collect()
    }
}
