//! The native procedures of a relay.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::json::Reader;
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{
    Deadline, NativeCall, NativeContext, NativeHandler, NativeModule, NativeOutcome,
    NativeOutcomes, NativeProcedure, Token,
};

use crate::ends::LostCall;
use crate::errors::{out_of_resources, too_long, unavailable};
use crate::long_call::{CallText, SHORT_BYTES_MAX};
use crate::names::{NameProblem, Names};
use crate::options::RelayOptions;
use crate::pick::{Picker, by_hash, param};
use crate::places::{Place, Places};
use crate::request::{CallContext, TraceContext, added_bytes_max, write_call};
use crate::retry_budget::RetryBudget;
use crate::slots::PendingCall;
use crate::stream_turns::StreamTurns;
use crate::upstream::Upstream;

/// Relays that a call may pass. More are a loop.
const HOPS_MAX: u32 = 8;

/// The native procedures of one relay.
#[derive(Debug)]
pub struct RelayModule {
    options: Arc<RelayOptions>,
    procedures: Vec<NativeProcedure>,
    problem: Arc<NameProblem>,
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
        let (procedures, problem) = (procedures.collect(), Arc::default());
        Self { procedures, options: Arc::new(options), problem }
    }

    /// Why none of the upstreams has an address and is healthy, if that is so, for a health check.
    pub fn problem(&self) -> Option<String> {
        self.problem.get()
    }
}

impl NativeModule for RelayModule {
    fn procedures(&self) -> &[NativeProcedure] {
        &self.procedures
    }

    fn handler(&self, outcomes: Arc<NativeOutcomes>, now: Instant) -> Box<dyn NativeHandler> {
        let (options, problem) = (self.options.clone(), self.problem.clone());
        Box::new(RelayHandler::new(options, outcomes, problem, now))
    }
}

/// The upstreams of a relay, as one worker uses them.
pub(crate) struct RelayHandler {
    options: Arc<RelayOptions>,
    names: Names,
    upstreams: Vec<Upstream>,
    picker: Picker,
    budget: RetryBudget,
    /// Where calls are, by the slots of their tokens.
    calls: Places,
    /// Where sockets and attempts to connect are, by the indices of their ids.
    sockets: Places,
    turns: StreamTurns,
    /// Memory for the indices of upstreams.
    candidates: Vec<usize>,
    /// Memory for the text of a call.
    text: CallText,
    /// The document of the calls that begin now, if its memory is shared.
    document: Option<Arc<Vec<u8>>>,
    outcomes: Arc<NativeOutcomes>,
    /// When this turn began.
    now: Instant,
    /// Whether there is something to be done at the end of a turn.
    is_due: bool,
}

/// A connection for a call.
struct Picked {
    upstream: usize,
    connection: u32,
    /// Whether the upstream sends the items of a stream.
    takes_items: bool,
}

impl NativeHandler for RelayHandler {
    fn call(&mut self, _: usize, call: NativeCall<'_>, reply: &mut Reply<'_>) -> CallOutcome {
        self.begin_turn(call.now);
        let (request, deadline) = (call.request, call.deadline);
        let caller = call.caller.own_connection();
        match self.begin(request, deadline, caller, |held_bytes| call.defer(held_bytes)) {
            Ok(outcome) => outcome,
            Err(error) => {
                reply.error(&error);
                CallOutcome::Done
            }
        }
    }

    fn share(&mut self, document: Option<&Arc<Vec<u8>>>) {
        self.document = document.cloned();
        // A call that was refused keeps none of it.
        self.text.clear();
    }

    fn cancel(&mut self, token: Token, now: Instant) {
        self.is_due = true;
        let timeout = self.options.timeout;
        if let Some((upstream, place)) = self.upstream_of(token) {
            upstream.give_up(place, token, timeout, now);
            self.take_turns_again(place);
        }
    }

    fn set_paused(&mut self, token: Token, is_paused: bool) {
        self.is_due = true;
        if let Some((upstream, place)) = self.upstream_of(token) {
            upstream.set_paused(place.connection, token, is_paused);
            self.take_turns_again(place);
        }
    }

