//! Calls over UDP, without their socket.
//!
//! A datagram is one document. Its path:
//!
//! 1. It is dropped and counted unless it holds valid requests ([`DatagramDocument`]).
//! 2. A cookie in it proves the address of its sender ([`CookieKey`]).
//! 3. A repeat gets the reply of the first copy ([`ReplyCache`]), also past all limits. Its `_meta`
//!    may be another one, so an error that the `_meta` of the first copy has caused is not kept: a
//!    forged copy must not decide the reply to the real one.
//! 4. A new one is refused past the limits of its [`Source`]. A sender without a cookie learns that
//!    it needs one, because those that forge its address may have used up what it had.
//! 5. Its calls run, or begin: then [`DatagramServer::complete`] takes their outcomes.
//! 6. A reply that is too long becomes an error. One of more than three times the bytes of the
//!    request goes only to a validated address, so that no sender can aim a flood at another
//!    (RFC 9000, 8.1).

mod reply_cache;
mod source;
mod source_rates;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::mem;
use std::net::IpAddr;
use std::time::Instant;

use hashbrown::HashMap;
use ucall_engine::{DatagramPath, Id};
use ucall_proto::{
    CallNumber, CookieKey, DatagramCalls, DatagramDocument, DatagramOutcome, Environment, Limits,
    LoadState, RpcError, refuse_datagram, write_datagram_error,
};

use self::reply_cache::{Found, ReplyCache, RequestKey};
use self::source::Source;
use self::source_rates::SourceRates;
use crate::config::DatagramConfig;
use crate::counters::DatagramCounts;
use crate::dispatch::Dispatch;
use crate::handler::Handler;

/// The method by which a client requests a cookie.
const COOKIE_METHOD: &[u8] = b"rpc.cookie";
/// How many times the bytes of a request its reply may have, without a cookie.
const AMPLIFICATION_MAX: usize = 3;

/// Where a reply goes.
#[derive(Clone, Debug)]
struct Sender {
    path: DatagramPath,
    /// The length of its datagram.
    request_bytes: usize,
    has_cookie: bool,
}

impl Sender {
    fn source(&self) -> Source {
        Source::new(self.path.peer.ip(), self.has_cookie)
    }
}

/// A datagram whose calls are deferred.
#[derive(Debug)]
struct PendingReply {
    sender: Sender,
    /// The first id in the datagram.
    id: Vec<u8>,
    key: Option<RequestKey>,
    has_own_limits: bool,
    /// The calls in it that want a reply. They count until the last of them has ended.
    calls: usize,
}

/// The datagrams of one worker.
#[derive(Debug)]
pub(crate) struct DatagramServer {
    config: DatagramConfig,
    cookies: CookieKey,
    calls: DatagramCalls,
    cache: ReplyCache,
    hasher: RandomState,
    pending: HashMap<u64, PendingReply>,
    /// The calls of the pending replies of each source.
    calls_by_source: HashMap<Source, usize>,
    /// `None` without a limit.
    rates: Option<SourceRates>,
    /// The reply to the datagram that was handled last; empty without one.
    reply: Vec<u8>,
    pub(crate) sockets: Vec<Id>,
    pub(crate) counts: DatagramCounts,
}

impl DatagramServer {
    /// `None` if the system provides no randomness for cookies.
    pub(crate) fn new(config: DatagramConfig, now: Instant) -> Option<Self> {
        let cookies = config.cookie_key.clone().or_else(CookieKey::random)?;
        let (bytes_max, lifetime) = (config.dedupe_bytes_max, config.dedupe_lifetime);
        Some(Self {
            cookies,
            calls: DatagramCalls::default(),
            cache: ReplyCache::new(bytes_max, config.datagram_bytes_max, lifetime, now),
            hasher: RandomState::new(),
            pending: HashMap::new(),
            calls_by_source: HashMap::new(),
            rates: config.source_rate_max.map(SourceRates::new),
            reply: Vec::new(),
            sockets: Vec::new(),
            counts: DatagramCounts::default(),
            config,
        })
    }

    /// Whether it is one of the sockets.
    pub(crate) fn serves(&self, socket: Id) -> bool {
        self.sockets.contains(&socket)
    }

    /// Whether replies are kept that a sweep may drop.
    pub(crate) fn has_replies(&self) -> bool {
        !self.cache.is_empty()
    }

