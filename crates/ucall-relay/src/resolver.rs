//! Resolves the name of an upstream again after a failure, on a thread, because resolvers block.

use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ucall_engine::SockAddr;

use crate::options::UpstreamAddress;

/// How often a name is resolved.
const INTERVAL: Duration = Duration::from_secs(1);

/// The attempt to resolve a name, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Resolver {
    result: Option<Receiver<Vec<SockAddr>>>,
    next_at: Option<Instant>,
}

impl Resolver {
    /// Begins, unless an attempt is under way or has just been made.
    pub(crate) fn start(&mut self, address: &UpstreamAddress, now: Instant) {
        let is_due = self.result.is_none() && self.next_at.is_none_or(|at| at <= now);
        let Some(host) = address.host.clone().filter(|_| is_due) else { return };
        let (sender, receiver) = channel();
        let resolve = move || {
            if let Ok(addresses) = UpstreamAddress::resolve_host(&host) {
                // The worker may have ended.
                let _ = sender.send(addresses);
            }
        };
        let thread = thread::Builder::new().name("ucall-resolver".to_owned()).spawn(resolve);
        // Without a thread the addresses stay as they are.
        self.result = thread.is_ok().then_some(receiver);
        self.next_at = Some(now + INTERVAL);
    }

    /// The addresses, once they are there.
    pub(crate) fn take(&mut self) -> Option<Vec<SockAddr>> {
        let result = self.result.as_ref()?.try_recv();
        if !matches!(result, Err(std::sync::mpsc::TryRecvError::Empty)) {
            self.result = None;
        }
        result.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UpstreamOptions;

    fn resolved(resolver: &mut Resolver) -> Option<Vec<SockAddr>> {
        while resolver.result.is_some() {
            if let Some(addresses) = resolver.take() {
                return Some(addresses);
            }
            thread::yield_now();
        }
        None
    }

    #[test]
    fn a_name_is_resolved_again_but_not_too_often() {
        let options = UpstreamOptions::default();
        let address = UpstreamAddress::resolve("tcp://localhost:81", &options).expect("a name");
        let (mut resolver, now) = (Resolver::default(), Instant::now());
        resolver.start(&address, now);
        let found = resolved(&mut resolver).expect("localhost has addresses");
        assert_eq!(format!("{found:?}"), format!("{:?}", address.addresses));
        resolver.start(&address, now);
        assert!(resolved(&mut resolver).is_none(), "it was just resolved");
        resolver.start(&address, now + INTERVAL);
        assert!(resolved(&mut resolver).is_some());
    }

    #[test]
    fn an_address_that_is_no_name_is_not_resolved() {
        let now = Instant::now();
        for name in ["tcp://127.0.0.1:81", "tcp://[::1]:81", "unix:///a"] {
            let address = UpstreamAddress::resolve(name, &UpstreamOptions::default());
            let mut resolver = Resolver::default();
            resolver.start(&address.expect("it is valid"), now);
            assert!(resolver.result.is_none(), "{name}");
        }
    }
}
