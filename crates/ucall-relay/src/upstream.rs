//! One upstream of a relay: its connections, and the choice of one for a call.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_proto::RpcError;
use ucall_server::{Circuit, NativeContext, NativeOutcome, Shares, Token, UpstreamMetrics};

use crate::breaker::{Breaker, BreakerChange};
use crate::connection::{Connection, SHARED_BYTES_MAX, Turn, calls_max};
use crate::connections::Connections;
use crate::ends::{ConnectionEnd, GivenUp, LostCall};
use crate::errors::overloaded;
use crate::health::HealthCheck;
use crate::long_call::CallText;
use crate::options::{Destination, RelayOptions, UpstreamAddress};
use crate::places::{Place, Places};
use crate::request::CallContext;
use crate::slots::PendingCall;

/// How long other upstreams are preferred to one that ends: servers of this project serve so long,
/// also those connections that come meanwhile.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// An upstream that gives no sign between calls that were given up is silent across such a pause.
const SHORT_PAUSE: Duration = Duration::from_secs(1);

/// The key of the connection of a health check.
const CHECK: u32 = u32::MAX;

/// One upstream, as one worker uses it.
#[derive(Debug)]
pub(crate) struct Upstream {
    /// Its place among the upstreams of the relay.
    index: usize,
    address: UpstreamAddress,
    /// Which name it has, if it has one.
    name: Option<usize>,
    destination: Destination,
    socket_address: Option<SocketAddr>,
    /// What it is picked by if a param picks: addresses of one name differ.
    hash_name: String,
    /// Whether it takes calls only if no other does: its name has addresses of IPv4, too.
    is_standby: bool,
    /// Whether its name has this address no more, so that it takes no calls.
    is_removed: bool,
    /// Whether it has failed since the last time.
    has_failed: bool,
    connections: Connections,
    shares: Shares,
    breaker: Breaker,
    health: Option<Box<HealthCheck>>,
    /// Whether it has become healthy or unhealthy since the last time.
    has_health_changed: bool,
    reply_bytes_max: usize,
    /// Since when it has sent nothing, while calls waited or others came within [`SHORT_PAUSE`].
    silent_since: Instant,
    /// When a call was last given up.
    gave_up_at: Option<Instant>,
    /// When it last said that it ends.
    drains_since: Option<Instant>,
    /// Why it has failed last.
    reason: String,
    /// Lines to be logged.
    warnings: Vec<String>,
    /// Failures that are not in the metrics yet.
    failures: u64,
    /// Set in the first turn, if the server has metrics.
    metrics: Option<UpstreamMetrics>,
}

impl Upstream {
    pub(crate) fn new(
        index: usize,
        address: UpstreamAddress,
        options: &RelayOptions,
        now: Instant,
    ) -> Self {
        let check = |options| Box::new(HealthCheck::new(options, now));
        Self {
            index,
            hash_name: address.name.clone(),
            address,
            name: None,
            destination: Destination::Resolving,
            socket_address: None,
            is_standby: false,
            is_removed: false,
            has_failed: false,
            connections: Connections::default(),
            shares: Shares::default(),
            breaker: Breaker::new(options.failures_max),
            health: options.health.clone().map(check),
            has_health_changed: false,
            reply_bytes_max: options.reply_bytes_max,
            silent_since: now,
            gave_up_at: None,
            drains_since: None,
            reason: String::new(),
            warnings: Vec::new(),
            failures: 0,
            metrics: None,
        }
    }

    pub(crate) fn address(&self) -> &UpstreamAddress {
        &self.address
    }

    /// What it is picked by if a param picks.
    pub(crate) fn hash_name(&self) -> &str {
        &self.hash_name
    }

    /// Sets the index of its name, and where it is.
    pub(crate) fn set_name(&mut self, name: Option<usize>, destination: Destination) {
        (self.name, self.destination) = (name, destination);
    }

    pub(crate) fn name(&self) -> Option<usize> {
        self.name
    }

    pub(crate) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// The address that was found for its name.
    pub(crate) fn socket_address(&self) -> Option<SocketAddr> {
        self.socket_address
    }

    /// Sets the address that was found for its name.
    pub(crate) fn set_address(&mut self, address: SocketAddr, is_standby: bool) {
        if matches!(self.destination, Destination::Unknown(_)) {
            self.warnings.push(format!("relay: {} has an address now", self.address.label));
        }
        self.destination = Destination::At(address.into());
        (self.socket_address, self.is_standby) = (Some(address), is_standby);
        self.hash_name = format!("{} {address}", self.address.name);
        self.connections.change_all(|_| ());
    }

