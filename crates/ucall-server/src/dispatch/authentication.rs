//! Authentication of requests and, if any procedure has an access of its own, of calls.
//!
//! Without such procedures a request is authenticated before its body is read, and its calls are
//! not looked at again. With one, which procedure is called decides, so a request of calls keeps
//! its [`Credentials`] in place of an identity, and each call is authenticated by them:
//!
//! | what is requested | authenticated |
//! |---|---|
//! | calls, over any transport; a WebSocket; a body that is posted to a function | call by call |
//! | routes, MCP, the Open Inference Protocol | as without such procedures; then call by call |
//! | MCP without an `Authorization`, if anyone may call a tool | call by call |

use std::sync::{Arc, Mutex, PoisonError};

use ucall_engine::Id;
use ucall_proto::http1::{Head, HeadLimits, parse_head};
use ucall_proto::tls::TlsSession;
use ucall_proto::{
    AuthenticationError, Call, CallRefusal, CallerIdentity, Endpoint, RpcError, Service,
};

use super::{Dispatch, Dispatcher, find_escaped};
use crate::call_access::CallAccess;
use crate::caller::{Caller, Transport};
use crate::handler::Handler;
use crate::mcp::{PUBLIC_METHODS, Tool};

/// The limits of a head that was parsed before.
const ANY_HEAD: HeadLimits =
    HeadLimits { bytes_max: usize::MAX, headers_max: usize::MAX, negotiates_coding: false };

type Outcome = Result<CallerIdentity, AuthenticationError>;

/// What a caller identifies itself by, in place of an identity.
#[derive(Default)]
struct Credentials {
    /// The head of the upgrade to a WebSocket, whose messages have none.
    head: Option<Box<[u8]>>,
    /// They are of one request, so a failure holds for all of its calls.
    is_of_request: bool,
    /// What came of it so far, for a request or for a connection as long as it lasts.
    outcomes: Mutex<Vec<(CallAccess, Outcome)>>,
}

/// How the caller of the calls that run was authenticated.
#[derive(Default)]
pub(super) struct CallAuthentication {
    /// Whether calls are authenticated one by one. It stays so, for the connections that have
    /// credentials.
    is_on: bool,
    /// The connection of the caller.
    connection: Option<Id>,
    admission: Admission,
    /// Why the last call of a request that is no batch was refused.
    refusal: Option<CallRefusal>,
}

#[derive(Default)]
enum Admission {
    /// The connection is older than the first procedure with an access of its own.
    #[default]
    Unknown,
    /// The whole request, or connection, has an identity.
    Whole(CallerIdentity),
    ByCall(Arc<Credentials>),
}

/// The caller of a public procedure, or of any one of a server without authentication.
struct Anonymous;

impl Credentials {
    fn find(&self, access: CallAccess) -> Option<Outcome> {
        let outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.iter().find(|(known, _)| *known == access).map(|(_, outcome)| outcome.clone())
    }

    /// Keeps what does not change: for a connection, a failure may be of that moment.
    fn keep(&self, access: CallAccess, outcome: &Outcome) {
        use AuthenticationError::{Failed, Unavailable};
        if self.is_of_request || !matches!(outcome, Err(Failed | Unavailable)) {
            let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            outcomes.push((access, outcome.clone()));
        }
    }
}

impl CallAuthentication {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    pub(super) fn turn_on(&mut self) {
        self.is_on = true;
    }

    /// How the caller of a call was authenticated.
    fn admission_of(&self, caller: &Caller) -> &Admission {
        match self.connection == Some(caller.connection) {
            true => &self.admission,
            false => &Admission::Unknown,
        }
    }

    pub(super) fn take_refusal(&mut self) -> Option<CallRefusal> {
        self.refusal.take()
    }
}

impl<H: Handler> Dispatcher<H> {
    /// Keeps the scopes of a tool whose call was refused, if the caller lacks any.
    #[cold]
    pub(crate) fn note_missing_scopes(&mut self, tool: &Tool) {
        let procedure = self.procedures.find(tool.method.as_bytes());
        let missing = procedure.and_then(|procedure| self.handler.missing_scopes(procedure));
        self.missing_scopes = missing.map(|missing| missing.required);
    }

    /// Takes over a new version of the procedures.
    #[cold]
    pub(super) fn update_procedures(&mut self) {
        self.natives.update(self.procedures.natives());
        let Self { handler, procedures, .. } = &*self;
        let is_public = |tool: &Tool| {
            let procedure = procedures.find(tool.method.as_bytes());
            procedure.is_some_and(|it| handler.access(it) == CallAccess::Public)
        };
        self.has_public_tools = procedures.mcp().is_some_and(|table| table.tools().any(is_public));
        let mut procedures = self.procedures.iter();
        if procedures.any(|it| self.handler.access(it) != CallAccess::Authenticated) {
            self.authentication.turn_on();
        }
        self.requires_authentication =
            self.authentication.is_on() || self.handler.requires_authentication();
        self.handler.procedures_changed();
    }
}

