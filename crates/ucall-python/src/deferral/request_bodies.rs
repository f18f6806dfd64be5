//! Passes on the bodies of requests that are received while they arrive.

use std::sync::Arc;

use ucall_server::CallId;

use super::Deferral;
use crate::asgi::Exchange;
use crate::ffi::DropAttached;
use crate::request_body::ArrivingBody;

/// What receives the body of a request.
enum Receiver {
    Application(Arc<DropAttached<Exchange>>),
    Route(Arc<DropAttached<ArrivingBody>>),
}

impl Deferral {
    /// Whether there is room for a part of a request's body.
    pub(crate) fn takes_body(&mut self, call: CallId) -> bool {
        match self.receiver_of(call) {
            None => true,
            Some(Receiver::Application(exchange)) => exchange.has_room(),
            Some(Receiver::Route(body)) => body.has_room(),
        }
    }

    /// Takes a part of a request's body, unless its response is complete.
    pub(crate) fn take_body_part(&mut self, call: CallId, part: &[u8], is_last: bool) {
        let waiting = match self.receiver_of(call) {
            None => return,
            Some(Receiver::Application(exchange)) => exchange.take_body_part(part, is_last),
            Some(Receiver::Route(body)) => body.put(part, is_last),
        };
        for future in waiting {
            self.streams.push_future(future);
        }
    }

    fn receiver_of(&mut self, call: CallId) -> Option<Receiver> {
        let token = self.calls.token_of(call)?;
        let call = self.call(token)?;
        match (&call.exchange, &call.body) {
            (Some(exchange), _) => Some(Receiver::Application(exchange.clone())),
            (None, Some(body)) => Some(Receiver::Route(body.clone())),
            (None, None) => None,
        }
    }
}
