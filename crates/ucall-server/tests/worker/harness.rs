//! A worker on the fake engine, with a handler that does what its calls say.

use std::collections::{HashMap, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_engine::fake::{Fake, FakePeer, Network};
use ucall_proto::http1::AccessRules;
use ucall_proto::json::Reader;
use ucall_proto::{Call, CallOutcome, Reply, RpcError};
use ucall_server::{
    CallId, Caller, DeferredCalls, Handler, Mailbox, MemoryBudget, Overflow, Polled, Procedures,
    Reservation, RunLimit, Token, Worker, WorkerConfig,
};

/// What has not happened by then never will.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

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
    /// The outcome of a call whose deadline passes in this turn.
    pub expired: Option<(Token, Outcome)>,
    /// What happens between the end of a wait and the turn's look at the clock.
    pub after_wait: Option<Box<dyn FnOnce()>>,
    /// By their tokens.
    callers: HashMap<Token, CallId>,
    /// What deferred calls hold.
    reserved: Reservation,
}

impl Default for ScriptedHandler {
    fn default() -> Self {
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
            expired: None,
            after_wait: None,
            callers: HashMap::new(),
            reserved: Reservation::default(),
        }
    }
}

impl ScriptedHandler {
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
                let token = self.calls.insert(Some(caller), None, Instant::now(), ());
                self.unfinished.push(token);
                self.deferred.insert(call.id.unwrap_or_default().to_vec(), token);
                self.callers.insert(token, caller);
                return match procedure {
                    Procedure::Stream => CallOutcome::Stream,
                    _ => CallOutcome::Deferred,
                };
            }
        }
        CallOutcome::Done
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
            if let Some((caller, ())) = self.calls.finish(token, Instant::now()) {
                return Some((caller?, outcome.map(|result| *text = result).into()));
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

    fn turn_ended(&mut self, _now: Instant) {
        self.calls.push_front(self.expired.take().into_iter());
    }

    const WAITING_COSTS: bool = true;

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
    pub worker: Worker<Fake, ScriptedHandler>,
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
        let handler = ScriptedHandler::default();
        let limit = handler.run_limit();
        let mut worker = Worker::new(engine, handler, procedures.clone(), config);
        worker.listen(TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
        Self { worker, network, procedures, limit }
    }

    pub fn turn(&mut self) {
        self.worker.turn(Some(Instant::now())).unwrap();
    }

    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Takes turns until something holds.
    pub fn turn_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        let until = Instant::now() + TEST_TIMEOUT;
        while !holds(self) {
            assert!(Instant::now() < until, "waited in vain");
            std::thread::sleep(Duration::from_millis(5));
            self.turn();
        }
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