    /// Drops replies that no client asks for any more.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.cache.expire(now);
    }

    /// Handles a datagram; returns the reply to send, if there is one. `is_rejecting` is whether
    /// all new calls are refused just now.
    pub(crate) fn handle<H: Handler>(
        &mut self,
        bytes: &[u8],
        path: DatagramPath,
        unix_time_s: u64,
        is_rejecting: bool,
        environment: &mut Environment<'_, Dispatch<'_, H>>,
    ) -> Option<&[u8]> {
        self.reply.clear();
        self.counts.received += 1;
        let Some(document) = DatagramDocument::parse::<Dispatch<'_, H>>(
            bytes,
            environment.limits,
            environment.scratch,
        ) else {
            self.counts.invalid += 1;
            return None;
        };
        let address = path.peer.ip();
        let is_valid = |cookie: &[u8]| self.cookies.is_valid(cookie, address, unix_time_s);
        let has_cookie = document.cookie().is_some_and(is_valid);
        let sender = Sender { path, request_bytes: bytes.len(), has_cookie };
        if document.method().is_some_and(|method| method.raw() == COOKIE_METHOD) {
            self.write_cookie(&document, &sender, unix_time_s);
        } else {
            let key = self.key_of(&document, &sender, environment);
            if !self.repeat(key, environment.now) {
                // A call that is refused did not run, so its repeat may run elsewhere.
                let key = key.filter(|_| !is_rejecting);
                match self.check(&document, &sender, key, environment) {
                    Ok(()) => self.run(&document, &sender, key, environment),
                    Err(refusal) => self.refuse(&document, refusal, unix_time_s, address),
                }
            }
        }
        self.limit_amplification(document.id(), &sender, unix_time_s);
        (!self.reply.is_empty()).then_some(&self.reply)
    }

    /// Handles a request as a repeat, if it is one.
    fn repeat(&mut self, key: Option<RequestKey>, now: Instant) -> bool {
        match key.map_or(Found::New, |key| self.cache.find(&key, now)) {
            Found::New => return false,
            Found::UnderWay => {}
            Found::Replied(reply) => self.reply.extend_from_slice(reply),
        }
        self.counts.repeated += 1;
        true
    }

    /// Whether the calls of a new request may begin.
    fn check<H: Handler>(
        &mut self,
        document: &DatagramDocument<'_>,
        sender: &Sender,
        key: Option<RequestKey>,
        environment: &Environment<'_, Dispatch<'_, H>>,
    ) -> Result<(), Refusal> {
        let (source, now) = (sender.source(), environment.now);
        let refuse_unless = |is_allowed: bool, refusal: Refusal| match (is_allowed, source) {
            (true, _) => Ok(()),
            (_, Source { has_cookie: false, .. }) => Err(Refusal::CookieRequired),
            _ => Err(refusal),
        };
        let (calls, max) = (document.calls(), self.config.source_calls_max);
        if calls > max {
            return Err(Refusal::LongBatch);
        }
        // Notifications are not counted by sender, so they leave half of the limit to others.
        let notifications = document.notifications();
        let limit = environment.service.dispatcher.run_limit();
        if notifications > 0 && limit.is_past_half(notifications) {
            return Err(Refusal::Dropped);
        }
        let running = self.calls_by_source.get(&source).copied().unwrap_or(0);
        refuse_unless(running + calls <= max, Refusal::Dropped)?;
        if let Some(rates) = &mut self.rates {
            let is_below = rates.take(source, document.methods().count(), now);
            refuse_unless(is_below, Refusal::Dropped)?;
        }
        if !sender.has_cookie && environment.load == LoadState::Overloaded {
            return Err(Refusal::CookieRequired);
        }
        if document.takes_items() {
            return Err(Refusal::ItemsOverUdp);
        }
        let has_room = key.is_none_or(|key| self.cache.begin(key, sender.has_cookie, now));
        refuse_unless(has_room, Refusal::Overloaded)
    }

    /// What names a datagram in the cache; `None` if it may run twice.
    fn key_of<H: Handler>(
        &self,
        document: &DatagramDocument<'_>,
        sender: &Sender,
        environment: &Environment<'_, Dispatch<'_, H>>,
    ) -> Option<RequestKey> {
        if !self.config.dedupe || document.id().is_none() {
            return None;
        }
        if document.methods().all(|method| environment.service.dispatcher.is_idempotent(method)) {
            return None;
        }
        let mut hasher = self.hasher.build_hasher();
        sender.path.peer.hash(&mut hasher);
        document.hash_requests(&mut hasher);
        Some(RequestKey { source: sender.path.peer, hash: hasher.finish() })
    }

    fn run<H: Handler>(
        &mut self,
        document: &DatagramDocument<'_>,
        sender: &Sender,
        key: Option<RequestKey>,
        environment: &mut Environment<'_, Dispatch<'_, H>>,
    ) {
        let id = document.id().unwrap_or_default();
        let outcome = self.calls.run(document, environment);
        // Nothing was written to the reply before.
        mem::swap(&mut self.reply, environment.out);
        match outcome {
            DatagramOutcome::NoReply => {}
            DatagramOutcome::Replied => self.limit_length(id),
            DatagramOutcome::Deferred(number) => {
                let (sender, id, calls) = (sender.clone(), id.to_vec(), document.calls());
                *self.calls_by_source.entry(sender.source()).or_insert(0) += calls;
                let has_own_limits = document.has_own_limits();
                let pending = PendingReply { sender, id, key, has_own_limits, calls };
                self.pending.insert(number, pending);
                return;
            }
        }
        self.keep(key, document.has_own_limits(), environment.now);
    }

    /// Keeps the reply for repeats of its request, unless limits in the `_meta` of this copy have
    /// caused it.
    fn keep(&mut self, key: Option<RequestKey>, has_own_limits: bool, now: Instant) {
        match key {
            None => {}
            Some(key) if has_own_limits && is_limited(&self.reply) => self.cache.forget(key, now),
            Some(key) => self.cache.finish(key, &self.reply, now),
        }
    }

    /// Takes the outcome of a deferred call; returns the reply and where it goes, if it is
    /// complete.
    pub(crate) fn complete(
        &mut self,
        number: CallNumber,
        outcome: Result<&[u8], &RpcError>,
        limits: &Limits,
        now: Instant,
        unix_time_s: u64,
    ) -> Option<(&[u8], DatagramPath)> {
        self.reply.clear();
        if !self.calls.complete(number, outcome, limits, &mut self.reply) {
            return None;
        }
        let PendingReply { sender, id, key, has_own_limits, calls } =
            self.pending.remove(&number.request)?;
        let source = sender.source();
        if let Some(running) = self.calls_by_source.get_mut(&source) {
            *running -= calls;
            if *running == 0 {
                self.calls_by_source.remove(&source);
            }
        }
        self.limit_length(&id);
        self.keep(key, has_own_limits, now);
        self.limit_amplification(Some(&id), &sender, unix_time_s);
        (!self.reply.is_empty()).then_some((&self.reply, sender.path))
    }

    fn write_cookie(&mut self, document: &DatagramDocument<'_>, sender: &Sender, unix_time_s: u64) {
        let Some(id) = document.id() else { return };
        let cookie = self.cookies.cookie(sender.path.peer.ip(), unix_time_s);
        self.reply.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        self.reply.extend_from_slice(id);
        self.reply.extend_from_slice(format!(r#","result":"{cookie}"}}"#).as_bytes());
    }

    fn refuse(
        &mut self,
        document: &DatagramDocument<'_>,
        refusal: Refusal,
        unix_time_s: u64,
        address: IpAddr,
    ) {
        self.counts.refused += 1;
        let error = match refusal {
            Refusal::Dropped => return,
            Refusal::Overloaded => RpcError::overloaded(),
            Refusal::CookieRequired => self.cookie_required(address, unix_time_s),
            Refusal::ItemsOverUdp => invalid_request()
                .expected("expected no progressToken: the items of a stream need TCP"),
            Refusal::LongBatch => {
                let max = self.config.source_calls_max;
                invalid_request().expected(&format!("expected at most {max} calls in a datagram"))
            }
        };
        let _ = refuse_datagram(document, &error, &mut self.reply);
    }

    /// Replaces a reply that is too long for a datagram.
    fn limit_length(&mut self, id: &[u8]) {
        let (bytes, max) = (self.reply.len(), self.config.datagram_bytes_max);
        if bytes > max {
            let message = "The reply is too long for a datagram";
            let mut error = RpcError::new(RpcError::INTERNAL_ERROR, message);
            let data =
                format!(r#"{{"transport":"tcp","bytes":{bytes},"max_datagram_bytes":{max}}}"#);
            error.data = Some(data.into_bytes());
            self.reply.clear();
            write_datagram_error(id, &error, &mut self.reply);
        }
    }

    /// Replaces a reply that is too long for an address that is not validated, or drops it.
    fn limit_amplification(&mut self, id: Option<&[u8]>, sender: &Sender, unix_time_s: u64) {
        let max = sender.request_bytes * AMPLIFICATION_MAX;
        if sender.has_cookie || self.reply.len() <= max {
            return;
        }
        self.counts.refused += 1;
        let mut error = self.cookie_required(sender.path.peer.ip(), unix_time_s);
        for _ in 0..2 {
            self.reply.clear();
            write_datagram_error(id.unwrap_or(b"null"), &error, &mut self.reply);
            if self.reply.len() <= max {
                return;
            }
            error.data = None;
        }
        self.reply.clear();
    }

    /// The error has a cookie, so that the client needs no further request for one.
    fn cookie_required(&self, address: IpAddr, unix_time_s: u64) -> RpcError {
        let mut error = RpcError::new(RpcError::COOKIE_REQUIRED, "Cookie required");
        let cookie = self.cookies.cookie(address, unix_time_s);
        error.data = Some(format!(r#"{{"cookie":"{cookie}"}}"#).into_bytes());
        error
    }
}

/// Whether a reply has an error that a `timeout_ms` or `hops` of the request may have caused.
fn is_limited(reply: &[u8]) -> bool {
    [RpcError::DEADLINE_PASSED, RpcError::UPSTREAM_UNAVAILABLE].iter().any(|code| {
        let error = format!(r#""error":{{"code":{code},"#);
        reply.windows(error.len()).any(|window| window == error.as_bytes())
    })
}

fn invalid_request() -> RpcError {
    RpcError::new(RpcError::INVALID_REQUEST, "Invalid Request")
}

/// Why the calls of a datagram do not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Refusal {
    /// Without a reply.
    Dropped,
    Overloaded,
    CookieRequired,
    ItemsOverUdp,
    /// More calls than an address may have in flight.
    LongBatch,
}