    fn connected(&mut self, attempt: Id, socket: io::Result<Id>) {
        self.is_due = true;
        let now = self.now;
        let Some(place) = self.place_of(attempt) else { return };
        if let Ok(socket) = socket {
            self.sockets.set(socket.index as usize, place);
        }
        if let Some(upstream) = self.upstreams.get_mut(place.upstream) {
            upstream.connected(place.connection, socket, now);
        }
    }

    fn received(&mut self, socket: Id, bytes: &mut [u8], now: Instant) {
        (self.now, self.is_due) = (now, true);
        let Some(place) = self.place_of(socket) else { return };
        let Some(upstream) = self.upstreams.get_mut(place.upstream) else { return };
        if upstream.is_stream(place.connection)
            && (upstream.has_backlog(place.connection) || !self.turns.take(place, bytes.len()))
        {
            return upstream.keep(place.connection, bytes, now);
        }
        self.read(place, bytes);
    }

    fn sent(&mut self, socket: Id) {
        self.is_due = true;
        let Some(place) = self.place_of(socket) else { return };
        if let Some(upstream) = self.upstreams.get_mut(place.upstream) {
            upstream.sent(place.connection);
        }
    }

    fn disconnected(&mut self, socket: Id, error: io::Error) {
        self.is_due = true;
        let Some(place) = self.place_of(socket) else { return };
        self.read_backlog(place);
        if let Some(upstream) = self.upstreams.get_mut(place.upstream) {
            upstream.disconnected(place.connection, &error);
        }
    }

    fn turn_ended(&mut self, now: Instant, context: &mut dyn NativeContext) {
        (self.now, self.is_due) = (now, false);
        self.names.poll(&mut self.upstreams, &self.outcomes, now);
        while let Some(place) = self.turns.next() {
            let is_paused = |it: &Upstream| it.is_paused(place.connection);
            if !self.upstreams.get(place.upstream).is_some_and(is_paused) {
                let bytes = self.read_backlog(place);
                self.turns.count(bytes);
            }
        }
        self.turns.end_turn();
        // Each call is passed on a bounded number of times.
        loop {
            let mut lost = Vec::new();
            for upstream in &mut self.upstreams {
                upstream.advance(now, context, &mut self.sockets, &mut lost);
            }
            if lost.is_empty() {
                break;
            }
            lost.into_iter().for_each(|lost| self.retry(lost));
        }
        let mut upstreams = self.upstreams.iter_mut();
        if self.options.health.is_some() && upstreams.any(Upstream::take_health_change) {
            self.names.update_problem(&self.upstreams);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        match self.is_due || self.turns.is_waiting() {
            true => Some(self.now),
            false => {
                let upstreams = self.upstreams.iter().filter_map(Upstream::deadline);
                upstreams.chain(self.names.deadline()).min()
            }
        }
    }
}

impl RelayHandler {
    pub(crate) fn new(
        options: Arc<RelayOptions>,
        outcomes: Arc<NativeOutcomes>,
        problem: Arc<NameProblem>,
        now: Instant,
    ) -> Self {
        let (names, upstreams) = Names::new(&options, problem, now);
        Self {
            names,
            upstreams,
            // Workers that pick in the same order would overload the same upstreams.
            picker: Picker::new(u64::from(std::process::id()).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            budget: RetryBudget::new(),
            calls: Places::default(),
            sockets: Places::default(),
            turns: StreamTurns::default(),
            candidates: Vec::new(),
            text: CallText::default(),
            document: None,
            now,
            is_due: false,
            outcomes,
            options,
        }
    }

    #[cfg(any(test, feature = "harness"))]
    pub(crate) fn is_resolving(&self) -> bool {
        self.names.is_busy()
    }

    /// Calls that begin from now on arrived at `now`.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        (self.now, self.is_due) = (now, true);
    }

