//! Limits the calls a second of each caller, over all workers of a server.
//!
//! A caller has a burst of calls in reserve, which return evenly (the generic cell rate algorithm,
//! ITU-T I.371). A slot of the table has in its 64 bits whose it is, and when the reserve of that
//! caller is complete; then it is free. So processes that share the table change a slot by one
//! atomic operation, and never wait for each other.
//!
//! A caller's hash picks one of [`BUCKETS`] buckets of 8 slots. If none of them is free, the caller
//! takes over the slot that is the next to be free, with its calls: those who share a slot have one
//! reserve. So the table has a fixed size, a flood of callers gets no more calls than its slots
//! allow, and callers that have slots keep their limit.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::FixedState;
use ucall_engine::Peer;
use ucall_proto::RpcError;

use crate::network::PeerNetwork;

const BUCKETS: usize = 8_192;

/// The unit of time of a slot.
const TICKS_PER_S: f64 = 4e6;
/// The bits of a time in a slot, which wraps two years after the start of the machine.
const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

/// The longest time in which a complete reserve returns.
const RESERVE_MAX: Duration = Duration::from_secs(8 * 3_600);
const CALLS_PER_S_MAX: f64 = 1e5;

/// The slots whose hashes end alike, in one line of the cache.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Bucket([AtomicU64; 8]);

/// A table in memory that processes share; all zeros are a new one.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RateTable {
    /// The key of the hash, once one of the processes has set it.
    seed: AtomicU64,
    buckets: [Bucket; BUCKETS],
}

/// The limit of a server, and the callers that have called lately.
#[derive(Clone, Debug)]
pub struct CallRates {
    calls_per_s: f64,
    /// The ticks in which the reserve regains one call.
    interval: u64,
    /// Those in which it regains all.
    reserve: u64,
    hash: FixedState,
    table: Table,
}

#[derive(Clone, Debug)]
enum Table {
    Own(Arc<[Bucket]>),
    Shared(&'static RateTable),
}

/// Whose calls are counted together.
#[derive(Hash, Debug)]
pub(crate) enum RatedCaller {
    /// A user that has a name.
    User(String),
    Network(PeerNetwork),
    /// The user of the process at the other end of a Unix socket.
    Process(u32),
    /// All callers that are not known.
    Unknown,
}

impl RatedCaller {
    pub(crate) fn new(user: Option<String>, peer: Option<Peer>) -> Self {
        match (user, peer) {
            (Some(user), _) => Self::User(user),
            (None, Some(Peer::Address(address))) => Self::Network(PeerNetwork::new(address.ip())),
            (None, Some(Peer::Process { uid, .. })) => Self::Process(uid),
            (None, _) => Self::Unknown,
        }
    }
}

impl CallRates {
    /// A limit of calls a second, with the calls of one second at once, unless `burst` says how
    /// many.
    ///
    /// # Errors
    /// The option that is invalid, and what was expected.
    pub fn new(calls_per_s: f64, burst: Option<u32>) -> Result<Self, (&'static str, String)> {
        let slowest = 1.0 / RESERVE_MAX.as_secs_f64();
        if !(slowest..=CALLS_PER_S_MAX).contains(&calls_per_s) {
            let expected = "a number from 1/28,800 to 100,000".to_owned();
            return Err(("max_calls_per_s", expected));
        }
        let burst = burst.map_or_else(|| calls_per_s.ceil().max(1.0), f64::from);
        let burst_max = (calls_per_s * RESERVE_MAX.as_secs_f64()).floor();
        if !(1.0..=burst_max).contains(&burst) {
            let expected = format!("an int from 1 to the calls of 8 hours, {burst_max}");
            return Err(("max_burst_calls", expected));
        }
        let interval = (TICKS_PER_S / calls_per_s).round();
        Ok(Self {
            calls_per_s,
            interval: interval as u64,
            reserve: (interval * burst) as u64,
            hash: FixedState::with_seed(random()),
            table: Table::Own((0..BUCKETS).map(|_| Bucket::default()).collect()),
        })
    }

