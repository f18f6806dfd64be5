//! A relay without a worker, sockets or a clock: for tests, and for fuzzing.
//!
//! The caller of the harness is all others: it makes calls, moves the time on, and is the network
//! and the upstreams.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ucall_engine::{Id, SockAddr};
use ucall_proto::json::Reader;
use ucall_proto::{Call, CallNumber, CallOutcome, MemoryBudget, Meta, Reservation, RpcError};
use ucall_server::{
    CallMetrics, Deadline, DeferredCalls, NativeContext, NativeHandler, NativeOutcome, Token,
};

use crate::names::NameProblem;
use crate::options::RelayOptions;
use crate::procedures::RelayHandler;

/// A relay whose upstreams and time the caller provides.
pub struct RelayHarness {
    handler: RelayHandler,
    calls: DeferredCalls<(), NativeOutcome>,
    network: FakeNetwork,
    timeout: Duration,
    problem: Arc<NameProblem>,
    /// What the last call was a part of.
    document: Weak<Vec<u8>>,
    /// The connection that calls come from.
    pub caller: Option<Id>,
    /// The time.
    pub now: Instant,
}

/// The sockets of a relay.
struct FakeNetwork {
    sockets: BTreeMap<u32, FakeSocket>,
    free: BTreeSet<u32>,
    generation: u32,
    budget: MemoryBudget,
    held_bytes_max: usize,
    sockets_max: usize,
    warnings: Vec<String>,
    advanced: usize,
    /// All that was sent.
    sent: Vec<u8>,
}

/// A socket that the relay has, or connects.
#[derive(Debug)]
pub struct FakeSocket {
    id: Id,
    /// The address, as text.
    pub address: String,
    /// Whether it is connected.
    pub is_open: bool,
    /// What the relay has sent and the upstream has not taken.
    pub sent: Vec<u8>,
    /// Whether a send is in flight, so that the relay cannot send.
    pub is_sending: bool,
    /// Whether the relay reads.
    pub is_paused: bool,
}

impl RelayHarness {
    /// A relay with these options. It holds at most `held_bytes_max` of memory and `sockets_max`
    /// sockets.
    pub fn new(options: RelayOptions, held_bytes_max: usize, sockets_max: usize) -> Self {
        let (calls, now) = (DeferredCalls::new(10_000, "max_running_calls"), Instant::now());
        let (timeout, options) = (options.timeout, Arc::new(options));
        let problem = Arc::<NameProblem>::default();
        let outcomes = calls.outcomes().clone();
        let handler = RelayHandler::new(options, outcomes, problem.clone(), now);
        let network = FakeNetwork {
            sockets: BTreeMap::new(),
            free: BTreeSet::new(),
            generation: 0,
            budget: MemoryBudget::default(),
            held_bytes_max,
            sockets_max,
            warnings: Vec::new(),
            advanced: 0,
            sent: Vec::new(),
        };
        let document = Weak::new();
        Self { handler, calls, network, timeout, problem, document, caller: None, now }
    }

    /// Calls `up.NAME` with the text of params and of `_meta`. Returns the token of the call, which
    /// [`RelayHarness::replies`] has later; or the error that it was refused with.
    ///
    /// # Errors
    /// That of the relay.
    pub fn call(&mut self, method: &str, params: &str, meta: &str) -> Result<Token, RpcError> {
        let token = self.begin(method, params, meta, Some(b"1"))?;
        Ok(token.unwrap_or_else(|| unreachable!("it is no notification")))
    }

    /// Calls `up.NAME` without an id.
    ///
    /// # Errors
    /// That of the relay.
    pub fn notify(&mut self, method: &str, params: &str) -> Result<(), RpcError> {
        self.begin(method, params, "{}", None).map(|token| assert_eq!(token, None))
    }