    /// Reads what has arrived on a connection.
    fn read(&mut self, place: Place, bytes: &mut [u8]) {
        let outcomes = &self.outcomes;
        if let Some(upstream) = self.upstreams.get_mut(place.upstream) {
            let reply = |token, outcome| outcomes.send(token, outcome);
            upstream.received(place.connection, bytes, self.now, reply);
        }
    }

    /// Reads what waits at the connection of a stream. Returns its bytes.
    fn read_backlog(&mut self, place: Place) -> usize {
        let upstream = self.upstreams.get_mut(place.upstream);
        let mut backlog = upstream.map(|it| it.take_backlog(place.connection)).unwrap_or_default();
        if !backlog.is_empty() {
            self.read(place, &mut backlog);
        }
        backlog.len()
    }

    /// A stream does not wait for its caller any more, so it waits for its turn again.
    fn take_turns_again(&mut self, place: Place) {
        let Some(upstream) = self.upstreams.get(place.upstream) else { return };
        if upstream.has_backlog(place.connection) && !upstream.is_paused(place.connection) {
            self.turns.enqueue(place);
        }
    }

    /// Where a socket, or an attempt to connect, is.
    fn place_of(&self, id: Id) -> Option<Place> {
        let place = self.sockets.get(id.index as usize)?;
        self.upstreams.get(place.upstream)?.has(place.connection, id).then_some(place)
    }

    /// The upstream that a call was passed to, and where it was there.
    fn upstream_of(&mut self, token: Token) -> Option<(&mut Upstream, Place)> {
        let place = self.calls.get(token.slot())?;
        Some((self.upstreams.get_mut(place.upstream)?, place))
    }

    /// Passes a call to a connection. `defer` defers it, and reserves that many bytes of memory.
    pub(crate) fn begin(
        &mut self,
        request: &Call<'_>,
        deadline: Option<Deadline>,
        caller: Option<Id>,
        defer: impl FnOnce(usize) -> Result<Token, RpcError>,
    ) -> Result<CallOutcome, RpcError> {
        let (now, options) = (self.now, self.options.clone());
        let (hops, trace) = (next_hop(request)?, TraceContext::of(request));
        let method = options.rewrite.method(request.method)?;
        let params = options.rewrite.params(request.params)?;
        self.text.clear();
        let added_bytes = added_bytes_max(trace.as_deref());
        let params_bytes = params.as_deref().map_or(0, <[u8]>::len);
        if method.len() + params_bytes > SHORT_BYTES_MAX {
            self.text.write_long(&method, params, self.document.as_ref());
        } else {
            write_call(&mut self.text.head, &method, params.as_deref(), added_bytes);
        }
        if self.text.len() + added_bytes > options.request_bytes_max {
            self.text.clear();
            return Err(too_long(options.request_bytes_max));
        }
        let takes_items = request.takes_items();
        let value = options.hash_param.as_ref().and_then(|name| param(request.params, name));
        let picked = self.pick(value, self.text.len(), takes_items, caller, 0)?;
        let keeps_line_breaks = request.head.is_some() && !takes_items;
        let takes_items = picked.takes_items;
        let context = CallContext { hops, deadline, trace, takes_items, keeps_line_breaks };
        let upstream = &mut self.upstreams[picked.upstream];
        if request.id.is_none() {
            upstream.notify(picked.connection, &mut self.text, &context, caller, now);
            return Ok(CallOutcome::Done);
        }
        let token = defer(params_bytes)?;
        let is_idempotent = options.is_idempotent(&request.method.unescaped());
        let repeatable = is_idempotent.then(|| Box::new(self.text.clone()));
        let (started, tried) = (now, 1 << picked.upstream);
        let call = PendingCall {
            token,
            context,
            caller,
            share: None,
            started,
            tried,
            is_repeated: false,
            repeatable,
        };
        let place = upstream.call(picked.connection, call, &mut self.text);
        self.calls.set(token.slot(), place);
        self.budget.earn();
        Ok(if takes_items { CallOutcome::Stream } else { CallOutcome::Deferred })
    }