    /// The same limit for all processes that have this table.
    #[must_use]
    pub fn shared(self, table: &'static RateTable) -> Self {
        // Fails if another process has set it.
        let _ = table.seed.compare_exchange(0, random(), Ordering::Relaxed, Ordering::Relaxed);
        let hash = FixedState::with_seed(table.seed.load(Ordering::Relaxed));
        Self { hash, table: Table::Shared(table), ..self }
    }

    /// Counts a call, at a time since a moment that all processes share.
    ///
    /// # Errors
    /// The caller has made too many: the error of the call.
    pub(crate) fn take(&self, caller: &RatedCaller, now: Duration) -> Result<(), RpcError> {
        let now = (now.as_nanos() / 250) as u64 & TIME_MASK;
        let hash = self.hash.hash_one(caller);
        let buckets = match &self.table {
            Table::Own(buckets) => &**buckets,
            Table::Shared(table) => &table.buckets,
        };
        let Some(bucket) = buckets.get(hash as usize % BUCKETS) else { return Ok(()) };
        let tag = hash & !TIME_MASK;
        loop {
            let (slot, found) = self.slot_of(bucket, tag, now);
            let left = self.time_left(found, now) + self.interval;
            if left > self.reserve {
                return Err(self.error(left - self.reserve));
            }
            let new = tag | ((now + left) & TIME_MASK);
            if slot.compare_exchange_weak(found, new, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                return Ok(());
            }
        }
    }

    /// The slot of a caller, or else that which is free first, with its value.
    fn slot_of<'a>(&self, bucket: &'a Bucket, tag: u64, now: u64) -> (&'a AtomicU64, u64) {
        let [first, others @ ..] = &bucket.0;
        let mut best = (first, first.load(Ordering::Relaxed));
        for slot in others {
            let value = slot.load(Ordering::Relaxed);
            let is_own = |value: u64| value & !TIME_MASK == tag && self.time_left(value, now) > 0;
            if is_own(best.1) {
                break;
            }
            if is_own(value) || self.time_left(value, now) < self.time_left(best.1, now) {
                best = (slot, value);
            }
        }
        best
    }

    /// The ticks until a reserve is complete.
    fn time_left(&self, value: u64, now: u64) -> u64 {
        // Times that have passed seem to lie far ahead.
        let left = value.wrapping_sub(now) & TIME_MASK;
        if left <= self.reserve { left } else { 0 }
    }

    #[cold]
    fn error(&self, ticks: u64) -> RpcError {
        let retry_after_ms = (ticks as f64 / TICKS_PER_S * 1e3).ceil();
        let mut error = RpcError::new(RpcError::OVERLOADED, "Overloaded");
        let limit = self.calls_per_s;
        let data = format!(r#"{{"retry_after_ms":{retry_after_ms},"max_calls_per_s":{limit}}}"#);
        error.data = Some(data.into_bytes());
        error
    }
}

/// A number above 0 that no caller knows.
fn random() -> u64 {
    RandomState::new().build_hasher().finish() | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1_000_000);

    fn rates(calls_per_s: f64, burst: u32) -> CallRates {
        CallRates::new(calls_per_s, Some(burst)).expect("a valid limit")
    }

    fn user(number: usize) -> RatedCaller {
        RatedCaller::User(number.to_string())
    }

