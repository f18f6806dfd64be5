//! Resolves the name of an upstream on a thread, because resolvers block.

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::options::Lookup;

/// How often a name is resolved.
const INTERVAL: Duration = Duration::from_secs(30);
/// The same after failures, of the resolver or of an upstream.
const FAILED_INTERVAL: Duration = Duration::from_secs(1);

/// The addresses of one name.
#[derive(Debug)]
pub(crate) struct Resolver {
    host: String,
    lookup: Lookup,
    result: Option<Receiver<io::Result<Vec<SocketAddr>>>>,
    began: Instant,
    next_at: Instant,
}

impl Resolver {
    /// Resolves `host`, a name and a port, from now on.
    pub(crate) fn new(host: String, lookup: Lookup, now: Instant) -> Self {
        Self { host, lookup, result: None, began: now, next_at: now }
    }

    /// An upstream has failed, perhaps because the name has other addresses now.
    pub(crate) fn refresh(&mut self) {
        self.next_at = self.next_at.min(self.began + FAILED_INTERVAL);
    }

    /// Begins an attempt if one is due; `wake` is called when it has ended.
    pub(crate) fn start(&mut self, now: Instant, wake: impl FnOnce() + Send + 'static) {
        if self.result.is_some() || now < self.next_at {
            return;
        }
        let (sender, receiver) = channel();
        let (host, lookup) = (self.host.clone(), self.lookup);
        let resolve = move || {
            // The worker may have ended.
            let _ = sender.send(lookup(&host));
            wake();
        };
        let thread = thread::Builder::new().name("ucall-resolver".to_owned()).spawn(resolve);
        self.result = thread.is_ok().then_some(receiver);
        (self.began, self.next_at) = (now, now + FAILED_INTERVAL);
    }

    /// The addresses, or why there are none, once an attempt has ended.
    pub(crate) fn take(&mut self) -> Option<io::Result<Vec<SocketAddr>>> {
        let result = match self.result.as_ref()?.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::ErrorKind::Interrupted.into()),
        };
        self.result = None;
        if result.is_ok() {
            self.next_at = self.began + INTERVAL;
        }
        Some(result)
    }

    /// When [`Resolver::start`] is due; while an attempt is in progress, its end comes first.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.result.is_none().then_some(self.next_at)
    }

    #[cfg(any(test, feature = "harness"))]
    pub(crate) fn is_busy(&self) -> bool {
        self.result.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::UpstreamAddress;

    #[test]
    fn a_name_is_resolved_every_30_seconds_and_sooner_after_failures() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let good: Lookup = UpstreamAddress::lookup;
        let bad: Lookup = |_| Err(io::ErrorKind::NotFound.into());
        for (lookup, fails, waits) in [(good, false, 30), (good, true, 1), (bad, false, 1)] {
            let mut resolver = Resolver::new("localhost:81".to_owned(), lookup, began);
            let (sender, woken) = channel();
            resolver.start(began, move || {
                let _ = sender.send(());
            });
            assert_eq!((resolver.deadline(), woken.recv()), (None, Ok(())));
            let found = resolver.take().expect("it has ended");
            assert!(found.map_or(true, |found| found.iter().all(|it| it.port() == 81)));
            assert!(resolver.take().is_none());
            if fails {
                resolver.refresh();
            }
            let next = began + waits * second;
            assert_eq!(resolver.deadline(), Some(next));
            resolver.start(next - Duration::from_millis(1), || unreachable!("it is not due"));
            assert!(resolver.result.is_none());
            resolver.start(next, || ());
            assert!(resolver.result.is_some());
        }
    }
}
