//! The native procedures of a relay.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::json::{Reader, write_string};
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{
    NativeCall, NativeContext, NativeHandler, NativeModule, NativeOutcome, NativeOutcomes,
    NativeProcedure, Token,
};

use crate::connection::LostCall;
use crate::options::RelayOptions;
use crate::pick::{Picker, by_hash, param};
use crate::request::{CallContext, TraceContext, write_call};
use crate::retry_budget::RetryBudget;
use crate::slots::PendingCall;
use crate::status::UpstreamStatus;
use crate::upstream::Upstream;

/// Relays that a call may pass. More are a loop.
const HOPS_MAX: u32 = 8;
/// A late call whose caller has allowed less time says nothing about the upstream.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);
/// Memory that is kept for the text of the next call.
const CACHED_BYTES_MAX: usize = 64 * 1024;

/// The native procedures of one relay.
#[derive(Debug)]
pub struct RelayModule {
    options: Arc<RelayOptions>,
    procedures: Vec<NativeProcedure>,
    /// Of each upstream.
    statuses: Vec<Arc<UpstreamStatus>>,
}

impl RelayModule {
    /// The procedures of a relay with these options.
    pub fn new(options: RelayOptions) -> Self {
        let procedures = options.methods.iter().map(|name| NativeProcedure {
            name: name.clone(),
            summary: "Relayed to another server.",
            params: r#"{"type":"object"}"#,
            result: "{}",
            item: None,
        });
        let statuses = options.upstreams.iter().map(|_| Arc::default()).collect();
        Self { procedures: procedures.collect(), options: Arc::new(options), statuses }
    }

    /// The state of each upstream by its label, as the worker of this process uses it.
    pub fn statuses(&self) -> impl Iterator<Item = (&str, &UpstreamStatus)> {
        let labels = self.options.upstreams.iter().map(|upstream| upstream.label());
        labels.zip(self.statuses.iter().map(Arc::as_ref))
    }
}

impl NativeModule for RelayModule {
    fn procedures(&self) -> &[NativeProcedure] {
        &self.procedures
    }