    /// A connection for a call, of none of the upstreams that it was passed to before. If an
    /// upstream takes no more calls, another gets it, unless `value`, that of a param, picks one.
    fn pick(
        &mut self,
        value: Option<&[u8]>,
        text_bytes: usize,
        takes_items: bool,
        caller: Option<Id>,
        tried: u64,
    ) -> Result<Picked, RpcError> {
        let (now, upstreams) = (self.now, &mut self.upstreams);
        if let [upstream] = &mut upstreams[..]
            && tried == 0
            && upstream.admits(now)
        {
            let takes_items = takes_items && !upstream.is_http();
            let found = upstream.connection(&self.options, text_bytes, takes_items, caller, now)?;
            return Ok(Picked { upstream: 0, connection: found, takes_items });
        }
        self.candidates.clear();
        let untried = (0..upstreams.len()).filter(|index| tried & (1 << *index) == 0);
        let mut best = (true, true);
        for index in untried.clone().filter(|index| upstreams[*index].admits(now)) {
            let rank = (!upstreams[index].is_healthy(), upstreams[index].is_standby());
            if rank < best {
                self.candidates.clear();
                best = rank;
            }
            if rank == best {
                self.candidates.push(index);
            }
        }
        if self.candidates.is_empty() {
            self.candidates.extend(untried.filter(|index| upstreams[*index].admits_another(now)));
        }
        let stays = |index: &usize| !upstreams[*index].is_draining(now);
        if self.candidates.iter().any(stays) {
            self.candidates.retain(stays);
        }
        if self.candidates.is_empty() {
            return Err(unavailable(false, last_reason(upstreams)));
        }
        let mut full = None;
        loop {
            let picked = match value {
                Some(value) => {
                    by_hash(&self.candidates, value, |index| upstreams[index].hash_name())
                }
                None => {
                    let outstanding = |index: usize| upstreams[index].outstanding();
                    self.picker.least_of_two(&self.candidates, outstanding)
                }
            };
            let Some(index) = picked else {
                return Err(full.unwrap_or_else(|| unavailable(false, last_reason(upstreams))));
            };
            let upstream = &mut upstreams[index];
            let takes_items = takes_items && !upstream.is_http();
            match upstream.connection(&self.options, text_bytes, takes_items, caller, now) {
                Ok(connection) => {
                    return Ok(Picked { upstream: index, connection, takes_items });
                }
                Err(error) => full = Some(error),
            }
            match value {
                Some(_) => self.candidates.clear(),
                None => self.candidates.retain(|candidate| *candidate != index),
            }
        }
    }

    /// Passes a call of a failed connection to another, or replies that it has failed.
    fn retry(&mut self, lost: LostCall) {
        let LostCall { mut call, text, was_sent, reason, is_shortage } = lost;
        let (token, caller) = (call.token, call.caller);
        call.share = None;
        let error = if is_shortage && !was_sent {
            out_of_resources(&reason)
        } else {
            unavailable(was_sent, &reason)
        };
        // The only upstream may answer on another connection.
        let present = self.upstreams.iter().filter(|upstream| upstream.is_present()).count();
        let is_only = present == 1 && !call.is_repeated;
        let text = text.filter(|_| !is_shortage && self.budget.spend());
        let (tried, takes_items) = (if is_only { 0 } else { call.tried }, call.context.takes_items);
        let picked = text.and_then(|text| {
            let picked = self.pick(None, text.len(), takes_items, caller, tried).ok()?;
            Some((text, picked))
        });
        let Some((mut text, picked)) = picked else {
            return self.outcomes.send(token, NativeOutcome::Reply(Err(error)));
        };
        call.tried |= 1 << picked.upstream;
        (call.is_repeated, call.started) = (true, self.now);
        if was_sent {
            call.repeatable = Some(text.clone());
        }
        let place = self.upstreams[picked.upstream].call(picked.connection, call, &mut text);
        self.calls.set(token.slot(), place);
    }
}

/// Why an upstream has failed last.
fn last_reason(upstreams: &[Upstream]) -> &str {
    let mut reasons = upstreams.iter().map(Upstream::reason);
    reasons.find(|reason| !reason.is_empty()).unwrap_or_default()
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
