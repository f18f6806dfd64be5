//! A worker on the fake engine, with a handler that does what its calls say.

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_engine::fake::{Fake, FakePeer, Network};
use ucall_proto::http1::AccessRules;
use ucall_proto::json::Reader;
use ucall_proto::{Call, CallOutcome, Reply, ResultPart, RpcError};
use ucall_server::{
    AnyWorker, CallId, Caller, Deadline, DeferredCalls, Handler, Mailbox, MemoryBudget, Overflow,
    Polled, Procedures, Reservation, RunLimit, Token, Worker, WorkerConfig,
};

/// What has not happened by then, on the clock of the engine, never will.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The same in turns, for work that takes no time on that clock.
const TURNS_MAX: usize = 1_000_000;
/// The longest step in time of [`Harness::turn_until`].
const STEP_MAX: Duration = Duration::from_secs(1);

/// What the procedures of these tests do.
pub enum Procedure {
    Echo,
    Large,
    Later,
    Stream,
}

/// The outcome of a deferred call.
pub type Outcome = Result<Vec<u8>, RpcError>;

pub struct ScriptedHandler {
    pub calls: DeferredCalls<(), Outcome>,
    /// By the text of its id.
    pub deferred: HashMap<Vec<u8>, Token>,
    /// In the order they came.
    pub unfinished: Vec<Token>,
    pub cancelled: Vec<Id>,
    pub cancelled_calls: Vec<CallId>,
    /// The next items of streams.
    pub items: VecDeque<(Token, Overflow, String)>,
    pub paused: Vec<CallId>,
    pub resumed: Vec<CallId>,
    /// Connections with a subscription or a session.
    pub closed: Vec<Id>,
    pub warnings: Vec<String>,
    /// The parts of the next result.
    pub result_parts: Vec<ResultPart>,
    /// What happens between the end of a wait and the turn's look at the clock.
    pub after_wait: Option<Box<dyn FnOnce()>>,
    /// By their tokens.
    callers: HashMap<Token, CallId>,
    /// What deferred calls hold.
    reserved: Reservation,
    /// When this turn began.
    now: Instant,
}

impl ScriptedHandler {
    pub fn new(now: Instant) -> Self {
        Self {
            calls: DeferredCalls::new(10_000, "max_running_calls"),
            deferred: HashMap::new(),
            unfinished: Vec::new(),
            cancelled: Vec::new(),
            cancelled_calls: Vec::new(),
            items: VecDeque::new(),
            paused: Vec::new(),
            resumed: Vec::new(),
            closed: Vec::new(),
            warnings: Vec::new(),
            result_parts: Vec::new(),
            after_wait: None,
            callers: HashMap::new(),
            reserved: Reservation::default(),
            now,
        }
    }

    /// Reserves `bytes` for deferred calls.
    pub fn reserve(&mut self, bytes: usize) {
        self.reserved.resize(bytes, self.calls.budget());
    }
}

impl Handler for ScriptedHandler {
    type Procedure = Procedure;

    fn call(
        &mut self,
        procedure: &Procedure,
        call: &Call<'_>,
        caller: &Caller,
        reply: &mut Reply<'_>,
    ) -> CallOutcome {
        let params = call.params.unwrap_or(b"null");
        match procedure {
            Procedure::Echo => reply.result().extend_from_slice(params),
            Procedure::Large => {
                let mut reader = Reader::new(params);
                reader.enter();
                let len = reader.number().as_i64().unwrap() as usize;
                let out = reply.result();
                out.push(b'"');
                out.resize(out.len() + len, b'x');
                out.push(b'"');
            }
            Procedure::Later | Procedure::Stream => {
                let caller = caller.call_id(call);
                let deadline = Deadline::of(call, None, self.now);
                let token = self.calls.insert(Some(caller), deadline, self.now, ());
                self.unfinished.push(token);
                self.deferred.insert(call.id.unwrap_or_default().to_vec(), token);
                self.callers.insert(token, caller);
                return match procedure {
                    Procedure::Stream => CallOutcome::Stream,
                    Procedure::Later if call.takes_reports() => CallOutcome::Reporting,
                    _ => CallOutcome::Deferred,
                };
            }
        }
        CallOutcome::Done
    }

    fn take_result_parts(&mut self) -> Vec<ResultPart> {
        std::mem::take(&mut self.result_parts)
    }

    fn connection_closed(&mut self, connection: Id) {
        self.closed.push(connection);
    }

    fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.calls.outcomes().set_mailbox(mailbox);
    }

    /// Keeps the calls, so that tests may reply to them late.
    fn cancel(&mut self, connection: Id) {
        self.cancelled.push(connection);
    }

    fn poll_reply(&mut self, text: &mut Vec<u8>) -> Option<(CallId, Polled)> {
        if let Some((token, overflow, value)) = self.items.pop_front() {
            *text = value.into_bytes();
            return Some((self.callers[&token], Polled::Item(overflow)));
        }
        loop {
            let (token, outcome) = self.calls.next_outcome()?;
            if let Some((caller, ())) = self.calls.finish(token, self.now) {
                let polled = outcome.map(|result| *text = result).into();
                let parts = self.take_result_parts();
                return Some((
                    caller?,
                    if parts.is_empty() { polled } else { Polled::Parts(parts) },
                ));
            }
        }
    }

    fn cancel_call(&mut self, call: CallId) {
        self.cancelled_calls.push(call);
    }

    fn pause_stream(&mut self, call: CallId) {
        self.paused.push(call);
    }

    fn resume_stream(&mut self, call: CallId) {
        self.resumed.push(call);
    }

    fn turn_began(&mut self, now: Instant) {
        self.now = now;
    }

    fn turn_ended(&mut self, now: Instant) {
        while let Some((token, deadline)) = self.calls.pop_expired(now) {
            self.calls.push_front(std::iter::once((token, Err(deadline.error()))));
            self.calls.outcomes().wake();
        }
    }

    fn abandon(&mut self) {
        let error = RpcError::new(RpcError::ABORTED, "Aborted");
        let tokens = self.calls.all().into_iter();
        self.calls.push_front(tokens.map(|token| (token, Err(error.clone()))));
    }

    fn deadline(&self) -> Option<Instant> {
        self.calls.next_deadline()
    }

    const HAS_INTERPRETER_LOCK: bool = true;

    fn while_waiting<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let waited = wait();
        if let Some(event) = self.after_wait.take() {
            event();
        }
        waited
    }

    fn run_limit(&self) -> RunLimit {
        self.calls.limit().clone()
    }

    fn memory_budget(&self) -> MemoryBudget {
        self.calls.budget().clone()
    }

    fn warn(&mut self, line: &str) {
        self.warnings.push(line.to_owned());
    }
}

pub struct Harness {
    pub worker: Box<dyn AnyWorker<ScriptedHandler>>,
    pub network: Network,
    pub procedures: Arc<Procedures<Procedure>>,
    pub limit: RunLimit,
}

impl Harness {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(configure: impl FnOnce(&mut WorkerConfig)) -> Self {
        let (engine, network) = Fake::new();
        let procedures = Arc::new(Procedures::new());
        procedures.insert("echo", Procedure::Echo);
        procedures.insert("large", Procedure::Large);
        procedures.insert("later", Procedure::Later);
        procedures.insert("stream", Procedure::Stream);
        let mut config = WorkerConfig::new(AccessRules::new(true, &[], &[]).unwrap());
        configure(&mut config);
        let handler = ScriptedHandler::new(network.now());
        let limit = handler.run_limit();
        let mut worker = Box::new(Worker::new(engine, handler, procedures.clone(), config));
        worker.listen(TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap();
        Self { worker, network, procedures, limit }
    }

    /// The present moment of the engine's clock.
    pub fn now(&self) -> Instant {
        self.network.now()
    }

    /// A turn that takes no time.
    pub fn turn(&mut self) {
        self.worker.turn(Some(self.now())).unwrap();
    }

    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Whether the worker has stopped in a turn that takes no time.
    pub fn has_stopped(&mut self) -> bool {
        self.worker.turn(Some(self.now())).unwrap().stopped
    }

    /// Moves the clock on without a turn meanwhile, as if the thread had waited for a processor.
    /// Then takes as many turns as a sweep needs.
    pub fn advance(&mut self, duration: Duration) {
        self.network.advance(duration);
        self.turns(2);
    }

    /// Takes turns until something holds; returns how long that took. A turn without events lasts
    /// until the worker's next deadline, and no longer than a second.
    pub fn turn_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) -> Duration {
        let (began, mut turns) = (self.now(), 0);
        while !holds(self) {
            turns += 1;
            assert!(self.now() - began < TIME_MAX && turns < TURNS_MAX, "waited in vain");
            self.worker.turn(Some(self.now() + STEP_MAX)).unwrap();
        }
        self.now() - began
    }

    pub fn connect(&mut self) -> FakePeer {
        let peer = self.network.connect();
        self.turn();
        peer
    }

    pub fn stats(&self) -> ucall_server::Stats {
        self.worker.counters().stats()
    }

    /// Replies to a deferred call, as another thread does.
    pub fn complete(&mut self, id: &str, outcome: Outcome) {
        let handler = self.worker.handler_mut();
        handler.calls.outcomes().send(handler.deferred[id.as_bytes()], outcome);
        self.turn();
    }
}

pub fn call(method: &str, params: &str, id: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}"#)
}

pub fn reply(id: &str, result: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{result}}}\n")
}

pub fn post(body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

pub fn text(peer: &FakePeer) -> String {
    String::from_utf8(peer.read()).unwrap()
}
