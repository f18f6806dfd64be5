//! Who has made a call that may fail: what the log says of it.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use ucall_engine::Peer;
use ucall_proto::http1::Head;
use ucall_proto::{Call, CallerIdentity, Meta};
use ucall_server::{CallSource, Caller, Transport};

use crate::identity::user_of;
use crate::request_texts::{RequestTexts, TextSpan};

/// The caller of a call, and its id. Any thread may drop it.
pub(crate) struct CallOrigin {
    /// Copies of the request's texts.
    texts: RequestTexts,
    method: Option<TextSpan>,
    id: Option<TextSpan>,
    traceparent: Option<TextSpan>,
    peer: Option<Peer>,
    transport: Transport,
    identity: Option<CallerIdentity>,
}

/// The calls that have failed together.
#[derive(Clone, Copy, Default)]
pub(crate) struct FailedCalls<'a> {
    first: Option<&'a CallOrigin>,
    count: usize,
}

impl CallOrigin {
    pub(crate) fn new(call: &Call<'_>, caller: &Caller, identity: Option<CallerIdentity>) -> Self {
        let (method, meta) = (call.method.unescaped(), call.meta.and_then(Meta::traceparent));
        let in_meta = meta.as_ref().map(|text| text.unescaped());
        // That of `_meta` comes first.
        let traceparent = in_meta.as_deref().or_else(|| {
            let headers = call.head.map(Head::headers)?;
            headers.named("traceparent").next()
        });
        // That of a route is empty.
        let id = call.id.filter(|id| !id.is_empty());
        let texts = [Some(&*method), id, traceparent];
        Self::of(texts, caller.peer, caller.transport(call.head), identity)
    }

    /// Of the method, the id and the traceparent of a call.
    pub(crate) fn of(
        texts: [Option<&[u8]>; 3],
        peer: Option<Peer>,
        transport: Transport,
        identity: Option<CallerIdentity>,
    ) -> Self {
        let mut copies = RequestTexts::default();
        let [method, id, traceparent] = copies.replace(texts);
        Self { texts: copies, method, id, traceparent, peer, transport, identity }
    }

    /// As lines of the log show it.
    fn described(&self, py: Python<'_>) -> CallSource {
        let text = |span: Option<TextSpan>| span.map(|span| self.texts.get(span));
        let user = self.identity.as_ref().and_then(user_of);
        CallSource::new(
            text(self.method).unwrap_or_default(),
            text(self.id),
            self.peer,
            self.transport,
            user.and_then(|user| name_of(user.bind(py))),
            text(self.traceparent),
        )
    }
}

impl<'a> FailedCalls<'a> {
    pub(crate) fn one(origin: Option<&'a CallOrigin>) -> Self {
        Self { first: origin, count: 1 }
    }

    /// Of calls whose first one has this origin.
    pub(crate) fn of(first: Option<&'a Arc<CallOrigin>>, count: usize) -> Self {
        Self { first: first.map(|origin| &**origin), count }
    }

    /// What a line of the log says of them, in text and as a JSON object. `None` if nothing is
    /// known.
    pub(crate) fn described(&self, py: Python<'_>) -> Option<(String, String)> {
        let count = self.count;
        let Some(source) = self.first.map(|origin| origin.described(py)) else {
            let is_batch = count > 1;
            return is_batch.then(|| (format!("{count} calls"), format!(r#"{{"calls":{count}}}"#)));
        };
        let (text, json) = (source.text(), source.json());
        Some(match count {
            1 => (text, json),
            _ => {
                let members = json.strip_prefix('{').unwrap_or_default();
                let json = format!(r#"{{"calls":{count},{members}"#);
                (format!("{count} calls, the first: {text}"), json)
            }
        })
    }
}

/// The name of a user: itself, if that is a text, or its attribute ``subject``.
pub(crate) fn name_of(user: &Bound<'_, PyAny>) -> Option<String> {
    let subject = || user.getattr(intern!(user.py(), "subject"))?.extract();
    user.extract().or_else(|_: PyErr| subject()).ok()
}