    /// Its name has not been resolved; an address that is known stays.
    pub(crate) fn set_unknown(&mut self, reason: &str) {
        if matches!(self.destination, Destination::At(_)) {
            return;
        }
        let reason = format!("it has no address: {reason}");
        if self.reason != reason {
            self.warnings.push(format!("relay: {}: {reason}", self.address.label));
        }
        self.destination = Destination::Unknown(reason.clone());
        self.reason = reason;
        self.connections.change_all(|_| ());
    }

    /// Its name has this address no more, or has it again.
    pub(crate) fn set_removed(&mut self, is_removed: bool) {
        if is_removed && !self.is_removed {
            self.connections.change_all(Connection::retire);
        }
        self.is_removed = is_removed;
    }

    /// Whether it is removed and has ended its calls.
    pub(crate) fn is_free(&self) -> bool {
        let is_checked = self.health.as_ref().is_some_and(|health| health.id().is_some());
        self.is_removed && self.connections.is_empty() && !is_checked
    }

    /// What health checks say, if there are any.
    pub(crate) fn is_healthy(&self) -> bool {
        self.health.as_ref().is_none_or(|health| health.is_healthy())
    }

    /// Whether that has changed since the last time.
    pub(crate) fn take_health_change(&mut self) -> bool {
        std::mem::take(&mut self.has_health_changed)
    }

    /// Whether it takes calls.
    pub(crate) fn is_present(&self) -> bool {
        !self.is_removed && !matches!(self.destination, Destination::Unknown(_))
    }

    /// Whether other upstreams of its name come first.
    pub(crate) fn is_standby(&self) -> bool {
        self.is_standby
    }

    /// Whether it has failed since the last time.
    pub(crate) fn take_has_failed(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Why it has failed last.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the circuit breaker lets a call begin.
    pub(crate) fn admits(&self, now: Instant) -> bool {
        self.is_present() && self.breaker.admits(now)
    }

    /// Whether it lets another begin beside a probe, if no other upstream takes the call.
    pub(crate) fn admits_another(&self, now: Instant) -> bool {
        self.is_present() && self.breaker.admits_another(now)
    }

    /// Whether it has said that it ends, so that calls should go to another.
    pub(crate) fn is_draining(&self, now: Instant) -> bool {
        self.drains_since.is_some_and(|since| now < since + DRAIN_TIME)
    }

    /// Calls that it has not answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.connections.outstanding()
    }

    /// The key of a connection for one more call with a text of `text_bytes`, perhaps a new one. A
    /// stream and a long call have one of their own.
    ///
    /// # Errors
    /// The limit that the call is past.
    pub(crate) fn connection(
        &mut self,
        options: &RelayOptions,
        text_bytes: usize,
        takes_items: bool,
        caller: Option<Id>,
        now: Instant,
    ) -> Result<u32, RpcError> {
        if self.outstanding() >= options.outstanding_max {
            return Err(overloaded("max_outstanding", options.outstanding_max));
        }
        let max = options.connection_outstanding_max;
        if caller.is_some_and(|caller| self.shares.calls(caller) >= max) {
            return Err(overloaded("max_connection_outstanding", max));
        }
        let connections_max = options.outstanding_max / calls_max(self.address.is_http());
        let is_private = takes_items || text_bytes > SHARED_BYTES_MAX;
        let is_free = |it: &Connection| !is_private || it.is_unused();
        match self.connections.find_available(is_free) {
            Some(key) => Ok(key),
            None if is_private || self.connections.shared() <= connections_max => {
                let connection = Connection::new(&self.address, options.reply_bytes_max, now);
                Ok(self.connections.insert(connection))
            }
            None => Err(overloaded("max_outstanding", options.outstanding_max)),
        }
    }

    /// Passes a call to a connection. Returns where it is.
    pub(crate) fn call(&mut self, key: u32, mut call: PendingCall, text: &mut CallText) -> Place {
        let now = call.started;
        call.share = call.caller.map(|caller| self.shares.take(caller));
        self.watch_silence(now);
        let slot = self.connections.change(key, |connection| connection.call(call, text));
        self.breaker.begin(now);
        Place { upstream: self.index, connection: key, slot: slot.unwrap_or_default() }
    }

