//! The upstreams of a relay, which are all addresses of their names.
//!
//! Each address is an upstream of its own, with its connections and its circuit breaker. A name is
//! resolved beside the serving, from the first turn on and again and again, so addresses come and
//! go: the upstream of one that the name has no more takes no more calls, and its place is free
//! once its calls have ended. A name that has never had an address has one upstream without one:
//! calls wait there during the first attempt, and fail at once after that has failed.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use ucall_server::NativeOutcomes;

use crate::options::{Destination, RelayOptions, UpstreamAddress};
use crate::resolver::Resolver;
use crate::upstream::Upstream;

/// One configured upstream that is a name.
#[derive(Debug)]
struct Name {
    address: UpstreamAddress,
    resolver: Resolver,
}

/// The names of one relay.
#[derive(Debug)]
pub(crate) struct Names {
    names: Vec<Name>,
    options: Arc<RelayOptions>,
    problem: Arc<NameProblem>,
}

/// Why none of a relay's upstreams has an address and is healthy, for health checks on any thread.
#[derive(Debug, Default)]
pub(crate) struct NameProblem(Mutex<Option<String>>);

impl NameProblem {
    pub(crate) fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, problem: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

impl Names {
    /// The upstreams of a relay, in the order of their addresses, and its names.
    pub(crate) fn new(
        options: &Arc<RelayOptions>,
        problem: Arc<NameProblem>,
        now: Instant,
    ) -> (Self, Vec<Upstream>) {
        let (mut names, mut upstreams) = (Vec::new(), Vec::new());
        for address in &options.upstreams {
            let (name, destination) = match (&address.host, &address.address) {
                (Some(host), _) => {
                    let resolver = Resolver::new(host.clone(), address.lookup, now);
                    names.push(Name { address: address.clone(), resolver });
                    (Some(names.len() - 1), Destination::Resolving)
                }
                (None, Some(it)) => (None, Destination::At(it.clone())),
                (None, None) => continue,
            };
            let index = upstreams.len();
            let mut upstream = Upstream::new(index, address.clone(), options, now);
            upstream.set_name(name, destination);
            upstreams.push(upstream);
        }
        let names = Self { names, options: options.clone(), problem };
        names.update_problem(&upstreams);
        (names, upstreams)
    }

    /// Takes the addresses that were found, and begins what is due.
    pub(crate) fn poll(
        &mut self,
        upstreams: &mut Vec<Upstream>,
        outcomes: &Arc<NativeOutcomes>,
        now: Instant,
    ) {
        for index in 0..self.names.len() {
            let mut has_failed = false;
            for upstream in upstreams.iter_mut().filter(|it| it.name() == Some(index)) {
                has_failed |= upstream.take_has_failed();
            }
            let Some(Name { resolver, .. }) = self.names.get_mut(index) else { continue };
            if has_failed {
                resolver.refresh();
            }
            if let Some(result) = resolver.take() {
                self.update(index, result, upstreams, now);
                self.update_problem(upstreams);
            }
            let Some(Name { resolver, .. }) = self.names.get_mut(index) else { continue };
            let outcomes = outcomes.clone();
            resolver.start(now, move || outcomes.wake());
        }
    }

    fn update(
        &self,
        name: usize,
        result: io::Result<Vec<SocketAddr>>,
        upstreams: &mut Vec<Upstream>,
        now: Instant,
    ) {
        let mut found = match result {
            Ok(found) => found,
            Err(error) => {
                // Known addresses are better than none.
                let own = upstreams.iter_mut().filter(|it| it.name() == Some(name));
                return own.for_each(|upstream| upstream.set_unknown(&error.to_string()));
            }
        };
        found.sort_by_key(SocketAddr::is_ipv6);
        found.dedup();
        let has_v4 = found.iter().any(SocketAddr::is_ipv4);
        let is_own = |upstream: &&mut Upstream| upstream.name() == Some(name);
        for upstream in upstreams.iter_mut().filter(is_own) {
            match upstream.socket_address() {
                Some(address) => {
                    let position = found.iter().position(|it| *it == address);
                    upstream.set_removed(position.is_none());
                    position.map(|position| found.remove(position));
                }
                None if !found.is_empty() => {
                    let address = found.remove(0);
                    upstream.set_address(address, has_v4 && address.is_ipv6());
                }
                None => {}
            }
        }
        let Some(address) = self.names.get(name).map(|name| &name.address) else { return };
        for socket_address in found {
            let free = upstreams.iter().position(Upstream::is_free);
            let index = free.unwrap_or(upstreams.len());
            if index >= RelayOptions::UPSTREAMS_MAX {
                return;
            }
            let mut upstream = Upstream::new(index, address.clone(), &self.options, now);
            upstream.set_name(Some(name), Destination::Resolving);
            upstream.set_address(socket_address, has_v4 && socket_address.is_ipv6());
            match upstreams.get_mut(index) {
                Some(free) => *free = upstream,
                None => upstreams.push(upstream),
            }
        }
    }

    /// Brings the problem up to date, after an upstream has become healthy or unhealthy.
    pub(crate) fn update_problem(&self, upstreams: &[Upstream]) {
        let is_usable = |it: &Upstream| {
            matches!(it.destination(), Destination::At(_)) && it.is_present() && it.is_healthy()
        };
        let first = upstreams.first().filter(|_| !upstreams.iter().any(is_usable));
        self.problem.set(first.map(|upstream| {
            let label = upstream.address().label();
            match upstream.destination() {
                Destination::Unknown(reason) => format!("relay: {label}: {reason}"),
                Destination::Resolving => format!("relay: {label} is being resolved"),
                Destination::At(_) => format!("relay: {label} is unhealthy"),
            }
        }));
    }

    /// When [`Names::poll`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.names.iter().filter_map(|name| name.resolver.deadline()).min()
    }

    #[cfg(any(test, feature = "harness"))]
    pub(crate) fn is_busy(&self) -> bool {
        self.names.iter().any(|name| name.resolver.is_busy())
    }
}