    fn retry_after_ms(rates: &CallRates, caller: &RatedCaller, now: Duration) -> Option<String> {
        let data = rates.take(caller, now).err()?.data.expect("data");
        let text = String::from_utf8(data).expect("UTF-8");
        text.strip_prefix(r#"{"retry_after_ms":"#)?.split(',').next().map(str::to_owned)
    }

    #[test]
    fn a_burst_may_come_at_once_and_returns_evenly() {
        let (rates, one) = (rates(10.0, 3), user(1));
        for second in 0..5 {
            let now = NOW + second * SECOND;
            for _ in 0..3 {
                assert!(rates.take(&one, now).is_ok());
            }
            assert_eq!(retry_after_ms(&rates, &one, now).as_deref(), Some("100"));
            assert!(rates.take(&user(2), now).is_ok());
            let later = now + Duration::from_millis(100);
            assert_eq!(
                retry_after_ms(&rates, &one, later - Duration::from_micros(1)).as_deref(),
                Some("1")
            );
            assert!(rates.take(&one, later).is_ok());
            assert!(rates.take(&one, later).is_err());
        }
    }

    #[test]
    fn a_refused_call_costs_nothing() {
        let (rates, one) = (rates(1.0, 1), user(1));
        assert!(rates.take(&one, NOW).is_ok());
        for _ in 0..100 {
            assert!(rates.take(&one, NOW).is_err());
        }
        assert!(rates.take(&one, NOW + SECOND).is_ok());
    }

    #[test]
    fn workers_that_share_a_table_share_the_limit() {
        // The array needs some of the stack.
        let make = || {
            let buckets = std::array::from_fn(|_| Bucket::default());
            &*Box::leak(Box::new(RateTable { seed: AtomicU64::new(0), buckets }))
        };
        let thread = std::thread::Builder::new().stack_size(64 << 20).spawn(make);
        let table = thread.expect("a thread").join().expect("no panic");
        let workers = [rates(1.0, 4).shared(table), rates(1.0, 4).shared(table)];
        let taken: Vec<bool> =
            (0..6).map(|call| workers[call % 2].take(&user(1), NOW).is_ok()).collect();
        assert_eq!(taken, [true, true, true, true, false, false]);
    }

    #[test]
    fn callers_that_are_more_than_the_slots_share_them() {
        let rates = rates(1.0, 2);
        let slots = BUCKETS * 8;
        let accepted = (0..slots * 16).filter(|it| rates.take(&user(*it), NOW).is_ok()).count();
        assert!((slots..=slots * 2).contains(&accepted), "{accepted}");
        let refused = (0..1000).filter(|it| rates.take(&user(slots * 99 + it), NOW).is_err());
        assert_eq!(refused.count(), 1000);
        let later = NOW + 2 * SECOND;
        assert!((0..1000).all(|it| rates.take(&user(it), later).is_ok()));
    }

    #[test]
    fn threads_take_no_more_than_there_is() {
        let rates = rates(0.001, 3);
        let taken: usize = std::thread::scope(|scope| {
            let take = || (0..1000).filter(|_| rates.take(&user(1), NOW).is_ok()).count();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|it| it.join().expect("no panic")).sum()
        });
        assert_eq!(taken, 3);
    }

    #[test]
    fn options_are_checked() {
        let error = |rate, burst| CallRates::new(rate, burst).err().map(|(option, _)| option);
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1.1e5, 1.0 / 28_801.0] {
            assert_eq!(error(rate, None), Some("max_calls_per_s"), "{rate}");
        }
        for rate in [1.0 / 28_800.0, 0.5, 1e5] {
            assert_eq!(error(rate, None), None, "{rate}");
        }
        assert_eq!(error(2.0, Some(57_600)), None);
        assert_eq!(error(2.0, Some(57_601)), Some("max_burst_calls"));
        assert_eq!(error(2.0, Some(0)), Some("max_burst_calls"));
    }

    #[test]
    fn callers_are_users_or_networks() {
        let address = |text: &str| Some(Peer::Address(text.parse().expect("an address")));
        let hash = FixedState::default();
        let key = |user: Option<&str>, peer| {
            hash.hash_one(RatedCaller::new(user.map(str::to_owned), peer))
        };
        let (one, other) = (address("192.0.2.1:1"), address("192.0.2.1:2"));
        assert_eq!(key(None, one), key(None, other));
        assert_eq!(key(None, address("[2001:db8::1]:1")), key(None, address("[2001:db8::2]:9")));
        assert_ne!(key(None, one), key(None, address("192.0.2.2:1")));
        assert_eq!(key(Some("ada"), one), key(Some("ada"), address("192.0.2.2:1")));
        assert_ne!(key(Some("ada"), one), key(Some("bob"), one));
        let process = |pid, uid| Some(Peer::Process { pid, uid, gid: 0 });
        assert_eq!(key(None, process(1, 7)), key(None, process(2, 7)));
        assert_eq!(key(None, None), key(None, Some(Peer::Unknown)));
    }
}