    /// A call begins: a silence before the first one means nothing.
    fn watch_silence(&mut self, now: Instant) {
        if self.outstanding() == 0 && self.gave_up_at.is_none_or(|at| at + SHORT_PAUSE < now) {
            self.silent_since = now;
        }
    }

    /// Passes a notification to a connection.
    pub(crate) fn notify(
        &mut self,
        key: u32,
        text: &mut CallText,
        context: &CallContext,
        caller: Option<Id>,
        now: Instant,
    ) {
        self.watch_silence(now);
        let share = caller.map(|caller| self.shares.take(caller));
        self.connections.change(key, |connection| connection.notify(text, context, share, now));
    }

    pub(crate) fn is_http(&self) -> bool {
        self.address.is_http()
    }

    /// The health check, if this is its key.
    fn check(&mut self, key: u32) -> Option<&mut HealthCheck> {
        self.health.as_deref_mut().filter(|_| key == CHECK)
    }

    /// Whether the connection has this socket, or connects by this attempt.
    pub(crate) fn has(&self, key: u32, id: Id) -> bool {
        if key == CHECK {
            return self.health.as_ref().is_some_and(|health| health.id() == Some(id));
        }
        self.connections.get(key).is_some_and(|connection| connection.id() == Some(id))
    }

    /// Pauses or resumes a stream, if it is there.
    pub(crate) fn set_paused(&mut self, key: u32, token: Token, is_paused: bool) {
        self.connections.change(key, |connection| connection.set_paused(token, is_paused));
    }

    /// An attempt to connect has ended.
    pub(crate) fn connected(&mut self, key: u32, socket: io::Result<Id>, now: Instant) {
        if let Some(health) = self.check(key) {
            return health.connected(socket);
        }
        self.connections.change(key, |connection| connection.connected(socket, now));
    }

    /// Whether the connection has a stream for itself.
    pub(crate) fn is_stream(&self, key: u32) -> bool {
        self.connections.get(key).is_some_and(Connection::is_stream)
    }

    /// Whether the caller of the connection's stream is slow.
    pub(crate) fn is_paused(&self, key: u32) -> bool {
        self.connections.get(key).is_some_and(Connection::is_paused)
    }

    /// Whether something that has arrived waits to be read.
    pub(crate) fn has_backlog(&self, key: u32) -> bool {
        self.connections.get(key).is_some_and(|connection| !connection.backlog.is_empty())
    }

    /// Keeps what has arrived until it is read.
    pub(crate) fn keep(&mut self, key: u32, bytes: &[u8], now: Instant) {
        self.silent_since = now;
        self.connections.change(key, |connection| connection.keep(bytes, now));
    }

    /// What waits to be read.
    pub(crate) fn take_backlog(&mut self, key: u32) -> Vec<u8> {
        let take = |connection: &mut Connection| std::mem::take(&mut connection.backlog);
        self.connections.change(key, take).unwrap_or_default()
    }

    /// Passes the replies in `bytes` to `reply`.
    pub(crate) fn received(
        &mut self,
        key: u32,
        bytes: &mut [u8],
        now: Instant,
        mut reply: impl FnMut(Token, NativeOutcome),
    ) {
        if let Some(health) = self.check(key) {
            return health.received(bytes);
        }
        let mut is_answered = false;
        let known = self.drains_since.filter(|_| self.is_draining(now));
        self.silent_since = now;
        let outstanding = self.outstanding();
        let is_news = self.connections.change(key, |connection| {
            let was_draining = connection.is_draining();
            connection.received(bytes, now, |token, outcome| {
                is_answered = true;
                reply(token, outcome);
            });
            let is_new = connection.is_draining() && !was_draining;
            // A connection that begins later may reach its successor. If it does not, it is kept:
            // another would get the same notice.
            let is_old = known.is_none_or(|since| connection.began() <= since);
            if is_new && is_old {
                connection.retire();
            }
            is_new && known.is_none()
        });
        if is_news == Some(true) {
            self.drains_since = Some(now);
        }
        // A reply to a call that was given up shows as much.
        is_answered |= self.outstanding() < outstanding;
        if is_answered && let Some(BreakerChange::Closed) = self.breaker.succeed() {
            self.warnings.push(format!("relay: {} answers again", self.address.label));
        }
    }

    /// A send on the connection has ended.
    pub(crate) fn sent(&mut self, key: u32) {
        self.connections.change(key, |_| ());
    }

    /// The socket of the connection is closed.
    pub(crate) fn disconnected(&mut self, key: u32, error: &io::Error) {
        if let Some(health) = self.check(key) {
            return health.disconnected(error);
        }
        self.connections.change(key, |connection| connection.disconnected(error));
    }