impl<H: Handler> Dispatch<'_, H> {
    /// Authenticates a request or a connection; see [`Service::authenticate`].
    ///
    /// [`Service::authenticate`]: ucall_proto::Service::authenticate
    pub(super) fn authenticate_request(
        &mut self,
        head: Option<&Head<'_>>,
        session: Option<&Arc<TlsSession>>,
    ) -> Outcome {
        if self.dispatcher.authentication.is_on() && self.makes_calls(head) {
            let is_websocket = self.caller.transport == Transport::WebSocket;
            let is_udp = self.caller.transport == Transport::Udp;
            let is_of_request = !is_websocket && (head.is_some() || is_udp);
            let head = head.filter(|_| is_websocket).map(|head| head.bytes().into());
            return Ok(Arc::new(Credentials { head, is_of_request, ..Credentials::default() }));
        }
        if !self.dispatcher.handler.requires_authentication() {
            return Ok(anonymous());
        }
        let peer = self.set_client(head);
        let admitted = self.dispatcher.handler.authenticate(head, session, self.caller);
        self.caller.peer = peer;
        self.dispatcher.end_child();
        match admitted {
            Err(error @ AuthenticationError::Unauthorized) if self.may_be_anonymous(head) => {
                let outcomes = Mutex::new(vec![(CallAccess::Authenticated, Err(error))]);
                Ok(Arc::new(Credentials { outcomes, is_of_request: true, head: None }))
            }
            admitted => admitted,
        }
    }

    /// Whether a request of MCP, whose caller is not known, may call the tools that anyone may. A
    /// client whose token is refused has to get another one.
    fn may_be_anonymous(&self, head: Option<&Head<'_>>) -> bool {
        let Dispatcher { handler, has_public_tools, .. } = &*self.dispatcher;
        *has_public_tools
            && head.is_some_and(|it| self.serves_mcp(it) && !handler.has_credentials(it))
    }

    /// Whether all that a request does is calls.
    fn makes_calls(&self, head: Option<&Head<'_>>) -> bool {
        match (head, self.caller.transport) {
            (Some(head), Transport::Tcp | Transport::Http) => {
                head.is_call() || matches!(self.endpoint(head), Some(Endpoint::Body(_)))
            }
            _ => true,
        }
    }

    /// Sets the caller of the calls that follow, if calls are authenticated one by one.
    #[cold]
    pub(super) fn set_caller(&mut self, identity: &CallerIdentity) {
        let authentication = &mut self.dispatcher.authentication;
        authentication.connection = Some(self.caller.connection);
        authentication.admission = match identity.clone().downcast::<Credentials>() {
            Ok(credentials) => {
                self.dispatcher.handler.set_identity(&anonymous());
                Admission::ByCall(credentials)
            }
            Err(identity) => {
                self.dispatcher.handler.set_identity(&identity);
                Admission::Whole(identity)
            }
        };
    }

    /// Authenticates a call by the access of its procedure, and sets the caller. Returns the error
    /// of a call that is refused.
    #[cold]
    pub(super) fn authenticate_call(&mut self, call: &Call<'_>) -> Option<RpcError> {
        let identified = self.identify_caller(call);
        self.dispatcher.end_child();
        let (identity, refusal) = match identified {
            Ok(identity) => (identity, None),
            Err(refusal) => (anonymous(), Some(refusal)),
        };
        self.dispatcher.handler.set_identity(&identity);
        let refusal = refusal?;
        if call.head.is_some() && call.number.item == 0 {
            let Dispatcher { handler, procedures, authentication, .. } = &mut *self.dispatcher;
            let challenge =
                find_escaped(procedures, call.method).and_then(|it| handler.challenge(it));
            authentication.refusal = Some(CallRefusal { error: refusal, challenge });
        }
        Some(RpcError::unauthenticated(refusal))
    }

    fn identify_caller(&mut self, call: &Call<'_>) -> Outcome {
        let Dispatcher { handler, procedures, authentication, .. } = &mut *self.dispatcher;
        let procedure = find_escaped(procedures, call.method);
        let access = procedure.map_or(CallAccess::Authenticated, |it| handler.access(it));
        let credentials = match (access, authentication.admission_of(self.caller)) {
            (CallAccess::Public, _) => return Ok(anonymous()),
            (CallAccess::Authenticated, Admission::Whole(identity)) => return Ok(identity.clone()),
            (CallAccess::Authenticated, _) if !handler.requires_authentication() => {
                return Ok(anonymous());
            }
            (_, Admission::ByCall(credentials)) => credentials.clone(),
            _ => Arc::default(),
        };
        if let Some(outcome) = credentials.find(access) {
            let is_public = procedure.is_none()
                && call.mcp.is_some()
                && PUBLIC_METHODS.contains(&&*call.method.unescaped());
            return if is_public { outcome.or_else(|_| Ok(anonymous())) } else { outcome };
        }
        let kept = credentials.head.as_deref().and_then(|it| parse_head(it, &ANY_HEAD).ok()?);
        let head = call.head.or(kept.as_ref());
        let outcome = match procedure {
            Some(procedure) if access != CallAccess::Authenticated => {
                handler.authenticate_call(procedure, head, call.session, self.caller)
            }
            _ => handler.authenticate(head, call.session, self.caller),
        };
        credentials.keep(access, &outcome);
        outcome
    }
}

fn anonymous() -> CallerIdentity {
    Arc::new(Anonymous)
}
