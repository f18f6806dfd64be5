//! Who has made a call that may fail: what the log says of it.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_engine::Peer;
use ucall_proto::http1::Head;
use ucall_proto::{Call, CallerIdentity, Meta};
use ucall_server::{CallSource, Caller, Transport};

use crate::identity::Identity;
use crate::request_texts::CopiedTexts;

/// The caller of a call, and its id. Any thread may drop it.
pub(crate) struct CallOrigin {
    /// The method, the id, the traceparent, and the params if they are kept with them.
    texts: CopiedTexts<4>,
    pub(crate) peer: Option<Peer>,
    pub(crate) transport: Transport,
    user: Option<OriginUser>,
}

/// The user of the caller.
enum OriginUser {
    Identity(CallerIdentity),
    /// In another process.
    Name(String),
}

/// The calls that have failed together.
#[derive(Clone, Copy, Default)]
pub(crate) struct FailedCalls<'a> {
    first: Option<&'a CallOrigin>,
    count: usize,
}

impl CallOrigin {
    pub(crate) fn new(call: &Call<'_>, caller: &Caller, identity: Option<CallerIdentity>) -> Self {
        Self::with_params(call, caller, identity, None)
    }

    /// [`CallOrigin::new`], which keeps these params in the memory of the other texts.
    pub(crate) fn with_params(
        call: &Call<'_>,
        caller: &Caller,
        identity: Option<CallerIdentity>,
        params: Option<&[u8]>,
    ) -> Self {
        let (method, meta) = (call.method.unescaped(), call.meta.and_then(Meta::traceparent));
        let in_meta = meta.as_ref().map(|text| text.unescaped());
        // That of `_meta` comes first.
        let traceparent = in_meta.as_deref().or_else(|| {
            let headers = call.head.map(Head::headers)?;
            headers.named("traceparent").next()
        });
        // That of a route is empty.
        let id = call.id.filter(|id| !id.is_empty());
        let texts = CopiedTexts::of([Some(&*method), id, traceparent, params]);
        let (peer, transport) = (caller.peer, caller.transport(call.head));
        Self { texts, peer, transport, user: identity.map(OriginUser::Identity) }
    }

    /// Of the method, the id and the traceparent of a call.
    pub(crate) fn of(
        [method, id, traceparent]: [Option<&[u8]>; 3],
        peer: Option<Peer>,
        transport: Transport,
        identity: Option<CallerIdentity>,
    ) -> Self {
        let texts = CopiedTexts::of([method, id, traceparent, None]);
        Self { texts, peer, transport, user: identity.map(OriginUser::Identity) }
    }

    /// The origin in another process, where the user has only a name.
    pub(crate) fn with_user(self, name: Option<String>) -> Self {
        Self { user: name.map(OriginUser::Name), ..self }
    }

    pub(crate) fn method(&self) -> Option<&[u8]> {
        self.texts.get(0)
    }

    pub(crate) fn id(&self) -> Option<&[u8]> {
        self.texts.get(1)
    }

    pub(crate) fn traceparent(&self) -> Option<&[u8]> {
        self.texts.get(2)
    }

    /// The params, if they are kept with the other texts.
    pub(crate) fn params(&self) -> Option<&[u8]> {
        self.texts.get(3)
    }

    /// Whether the name of the user was not asked for yet.
    pub(crate) fn has_unknown_user(&self) -> bool {
        self.identity().is_some_and(|identity| identity.known_name().is_none())
    }

    /// The name of the user.
    pub(crate) fn find_user(&self, py: Python<'_>) -> Option<&str> {
        self.identity().map_or_else(|| self.user(), |identity| identity.name(py))
    }

    /// The name of the user, if it was read before: needs no interpreter lock.
    pub(crate) fn user(&self) -> Option<&str> {
        match &self.user {
            Some(OriginUser::Name(name)) => Some(name),
            _ => self.identity()?.known_name().flatten(),
        }
    }

    fn identity(&self) -> Option<&Identity> {
        match &self.user {
            Some(OriginUser::Identity(identity)) => identity.downcast_ref(),
            _ => None,
        }
    }

    /// As lines of the log show it.
    fn described(&self, py: Python<'_>) -> CallSource {
        self.find_user(py);
        self.source()
    }

    /// As lines of the log show it, with its user if that was read before.
    pub(crate) fn source(&self) -> CallSource {
        CallSource::new(
            self.method().unwrap_or_default(),
            self.id(),
            self.peer,
            self.transport,
            self.user().map(str::to_owned),
            self.traceparent(),
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
