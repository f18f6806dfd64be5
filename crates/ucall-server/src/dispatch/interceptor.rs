//! What calls go through before and after their procedures: rejections, their own authentication,
//! rates, the access log, metrics, and the clients of proxies.

use std::mem;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::{EngineClock, Peer};
use ucall_proto::http1::{ForwardedClient, Head, TrustedProxies};
use ucall_proto::{Call, CallOutcome, Reply, RpcError};

use super::{Availability, Dispatch, Dispatcher, find_escaped};
use crate::access_log::{AccessLog, LoggedCall};
use crate::call_rates::{CallRates, RatedCaller};
use crate::config::WorkerConfig;
use crate::handler::Handler;
use crate::metrics::{CallMetrics, RunningCall, SeriesIndex};

/// Why calls are refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RejectionReason {
    Drain,
    Overload,
}

/// What calls go through besides their procedures. Without any, a call costs two comparisons.
pub(super) struct Interceptor {
    pub(super) rejection: Option<RejectionReason>,
    is_draining: bool,
    /// Whether some procedures have an access of their own.
    authenticates_calls: bool,
    clock: EngineClock,
    log: Option<Arc<AccessLog>>,
    metrics: Option<Arc<CallMetrics>>,
    proxies: Option<Arc<TrustedProxies>>,
    rates: Option<CallRates>,
    /// The call that runs was counted already, by the request that it is part of.
    is_counted: bool,
    /// The line of the call that runs.
    pub(super) logged: Option<LoggedCall>,
    /// The series of the call that runs, and when it began.
    measured: Option<(SeriesIndex, Instant)>,
    /// The other end of the connection, while a call of a proxy's client runs.
    socket_peer: Option<Peer>,
}

impl Interceptor {
    pub(super) fn of(
        config: &WorkerConfig,
        availability: Availability,
        clock: &EngineClock,
        authenticates_calls: bool,
    ) -> Option<Box<Self>> {
        let (rejection, is_draining) = (availability.rejection(), availability.is_draining);
        let (log, metrics) = (config.access_log.clone(), config.call_metrics.clone());
        let proxies = config.trusted_proxies.clone();
        let rates = config.call_rates.clone();
        let has_options = log.is_some()
            || metrics.is_some()
            || proxies.is_some()
            || rates.is_some()
            || authenticates_calls;
        (rejection.is_some() || is_draining || has_options).then(|| {
            Box::new(Self {
                rejection,
                is_draining,
                authenticates_calls,
                clock: clock.clone(),
                log,
                metrics,
                proxies,
                rates,
                is_counted: false,
                logged: None,
                measured: None,
                socket_peer: None,
            })
        })
    }
}

impl Interceptor {
    /// The access log, if there is one, and its clock.
    pub(super) fn access_log(&self) -> Option<(&Arc<AccessLog>, &EngineClock)> {
        Some((self.log.as_ref()?, &self.clock))
    }
}