    fn handler(&self, outcomes: Arc<NativeOutcomes>) -> Box<dyn NativeHandler> {
        let options = self.options.clone();
        let addresses = options.upstreams.iter().cloned().zip(self.statuses.iter().cloned());
        let upstreams =
            addresses.map(|(address, status)| Upstream::new(address, options.failures_max, status));
        Box::new(RelayHandler {
            upstreams: upstreams.collect(),
            // Workers that pick in the same order would overload the same upstreams.
            picker: Picker::new(u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            budget: RetryBudget::new(),
            candidates: Vec::new(),
            text: Vec::new(),
            now: Instant::now(),
            is_due: false,
            outcomes,
            options,
        })
    }
}

/// The upstreams of a relay, as one worker uses them.
struct RelayHandler {
    options: Arc<RelayOptions>,
    upstreams: Vec<Upstream>,
    picker: Picker,
    budget: RetryBudget,
    /// Memory for the indices of upstreams.
    candidates: Vec<usize>,
    /// Memory for the text of a call.
    text: Vec<u8>,
    outcomes: Arc<NativeOutcomes>,
    /// When this turn began.
    now: Instant,
    /// Whether there is something to be done at the end of a turn.
    is_due: bool,
}

impl NativeHandler for RelayHandler {
    fn call(&mut self, _: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        (self.now, self.is_due) = (call.now, true);
        match self.begin(call) {
            Ok(outcome) => outcome,
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }

    fn cancel(&mut self, token: Token) {
        self.is_due = true;
        let (timeout_min, now) = (self.options.timeout.min(FAILURE_TIMEOUT), Instant::now());
        self.upstreams.iter_mut().any(|upstream| upstream.give_up(token, timeout_min, now));
    }

    fn set_paused(&mut self, token: Token, is_paused: bool) {
        self.is_due = true;
        self.upstreams.iter_mut().any(|upstream| upstream.set_paused(token, is_paused));
    }

    fn connected(&mut self, attempt: Id, socket: io::Result<Id>) {
        self.is_due = true;
        let mut upstreams = self.upstreams.iter_mut();
        if let Some(connection) = upstreams.find_map(|upstream| upstream.find(attempt)) {
            connection.connected(socket, self.now);
        }
    }

    fn received(&mut self, socket: Id, bytes: &mut [u8], now: Instant) {
        (self.now, self.is_due) = (now, true);
        let outcomes = &self.outcomes;
        for upstream in &mut self.upstreams {
            let Some(connection) = upstream.find(socket) else { continue };
            let mut is_answered = false;
            connection.received(bytes, now, |token, outcome| {
                is_answered = true;
                outcomes.send(token, outcome);
            });
            if is_answered {
                upstream.succeed();
            }
            return;
        }
    }

    fn sent(&mut self, _: Id) {
        self.is_due = true;
    }

    fn disconnected(&mut self, socket: Id, error: io::Error) {
        self.is_due = true;
        let mut upstreams = self.upstreams.iter_mut();
        if let Some(connection) = upstreams.find_map(|upstream| upstream.find(socket)) {
            connection.disconnected(&error);
        }
    }

    fn turn_ended(&mut self, now: Instant, context: &mut dyn NativeContext) {
        (self.now, self.is_due) = (now, false);
        // Each call is passed on a bounded number of times.
        loop {
            let mut lost = Vec::new();
            for upstream in &mut self.upstreams {
                upstream.advance(now, context, &mut lost);
            }
            if lost.is_empty() {
                return;
            }
            lost.into_iter().for_each(|lost| self.retry(lost));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.is_due {
            true => Some(self.now),
            false => self.upstreams.iter().filter_map(Upstream::deadline).min(),
        }
    }
}

impl RelayHandler {
    /// Passes a call to a connection.
    fn begin(&mut self, call: NativeCall<'_>) -> Result<CallOutcome, RpcError> {
        let (request, deadline, now) = (call.request, call.deadline, call.now);
        let (hops, trace) = (next_hop(request)?, TraceContext::of(request));
        let options = self.options.clone();
        let method = options.rewrite.method(request.method)?;
        let params = options.rewrite.params(request.params)?;
        self.text.clear();
        self.text.shrink_to(CACHED_BYTES_MAX);
        write_call(&mut self.text, &method, params.as_deref());
        let index = self.pick(request.params, 0)?;
        let upstream = &mut self.upstreams[index];
        let takes_items = request.takes_items() && !upstream.is_http();
        let context = CallContext { hops, deadline, trace, takes_items };
        let connection = upstream.connection(&self.options, self.text.len(), takes_items, now);
        let Some(connection) = connection else {
            return Err(overloaded(&self.options));
        };
        if request.id.is_none() {
            connection.notify(&self.text, &context, now);
            return Ok(CallOutcome::Done);
        }
        let token = call.defer(params.map_or(0, |params| params.len()))?;
        let is_idempotent = self.options.is_idempotent(&request.method.unescaped());
        let repeatable = is_idempotent.then(|| self.text.clone());
        let (started, tried) = (now, 1 << index);
        let call = PendingCall { token, context, started, tried, is_repeated: false, repeatable };
        connection.call(call, &self.text);
        upstream.breaker.begin();
        self.budget.earn();
        Ok(if takes_items { CallOutcome::Stream } else { CallOutcome::Deferred })
    }

    /// The upstream for a call, none of those that it was passed to before.
    fn pick(&mut self, params: Option<&[u8]>, tried: u64) -> Result<usize, RpcError> {
        let (now, upstreams) = (self.now, &self.upstreams);
        self.candidates.clear();
        let is_untried = |index: &usize| tried & (1 << *index) == 0;
        let admits = |index: &usize| upstreams[*index].breaker.admits(now);
        self.candidates.extend((0..upstreams.len()).filter(is_untried).filter(admits));
        let value = self.options.hash_param.as_ref().and_then(|name| param(params, name));
        let picked = match value {
            Some(value) => {
                by_hash(&self.candidates, value, |index| &upstreams[index].address().name)
            }
            None => {
                let outstanding = |index: usize| upstreams[index].outstanding();
                self.picker.least_of_two(&self.candidates, outstanding)
            }
        };
        let reason = || upstreams.first().map_or("", Upstream::reason);
        picked.ok_or_else(|| unavailable(false, reason()))
    }

    /// Passes a call of a failed connection to another, or replies that it has failed.
    fn retry(&mut self, lost: LostCall) {
        let LostCall { mut call, text, was_sent } = lost;
        // The only upstream may answer on another connection.
        let is_only = self.upstreams.len() == 1 && !call.is_repeated;
        let text = text.filter(|_| self.budget.spend());
        let tried = if is_only { 0 } else { call.tried };
        let picked = text.and_then(|text| Some((text, self.pick(None, tried).ok()?)));
        let token = call.token;
        if let Some((text, index)) = picked {
            let upstream = &mut self.upstreams[index];
            let takes_items = call.context.takes_items && !upstream.is_http();
            let (options, now) = (&self.options, self.now);
            if let Some(connection) = upstream.connection(options, text.len(), takes_items, now) {
                call.tried |= 1 << index;
                (call.is_repeated, call.started) = (true, self.now);
                if was_sent {
                    call.repeatable = Some(text.clone());
                }
                connection.call(call, &text);
                return upstream.breaker.begin();
            }
        }
        let reason = self.upstreams.iter().map(Upstream::reason).find(|reason| !reason.is_empty());
        let error = unavailable(was_sent, reason.unwrap_or_default());
        self.outcomes.send(token, NativeOutcome::Reply(Err(error)));
    }
}

/// The number of relays that the call has passed with this one.
fn next_hop(request: &Call<'_>) -> Result<u32, RpcError> {
    let hops = request.meta.and_then(|meta| meta.find(b"hops"));
    let hops = hops.and_then(|text| Reader::new(text).number().as_i64()).unwrap_or(0).max(0);
    match u32::try_from(hops) {
        Ok(hops) if hops < HOPS_MAX => Ok(hops + 1),
        _ => {
            let reason = format!("the call has passed {HOPS_MAX} relays, which may be a loop");
            Err(unavailable(false, &reason))
        }
    }
}

fn overloaded(options: &RelayOptions) -> RpcError {
    let mut error = RpcError::new(RpcError::OVERLOADED, "Overloaded");
    let max = options.outstanding_max;
    error.data = Some(format!(r#"{{"retry_after_ms":100,"max_outstanding":{max}}}"#).into_bytes());
    error
}

/// The error of a call whose upstream is unavailable. If it was sent, it may have run.
fn unavailable(was_sent: bool, reason: &str) -> RpcError {
    let mut error = RpcError::new(RpcError::UPSTREAM_UNAVAILABLE, "Upstream unavailable");
    let mut data = format!(r#"{{"sent":{was_sent},"reason":"#).into_bytes();
    write_string(&mut data, reason);
    data.push(b'}');
    error.data = Some(data);
    error
}
