//! One upstream of a relay: its connections, and the choice of one for a call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::Id;
use ucall_server::{NativeContext, Token};

use crate::breaker::{Breaker, BreakerChange};
use crate::connection::{Connection, LostCall, calls_max};
use crate::options::{RelayOptions, UpstreamAddress};
use crate::resolver::Resolver;
use crate::status::UpstreamStatus;

/// One upstream, as one worker uses it.
#[derive(Debug)]
pub(crate) struct Upstream {
    address: UpstreamAddress,
    resolver: Resolver,
    /// Counts the attempts to connect, which try the addresses in turn.
    attempts: usize,
    connections: Vec<Connection>,
    pub(crate) breaker: Breaker,
    /// Why it has failed last.
    reason: String,
    /// Lines to be logged.
    warnings: Vec<String>,
    status: Arc<UpstreamStatus>,
}

impl Upstream {
    pub(crate) fn new(
        address: UpstreamAddress,
        failures_max: u32,
        status: Arc<UpstreamStatus>,
    ) -> Self {
        Self {
            resolver: Resolver::default(),
            address,
            attempts: 0,
            connections: Vec::new(),
            breaker: Breaker::new(failures_max),
            reason: String::new(),
            warnings: Vec::new(),
            status,
        }
    }

    pub(crate) fn address(&self) -> &UpstreamAddress {
        &self.address
    }

    /// Why it has failed last.
    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Calls that it has not answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.connections.iter().map(Connection::outstanding).sum()
    }

    /// A connection for one more call with a text of so many bytes, perhaps a new one; `None` past
    /// the limits. A stream has one of its own.
    pub(crate) fn connection(
        &mut self,
        options: &RelayOptions,
        text_bytes: usize,
        takes_items: bool,
        now: Instant,
    ) -> Option<&mut Connection> {
        if self.outstanding() >= options.outstanding_max {
            return None;
        }
        let connections_max = options.outstanding_max / calls_max(self.address.is_http());
        let mut connections = self.connections.iter();
        let index = match connections.position(|it| it.is_free_for(text_bytes, takes_items)) {
            Some(index) => index,
            None if takes_items || self.shared_connections() <= connections_max => {
                let bytes_max = options.reply_bytes_max;
                self.connections.push(Connection::new(&self.address, bytes_max, now));
                self.connections.len() - 1
            }
            None => self.connections.iter().position(Connection::has_room)?,
        };
        self.connections.get_mut(index)
    }

    fn shared_connections(&self) -> usize {
        self.connections.iter().filter(|connection| !connection.is_streaming()).count()
    }

    /// Pauses or resumes a stream; `false` if it is not here.
    pub(crate) fn set_paused(&mut self, token: Token, is_paused: bool) -> bool {
        self.connections.iter_mut().any(|connection| connection.set_paused(token, is_paused))
    }

    pub(crate) fn is_http(&self) -> bool {
        self.address.is_http()
    }

    /// The connection with this socket.
    pub(crate) fn find(&mut self, id: Id) -> Option<&mut Connection> {
        self.connections.iter_mut().find(|connection| connection.is(id))
    }

    /// Gives up a call; `false` if it is not here. It is a failure of the upstream if it is late
    /// after `timeout_min` or more.
    pub(crate) fn give_up(&mut self, token: Token, timeout_min: Duration, now: Instant) -> bool {
        let given_up = self.connections.iter_mut().find_map(|it| it.give_up(token, now));
        match given_up {
            None => return false,
            Some(Some(timeout)) if timeout >= timeout_min => {
                self.fail("it has not answered in time".to_owned(), now);
            }
            Some(_) => self.breaker.give_up(now),
        }
        true
    }

    /// A call was answered.
    pub(crate) fn succeed(&mut self) {
        if let Some(BreakerChange::Closed) = self.breaker.succeed() {
            self.warnings.push(format!("relay: {} answers again", self.address.label));
        }
    }

    fn fail(&mut self, reason: String, now: Instant) {
        self.status.count_failure();
        if let Some(BreakerChange::Opened { for_ms }) = self.breaker.fail(now) {
            let label = &self.address.label;
            let line = format!("relay: {label} has failed, no calls for {for_ms} ms: {reason}");
            self.warnings.push(line);
        }
        self.reason = reason;
    }

    /// Goes on at the end of a turn. Appends the calls of failed connections to `lost`.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        context: &mut dyn NativeContext,
        lost: &mut Vec<LostCall>,
    ) {
        if let Some(addresses) = self.resolver.take() {
            self.address.addresses = addresses;
        }
        let addresses = &self.address.addresses;
        let Some(address) = addresses.get(self.attempts % addresses.len().max(1)) else { return };
        let mut failures = Vec::new();
        self.connections.retain_mut(|connection| match connection.advance(address, now, context) {
            None => true,
            Some(mut ended) => {
                failures.extend(ended.failure);
                lost.append(&mut ended.lost);
                false
            }
        });
        self.attempts += failures.len();
        if !failures.is_empty() {
            self.resolver.start(&self.address, now);
        }
        failures.into_iter().for_each(|reason| self.fail(reason, now));
        self.warnings.drain(..).for_each(|line| context.warn(line));
        self.status.set(self.outstanding(), !self.breaker.is_closed());
    }

    /// When [`Upstream::advance`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.connections.iter().filter_map(Connection::deadline).min()
    }
}