impl<H: Handler> Dispatch<'_, H> {
    #[cold]
    fn reject(&mut self, call: &Call<'_>, error: &RpcError, reply: &mut Reply<'_>) -> CallOutcome {
        let procedure = find_escaped(&self.dispatcher.procedures, call.method);
        self.dispatcher.handler.call_rejected(procedure, error);
        reply.error(error);
        CallOutcome::Done
    }

    /// The error of a call that is not to run.
    fn refusal(&mut self) -> Option<RpcError> {
        let Dispatcher { handler, interceptor, .. } = &mut *self.dispatcher;
        let interceptor = interceptor.as_deref_mut()?;
        if let Some(rejection) = interceptor.rejection {
            return Some(rejection_error(rejection));
        }
        let rates = interceptor.rates.as_ref()?;
        if mem::take(&mut interceptor.is_counted) {
            return None;
        }
        let caller = RatedCaller::new(handler.identity_name(), self.caller.peer);
        rates.take(&caller, interceptor.clock.uptime()).err()
    }

    /// Replaces the peer by the client that it forwards the request of, if it is a trusted proxy.
    /// Returns the peer, which has to be restored.
    pub(super) fn set_client(&mut self, head: Option<&Head<'_>>) -> Option<Peer> {
        let peer = self.caller.peer;
        if let (Some(proxies), Some(head)) = (self.trusted_proxies(peer), head) {
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

    /// The proxies that are trusted, if the other end of the connection is one of them.
    pub(super) fn trusted_proxies(&self, peer: Option<Peer>) -> Option<&TrustedProxies> {
        let proxies = self.dispatcher.interceptor.as_ref()?.proxies.as_deref()?;
        peer.is_some_and(|peer| is_trusted(proxies, peer)).then_some(proxies)
    }

    /// Sets the caller and begins the line of a call; its outcome if it is rejected.
    #[cold]
    pub(super) fn begin_intercepted(
        &mut self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
    ) -> Option<CallOutcome> {
        let socket_peer = self.set_client(call.head);
        let interceptor = self.dispatcher.interceptor.as_deref_mut()?;
        interceptor.socket_peer = socket_peer;
        let must_authenticate = interceptor.authenticates_calls && interceptor.rejection.is_none();
        let refusal = if must_authenticate { self.authenticate_call(call) } else { None };
        let interceptor = self.dispatcher.interceptor.as_deref_mut()?;
        let transport = self.caller.transport(call.head);
        interceptor.logged = interceptor.log.as_ref().and_then(|log| {
            let user = || self.dispatcher.handler.identity_name();
            log.begin(call, self.caller, transport, &interceptor.clock, user)
        });
        let Some(error) = refusal.or_else(|| self.refusal()) else {
            self.begin_measured(call);
            return None;
        };
        let outcome = self.reject(call, &error, reply);
        self.end_intercepted(outcome, reply);
        Some(outcome)
    }

    /// Leaves the line of a call, and its place among the calls, to the one that runs for it.
    #[cold]
    pub(crate) fn leave_to_inner_call(&mut self) {
        self.dispatcher.calls -= 1;
        let Some(interceptor) = self.dispatcher.interceptor.as_deref_mut() else { return };
        interceptor.is_counted = true;
        if let Some(logged) = interceptor.logged.take() {
            logged.discard();
        }
    }

    /// Restores the caller and ends the line of a call, or passes it on with a call that goes on.
    #[cold]
    pub(super) fn end_intercepted(&mut self, outcome: CallOutcome, reply: &Reply<'_>) {
        let Some(interceptor) = self.dispatcher.interceptor.as_deref_mut() else { return };
        self.caller.peer = interceptor.socket_peer;
        interceptor.is_counted = false;
        if let (Some(measured), Some(metrics)) = (interceptor.measured.take(), &interceptor.metrics)
        {
            let running = || RunningCall::new(metrics.clone(), measured.0, measured.1);
            match outcome {
                CallOutcome::Done => {
                    let duration = interceptor.clock.now().saturating_duration_since(measured.1);
                    metrics.record(measured.0, duration, reply.error_code());
                }
                CallOutcome::CancelRequest => {}
                _ => self.dispatcher.handler.set_running(running()),
            }
        }
        let Some(logged) = interceptor.logged.take() else { return };
        match outcome {
            CallOutcome::Done => logged.end(reply.error_code(), reply.result_bytes()),
            CallOutcome::CancelRequest => logged.discard(),
            _ => self.dispatcher.handler.set_logged(logged),
        }
    }

    /// Has the end of a call recorded, if it is one of the handler's. Native procedures record
    /// theirs.
    fn begin_measured(&mut self, call: &Call<'_>) {
        let Some(interceptor) = self.dispatcher.interceptor.as_deref_mut() else { return };
        if interceptor.metrics.is_some() {
            let procedure = find_escaped(&self.dispatcher.procedures, call.method);
            let series = procedure.and_then(|procedure| self.dispatcher.handler.series(procedure));
            interceptor.measured = series.map(|series| (series, interceptor.clock.now()));
        }
    }

    pub(super) fn rejection(&self) -> Option<RejectionReason> {
        self.dispatcher.interceptor.as_ref().and_then(|interceptor| interceptor.rejection)
    }

    /// Why the server itself is not ready.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let is_draining = self.dispatcher.interceptor.as_ref().is_some_and(|it| it.is_draining);
        let is_full = self.dispatcher.run_limit().is_full();
        match self.rejection() {
            _ if is_draining => Some("draining"),
            Some(RejectionReason::Overload) => Some("overloaded: max_held_bytes is exceeded"),
            _ if is_full => Some("overloaded: max_running_calls is reached"),
            _ => None,
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
pub(super) fn rejection_error(cause: RejectionReason) -> RpcError {
    match cause {
        RejectionReason::Drain => {
            RpcError::new(RpcError::DRAINING, "Draining").expected("the server is about to stop")
        }
        RejectionReason::Overload => RpcError::overloaded(),
    }
}
