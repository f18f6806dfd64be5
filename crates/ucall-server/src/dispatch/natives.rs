//! Calls of native procedures that the hooks around them make.

use ucall_proto::json::Reader;
use ucall_proto::{Call, Meta, reply_apart};

use super::{Dispatcher, method_not_found};
use crate::caller::CallId;
use crate::handler::{Handler, Polled};
use crate::native::{NativeRequest, is_inner};
use crate::procedures::ProcedureCache;

/// What answers calls of the native procedure of this name, if hooks are around it.
pub(super) fn hooks_around<'p, P>(procedures: &'p ProcedureCache<P>, name: &[u8]) -> Option<&'p P> {
    procedures.native_hooks().filter(|_| procedures.natives().is_hooked(name))
}

impl<H: Handler> Dispatcher<H> {
    /// The next reply of a native procedure to a caller. Those to hooks go to the handler, which
    /// may have others run.
    pub(super) fn poll_native(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        loop {
            let mut begun = None;
            while let Some(request) = self.handler.next_native() {
                begun = Some(request.id());
                self.run_inner(request, text);
            }
            if let Some(call) = begun {
                text.clear();
                return Some((call, Polled::BeginsNative));
            }
            let (call, polled) = self.natives.poll_reply(text)?;
            if !is_inner(call) {
                return Some((call, polled));
            }
            let reply = match polled {
                Polled::Error(error) => Err(error),
                _ => Ok(text.as_slice()),
            };
            self.handler.native_replied(call, reply);
            text.clear();
        }
    }

    /// Runs a call that a hook makes.
    #[cold]
    fn run_inner(&mut self, request: NativeRequest, text: &mut Vec<u8>) {
        let inner = match request {
            NativeRequest::Call(inner) => inner,
            NativeRequest::Cancel(call) => return self.natives.cancel_call(call),
        };
        let Self { handler, natives, procedures, .. } = self;
        let call = Call {
            method: Reader::new(&inner.method).string(),
            params: inner.params.as_deref(),
            members: None,
            id: inner.has_reply.then_some(b"1".as_slice()),
            meta: Some(Meta(&inner.meta)),
            number: inner.id.number,
            head: None,
            session: None,
            mcp: None,
        };
        let (name, table, bytes_max) = (call.method.unescaped(), procedures.natives(), usize::MAX);
        reply_apart(text, call.id, bytes_max, |reply| {
            let outcome = natives.call_hooked(table, &name, &call, &inner.caller, reply);
            match outcome {
                None => handler.native_replied(inner.id, Err(method_not_found(call.method))),
                _ if !inner.has_reply => handler.native_replied(inner.id, Ok(b"null")),
                Some(outcome) if outcome.is_deferred() => {}
                Some(_) => handler.native_replied(inner.id, reply.outcome()),
            }
        });
    }
}