    fn begin(
        &mut self,
        method: &str,
        params: &str,
        meta: &str,
        id: Option<&[u8]>,
    ) -> Result<Option<Token>, RpcError> {
        let quoted = format!("\"{method}\"");
        // The server shares what it has received, of which the params are a part.
        let document = Some(Arc::new([b" ", params.as_bytes(), b" "].concat()));
        let params = document.as_deref().and_then(|it| it.get(1..=params.len()));
        let number = CallNumber { request: 0, item: 0 };
        let request = Call {
            method: Reader::new(quoted.as_bytes()).string(),
            params,
            members: None,
            id,
            meta: Some(Meta(meta.as_bytes())),
            number,
            head: None,
            session: None,
            mcp: None,
        };
        let (calls, now, mut token) = (&mut self.calls, self.now, None);
        let deadline = Deadline::of(&request, Some(self.timeout), now);
        self.handler.begin_turn(now);
        self.document = document.as_ref().map(Arc::downgrade).unwrap_or_default();
        self.handler.share(document.as_ref());
        let begun = self.handler.begin(&request, deadline, self.caller, |_| {
            let inserted = calls.insert(None, deadline, now, ());
            token = Some(inserted);
            Ok(inserted)
        });
        self.handler.share(None);
        let outcome = begun?;
        let is_stream = request.takes_items();
        assert!(match outcome {
            CallOutcome::Stream => is_stream,
            CallOutcome::Done => id.is_none(),
            outcome => outcome == CallOutcome::Deferred,
        });
        Ok(token)
    }

    /// Ends a turn: calls whose time is over are late.
    pub fn end_turn(&mut self) {
        while let Some((token, deadline)) = self.calls.pop_expired(self.now) {
            self.handler.cancel(token, self.now);
            self.calls.outcomes().push(token, NativeOutcome::Reply(Err(deadline.error())));
        }
        self.handler.turn_ended(self.now, &mut self.network);
    }

    /// Takes turns until the names that are due are resolved.
    pub fn resolve_names(&mut self) {
        self.end_turn();
        while self.handler.is_resolving() {
            std::thread::yield_now();
            self.end_turn();
        }
    }

    /// What a health check says.
    pub fn problem(&self) -> Option<String> {
        self.problem.get()
    }

    /// The caller of a call does not want its reply any more.
    pub fn cancel(&mut self, token: Token) {
        if self.calls.remove(token).is_some() {
            self.handler.cancel(token, self.now);
        }
    }

    /// The caller of a stream is slow, or is not any more.
    pub fn set_paused(&mut self, token: Token, is_paused: bool) {
        self.handler.set_paused(token, is_paused);
    }

    /// The replies and items since the last time, of calls that wait for them.
    pub fn replies(&mut self) -> Vec<(Token, NativeOutcome)> {
        let mut replies = Vec::new();
        while let Some((token, outcome)) = self.calls.next_outcome() {
            let is_wanted = match &outcome {
                NativeOutcome::Item(_) => self.calls.contains(token),
                NativeOutcome::Reply(_) => self.calls.finish(token, self.now).is_some(),
            };
            if is_wanted {
                replies.push((token, outcome));
            }
        }
        replies
    }

    /// The sockets, by their numbers.
    pub fn sockets(&mut self) -> &mut BTreeMap<u32, FakeSocket> {
        &mut self.network.sockets
    }

    /// The attempt to connect a socket has ended.
    pub fn connected(&mut self, socket: u32, result: io::Result<()>) {
        let is_open = self.network.sockets.get(&socket).is_none_or(|entry| entry.is_open);
        let Some(mut entry) = (!is_open).then(|| self.network.remove(socket)).flatten() else {
            return;
        };
        let (attempt, is_open) = (entry.id, result.is_ok());
        let result = result.map(|()| {
            entry.is_open = is_open;
            self.network.insert(entry)
        });
        self.handler.connected(attempt, result);
    }

    /// Bytes have arrived on a socket.
    pub fn receive(&mut self, socket: u32, bytes: &[u8]) {
        if let Some(entry) = self.network.sockets.get(&socket).filter(|entry| entry.is_open) {
            self.handler.received(entry.id, &mut bytes.to_vec(), self.now);
        }
    }