    /// Gives up a call, if it is at `place`. If it is late, that is a failure of the upstream only
    /// if the upstream has sent nothing for `timeout`: callers choose their own deadlines, and slow
    /// methods.
    pub(crate) fn give_up(&mut self, place: Place, token: Token, timeout: Duration, now: Instant) {
        let give_up = |connection: &mut Connection| connection.give_up(place.slot, token, now);
        let is_silent = now.saturating_duration_since(self.silent_since) >= timeout;
        let Some(given_up) = self.connections.change(place.connection, give_up).flatten() else {
            return;
        };
        self.gave_up_at = Some(now);
        match given_up {
            GivenUp::Late if is_silent => self.fail("it has not answered in time".to_owned(), now),
            GivenUp::Late | GivenUp::Unwanted => self.breaker.give_up(now),
        }
    }

    fn fail(&mut self, reason: String, now: Instant) {
        self.failures += 1;
        if let Some(BreakerChange::Opened { for_ms }) = self.breaker.fail(now) {
            let label = &self.address.label;
            let line = format!("relay: {label} has failed, no calls for {for_ms} ms: {reason}");
            self.warnings.push(line);
        }
        self.reason = reason;
    }

    /// Goes on at the end of a turn. Appends the calls of failed connections to `lost`, and sets
    /// the places of sockets.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        context: &mut dyn NativeContext,
        sockets: &mut Places,
        lost: &mut Vec<LostCall>,
    ) {
        let private = self.connections.private();
        let turn = Turn { destination: &self.destination, private };
        let (upstream, mut ends) = (self.index, Vec::new());
        self.connections.advance(
            now,
            |connection, it| {
                let end = it.advance(&turn, now, context);
                if let Some(id) = it.id() {
                    sockets.set(id.index as usize, Place { upstream, connection, slot: 0 });
                }
                end
            },
            |mut ended| {
                ends.push(ended.end);
                lost.append(&mut ended.lost);
            },
        );
        for end in ends {
            match end {
                ConnectionEnd::Done => {}
                ConnectionEnd::Failed(reason) => {
                    self.has_failed = true;
                    self.fail(reason, now);
                }
                ConnectionEnd::Refused(reason) => {
                    self.reason = reason;
                    self.breaker.give_up(now);
                }
                ConnectionEnd::Shortage(_) => self.breaker.give_up(now),
            }
        }
        if self.health.is_some() {
            self.check_health(now, context, sockets);
        }
        self.warnings.drain(..).for_each(|line| context.warn(line));
        self.report(context);
    }

    fn check_health(
        &mut self,
        now: Instant,
        context: &mut dyn NativeContext,
        sockets: &mut Places,
    ) {
        let Some(health) = &mut self.health else { return };
        if self.is_removed {
            return health.stop(context);
        }
        let (address, destination) = (&self.address, &self.destination);
        let change = health.advance(address, destination, self.reply_bytes_max, now, context);
        if let Some(id) = health.id() {
            let place = Place { upstream: self.index, connection: CHECK, slot: 0 };
            sockets.set(id.index as usize, place);
        }
        let Some(change) = change else { return };
        self.has_health_changed = true;
        let label = &self.address.label;
        self.warnings.push(match change {
            Ok(()) => format!("relay: {label} is healthy again"),
            Err(reason) => format!("relay: {label} is unhealthy: {reason}"),
        });
    }

    /// Brings the metrics up to date.
    fn report(&mut self, context: &dyn NativeContext) {
        let Some(metrics) = context.metrics() else { return };
        if self.is_free() {
            self.metrics = None;
            return;
        }
        let circuit = match self.destination {
            Destination::Unknown(_) => Circuit::Open,
            _ => self.breaker.circuit(),
        };
        let outstanding = self.outstanding();
        let failures = std::mem::take(&mut self.failures);
        let health = self.health.as_ref().map(|health| health.is_healthy());
        let new = || UpstreamMetrics::new(metrics.clone(), &self.address.label);
        self.metrics.get_or_insert_with(new).update(outstanding, failures, circuit, health);
    }

    /// When [`Upstream::advance`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadline = self.connections.deadline();
        let Some(health) = self.health.as_ref().filter(|_| !self.is_removed) else {
            return deadline;
        };
        deadline.into_iter().chain(health.deadline(&self.destination)).min()
    }
}
