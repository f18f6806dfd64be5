//! What calls go through before and after their procedures: rejections, the access log, and the
//! clients of proxies.

use std::sync::Arc;

use ucall_engine::{EngineClock, Peer};
use ucall_proto::http1::{ForwardedClient, Head, TrustedProxies};
use ucall_proto::{Call, CallOutcome, Reply, RpcError};

use super::{Dispatch, find_escaped};
use crate::access_log::{AccessLog, LoggedCall};
use crate::config::WorkerConfig;
use crate::handler::{Handler, HealthState};

/// Why calls are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rejection {
    Drain,
    Overload,
}

/// What calls go through besides their procedures. Without any, a call costs two comparisons.
pub(super) struct Diversion {
    pub(super) rejection: Option<Rejection>,
    is_draining: bool,
    clock: EngineClock,
    log: Option<Arc<AccessLog>>,
    proxies: Option<Arc<TrustedProxies>>,
    /// The line of the call that runs.
    pub(super) logged: Option<LoggedCall>,
    /// The other end of the connection, while a call of a proxy's client runs.
    socket_peer: Option<Peer>,
}

impl Diversion {
    pub(super) fn of(
        config: &WorkerConfig,
        rejection: Option<Rejection>,
        is_draining: bool,
        clock: &EngineClock,
    ) -> Option<Box<Self>> {
        let log = config.access_log.clone();
        let proxies = config.trusted_proxies.clone();
        let is_needed = rejection.is_some() || is_draining || log.is_some() || proxies.is_some();
        is_needed.then(|| {
            Box::new(Self {
                rejection,
                is_draining,
                clock: clock.clone(),
                log,
                proxies,
                logged: None,
                socket_peer: None,
            })
        })
    }
}

impl<H: Handler> Dispatch<'_, H> {
    #[cold]
    fn reject(&mut self, call: &Call<'_>, cause: Rejection, reply: &mut Reply<'_>) -> CallOutcome {
        let error = rejection_error(cause);
        let procedure = find_escaped(self.procedures, call.method);
        self.handler.call_rejected(procedure, &error);
        reply.error(&error);
        CallOutcome::Done
    }

    /// Replaces the peer by the client that it forwards the request of, if it is a trusted proxy.
    /// Returns the peer, which has to be restored.
    pub(super) fn set_client(&mut self, head: Option<&Head<'_>>) -> Option<Peer> {
        let peer = self.caller.peer;
        let proxies = self.diversion.as_ref().and_then(|diversion| diversion.proxies.as_ref());
        if let (Some(proxies), Some(head)) = (proxies, head)
            && peer.is_some_and(|peer| is_trusted(proxies, peer))
        {
            match proxies.client(head) {
                ForwardedClient::Absent => {}
                ForwardedClient::Unknown => self.caller.peer = Some(Peer::Unknown),
                ForwardedClient::Address(client) => {
                    self.caller.peer = Some(Peer::Address(client));
                }
            }
        }
        peer
    }

    /// Sets the caller and begins the line of a call; its outcome if it is rejected.
    #[cold]
    pub(super) fn begin_diverted(
        &mut self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        let socket_peer = self.set_client(call.head);
        let diversion = self.diversion.as_deref_mut()?;
        diversion.socket_peer = socket_peer;
        let transport = self.caller.transport(call.head);
        diversion.logged = diversion.log.as_ref().and_then(|log| {
            let user = || self.handler.identity_name();
            log.begin(call, self.caller, transport, &diversion.clock, user)
        });
        let rejection = diversion.rejection?;
        let outcome = self.reject(call, rejection, reply);
        self.end_diverted(outcome, reply);
        Some(outcome)
    }

    /// Restores the caller and ends the line of a call, or passes it on with a call that goes on.
    #[cold]
    pub(super) fn end_diverted(&mut self, outcome: CallOutcome, reply: &Reply<'_>) {
        let Some(diversion) = self.diversion.as_deref_mut() else { return };
        self.caller.peer = diversion.socket_peer;
        let Some(logged) = diversion.logged.take() else { return };
        match outcome {
            CallOutcome::Done => logged.end(reply.error_code(), reply.result_bytes()),
            CallOutcome::Deferred | CallOutcome::Stream => self.handler.set_logged(logged),
            CallOutcome::CancelRequest => logged.discard(),
        }
    }

    pub(super) fn rejection(&self) -> Option<Rejection> {
        self.diversion.as_ref().and_then(|diversion| diversion.rejection)
    }

    pub(super) fn health(&self) -> HealthState {
        match self.rejection() {
            _ if self.diversion.as_ref().is_some_and(|it| it.is_draining) => HealthState::Draining,
            Some(Rejection::Overload) => HealthState::Overloaded,
            Some(Rejection::Drain) | None => HealthState::Normal,
        }
    }
}

fn is_trusted(proxies: &TrustedProxies, peer: Peer) -> bool {
    match peer {
        Peer::Address(address) => proxies.trusts(address.ip()),
        Peer::Process { .. } => proxies.trusts_unix(),
        _ => false,
    }
}

#[cold]
pub(super) fn rejection_error(cause: Rejection) -> RpcError {
    match cause {
        Rejection::Drain => {
            RpcError::new(RpcError::DRAINING, "Draining").expected("the server is about to stop")
        }
        Rejection::Overload => RpcError::overloaded(),
    }
}