    /// The send on a socket has ended.
    pub fn finish_send(&mut self, socket: u32) {
        if let Some(entry) = self.network.sockets.get_mut(&socket) {
            entry.is_sending = false;
            self.handler.sent(entry.id);
        }
    }

    /// The upstream has closed a socket.
    pub fn disconnect(&mut self, socket: u32, error: io::Error) {
        let is_open = self.network.sockets.get(&socket).is_some_and(|entry| entry.is_open);
        if let Some(entry) = is_open.then(|| self.network.remove(socket)).flatten() {
            self.handler.disconnected(entry.id, error);
        }
    }

    /// When [`RelayHarness::end_turn`] is due, even without events.
    pub fn deadline(&self) -> Option<Instant> {
        self.handler.deadline().into_iter().chain(self.calls.next_deadline()).min()
    }

    /// Calls that wait for a reply.
    pub fn waiting(&self) -> usize {
        self.calls.count()
    }

    /// Whether the relay keeps the document of the last call.
    pub fn keeps_document(&self) -> bool {
        self.document.strong_count() > 0
    }

    /// Bytes that are reserved.
    pub fn held_bytes(&self) -> usize {
        self.network.budget.bytes()
    }

    /// All that the relay has sent.
    pub fn sent(&self) -> &[u8] {
        &self.network.sent
    }

    /// How often connections were advanced.
    pub fn advanced(&self) -> usize {
        self.network.advanced
    }

    /// The lines that were logged since the last time.
    pub fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.network.warnings)
    }
}

impl FakeNetwork {
    /// Gives the socket the lowest free number, as engines do.
    fn insert(&mut self, mut socket: FakeSocket) -> Id {
        let index = self.free.pop_first().unwrap_or(self.sockets.len() as u32);
        self.generation += 1;
        socket.id = Id { index, generation: self.generation };
        let id = socket.id;
        self.sockets.insert(index, socket);
        id
    }

    fn remove(&mut self, index: u32) -> Option<FakeSocket> {
        let removed = self.sockets.remove(&index)?;
        self.free.insert(index);
        Some(removed)
    }

    fn find(&mut self, id: Id) -> Option<&mut FakeSocket> {
        self.sockets.get_mut(&id.index).filter(|socket| socket.id == id)
    }
}

impl NativeContext for FakeNetwork {
    fn connect(&mut self, address: &SockAddr) -> io::Result<Id> {
        if self.sockets.len() >= self.sockets_max {
            return Err(ucall_engine::too_many_descriptors());
        }
        Ok(self.insert(FakeSocket {
            id: Id { index: 0, generation: 0 },
            address: format!("{:?}", address.as_socket()),
            is_open: false,
            sent: Vec::new(),
            is_sending: false,
            is_paused: false,
        }))
    }

    fn send(&mut self, socket: Id, bytes: &mut Vec<u8>) -> bool {
        let Some(socket) = self.find(socket).filter(|it| !it.is_sending) else { return false };
        socket.sent.extend_from_slice(bytes);
        self.sent.append(bytes);
        true
    }

    fn is_sending(&self, socket: Id) -> bool {
        let found = self.sockets.get(&socket.index).filter(|it| it.id == socket);
        found.is_some_and(|it| it.is_sending)
    }

    fn set_paused(&mut self, socket: Id, is_paused: bool) {
        if let Some(socket) = self.find(socket) {
            socket.is_paused = is_paused;
        }
    }

    fn close(&mut self, socket: Id) {
        if self.find(socket).is_some() {
            self.remove(socket.index);
        }
    }

    /// A connection reserves memory whenever it is advanced.
    fn reserve(&mut self, reservation: &mut Reservation, bytes: usize) -> bool {
        self.advanced += 1;
        reservation.resize(bytes, &self.budget);
        bytes == 0 || self.budget.bytes() <= self.held_bytes_max
    }

    fn metrics(&self) -> Option<&Arc<CallMetrics>> {
        None
    }

    fn warn(&mut self, line: String) {
        self.warnings.push(line);
    }
}
