//! Callers, a device and a batcher, on a clock that events move.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::{Duration, Instant};

use super::super::rate::Rate;
use super::super::{BatchLimits, Batcher, Waiting};
use super::origin;

pub(super) const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

pub(super) fn rules(size_max: usize) -> BatchLimits {
    let (wait_max, waiting_max, weight_max) = (Duration::ZERO, None, None);
    BatchLimits { size_max, wait_max, running_max: 1, ahead_max: 0, waiting_max, weight_max }
}

/// A generator of numbers (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    /// Exponentially distributed, with that mean.
    pub(super) fn exponential(&mut self, mean: Duration) -> Duration {
        let uniform = (self.below(1 << 40) + 1) as f64 / (1_u64 << 40) as f64;
        mean.mul_f64(-uniform.ln())
    }
}

/// The time of a batch.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) fixed: Duration,
    pub(super) each: Duration,
    /// Batches are padded to a multiple of it.
    pub(super) step: usize,
}

impl Times {
    pub(super) fn of(self, size: usize) -> Duration {
        self.fixed + self.each * size.next_multiple_of(self.step) as u32
    }
}

/// What batches do to each other that run at once.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Device {
    /// They run in turn.
    Serial,
    /// They run at once.
    Parallel,
    /// Two fifths of each run in turn on the host, and the rest in turn on the device.
    Launched,
}

#[derive(Clone)]
pub(super) enum Callers {
    /// Each calls again 50 to 500 µs after it has its reply. `leave` of them leave one by one, each
    /// after that many seconds more.
    Closed { count: usize, leave: usize, every: Duration },
    /// Calls at these moments.
    Open(Vec<Duration>),
}

impl Callers {
    pub(super) fn closed(count: usize) -> Self {
        Self::Closed { count, leave: 0, every: Duration::MAX }
    }

    pub(super) fn poisson(per_second: f64, count: usize) -> Self {
        let mut random = Random::new(7);
        let mut now = Duration::ZERO;
        let mut next = |_| {
            now += random.exponential(Duration::from_secs_f64(1.0 / per_second));
            now
        };
        Self::Open((0..count).map(&mut next).collect())
    }
}

/// Which policy decides.
pub(super) enum Policy {
    /// A batch starts when a place is free.
    Greedy,
    Batcher(Box<Batcher<usize>>),
    /// Knows when calls will arrive.
    Oracle(Rate),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive { client: usize },
    End { batch: usize },
    Look,
}

pub(super) struct Simulation {
    pub(super) rules: BatchLimits,
    pub(super) times: Times,
    pub(super) device: Device,
    pub(super) callers: Callers,
    pub(super) host: Host,
    pub(super) length: Duration,
}

/// What calls cost beside the model.
#[derive(Clone, Copy)]
pub(super) struct Host {
    /// Replies leave one after another, at this distance.
    pub(super) reply: Duration,
    /// At the beginning of a batch no call arrives for this long: the model holds a lock.
    pub(super) holds: Duration,
}

impl Default for Host {
    fn default() -> Self {
        Self { reply: micros(5), holds: Duration::ZERO }
    }
}

#[derive(Default)]
pub(super) struct Outcome {
    /// Of each call, from arrival to reply, in the second half of the time.
    pub(super) latencies: Vec<Duration>,
    pub(super) sizes: Vec<usize>,
    seconds: f64,
    /// The longest time for which a call waited while a place was free.
    pub(super) waited_by_choice: Duration,
    /// Of the calls, how often each ran.
    pub(super) runs: BTreeMap<usize, usize>,
    pub(super) calls: usize,
    pub(super) longest_batch: Duration,
}

impl Outcome {
    pub(super) fn per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    pub(super) fn quantile(&self, part: f64) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        let index = ((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(index).copied().unwrap_or_default()
    }

    pub(super) fn average_size(&self) -> f64 {
        self.sizes.iter().sum::<usize>() as f64 / self.sizes.len().max(1) as f64
    }
}

struct State<'a> {
    simulation: &'a Simulation,
    policy: Policy,
    origin: Instant,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    /// Calls by their number: client and arrival.
    calls: Vec<(usize, Duration)>,
    waiting: Vec<usize>,
    running: BTreeMap<usize, (Vec<usize>, Duration)>,
    batches: usize,
    host_free: Duration,
    device_free: Duration,
    /// Until then no call arrives.
    held_until: Duration,
    /// Since when a place is free.
    free_since: Option<Duration>,
    random: Random,
    outcome: Outcome,
}

impl Simulation {
    pub(super) fn run(&self, policy: Policy) -> Outcome {
        let mut state = State {
            simulation: self,
            policy,
            origin: origin(),
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            calls: Vec::new(),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            batches: 0,
            host_free: Duration::ZERO,
            device_free: Duration::ZERO,
            held_until: Duration::ZERO,
            free_since: Some(Duration::ZERO),
            random: Random::new(3),
            outcome: Outcome::default(),
        };
        state.run();
        state.outcome
    }

    /// The most calls a second that so many callers can be served.
    pub(super) fn best(&self, callers: usize) -> f64 {
        let size_max = self.rules.size_max.min(callers);
        let rate = |size: usize| size as f64 / self.times.of(size).as_secs_f64();
        (1..=size_max).map(rate).fold(0.0, f64::max)
    }
}

impl State<'_> {
    fn run(&mut self) {
        match &self.simulation.callers {
            Callers::Closed { count, .. } => {
                for client in 0..*count {
                    let at = micros(self.random.below(2000));
                    self.events.push(Reverse((at, Event::Arrive { client })));
                }
            }
            Callers::Open(moments) => {
                for (client, &at) in moments.iter().enumerate() {
                    self.events.push(Reverse((at, Event::Arrive { client })));
                }
            }
        }
        while let Some(Reverse((at, event))) = self.events.pop() {
            if at > self.simulation.length {
                break;
            }
            self.now = at;
            match event {
                Event::Arrive { .. } if at < self.held_until => {
                    self.events.push(Reverse((self.held_until, event)));
                }
                Event::Arrive { client } => self.arrive(client),
                Event::End { batch } => self.end(batch),
                Event::Look => {}
            }
            // All events of a moment come before a decision, as those of a turn do.
            if self.events.peek().is_none_or(|Reverse((next, _))| *next > at) {
                self.start_batches();
            }
        }
        self.outcome.calls = self.calls.len();
        self.outcome.seconds = self.now.as_secs_f64() / 2.0;
    }

    fn instant(&self) -> Instant {
        self.origin + self.now
    }

    fn arrive(&mut self, client: usize) {
        let call = self.calls.len();
        self.calls.push((client, self.now));
        self.waiting.push(call);
        let since = self.instant();
        if let Policy::Batcher(batcher) = &mut self.policy {
            let waiting = Waiting { call, since, deadline: None, priority: 0, weight: 1 };
            batcher.push(waiting).expect("no limit on waiting calls");
        }
    }

    fn end(&mut self, batch: usize) {
        let (calls, started) = self.running.remove(&batch).expect("it runs");
        self.free_since.get_or_insert(self.now);
        let (now, first) = (self.instant(), calls[0]);
        match &mut self.policy {
            Policy::Batcher(batcher) => batcher.finished(first, now),
            Policy::Oracle(rate) => rate.learn(calls.len(), now, self.now - started),
            Policy::Greedy => {}
        }
        for (position, &call) in calls.iter().enumerate() {
            // Replies leave one after another.
            let replied = self.now + self.simulation.host.reply * position as u32;
            let (client, arrived) = self.calls[call];
            if self.now > self.simulation.length / 2 {
                self.outcome.latencies.push(replied - arrived);
            }
            if self.calls_again(client) {
                let thought = micros(50 + self.random.below(450));
                self.events.push(Reverse((replied + thought, Event::Arrive { client })));
            }
        }
    }

    fn calls_again(&self, client: usize) -> bool {
        match &self.simulation.callers {
            Callers::Closed { count, leave, every } => {
                let left = self.now.as_nanos() / every.as_nanos();
                let left = (left as usize).min(*leave);
                client + left < *count
            }
            Callers::Open(_) => false,
        }
    }

    fn start_batches(&mut self) {
        while let Some(calls) = self.next() {
            let took = self.now.saturating_sub(self.free_since.unwrap_or(self.now));
            for &call in &calls {
                let waited = took.min(self.now - self.calls[call].1);
                self.outcome.waited_by_choice = self.outcome.waited_by_choice.max(waited);
                *self.outcome.runs.entry(call).or_default() += 1;
            }
            self.waiting.retain(|call| !calls.contains(call));
            if self.now > self.simulation.length / 2 {
                self.outcome.sizes.push(calls.len());
            }
            let end = self.end_of(calls.len());
            self.held_until = self.now + self.simulation.host.holds;
            self.outcome.longest_batch = self.outcome.longest_batch.max(end - self.now);
            self.events.push(Reverse((end, Event::End { batch: self.batches })));
            self.running.insert(self.batches, (calls, self.now));
            self.batches += 1;
            if self.running.len() >= self.simulation.rules.running_max {
                self.free_since = None;
            }
        }
    }

    fn next(&mut self) -> Option<Vec<usize>> {
        let now = self.instant();
        let has_place = self.running.len() < self.simulation.rules.running_max;
        let is_held = !has_place || self.waiting.is_empty() || self.oracle_waits();
        match &mut self.policy {
            Policy::Batcher(batcher) => {
                let calls = batcher.next(now);
                if calls.is_none()
                    && let Some(due) = batcher.due()
                {
                    assert!(due > now, "due at once, but has no batch");
                    self.events.push(Reverse((due - self.origin, Event::Look)));
                }
                calls
            }
            _ if is_held => None,
            _ => {
                let size = self.waiting.len().min(self.simulation.rules.size_max);
                Some(self.waiting.drain(..size).collect())
            }
        }
    }

    /// Whether calls are about to arrive for whom it pays to wait.
    fn oracle_waits(&self) -> bool {
        let Policy::Oracle(rate) = &self.policy else { return false };
        let Simulation { rules, times, .. } = self.simulation;
        let horizon = self.now + times.of(rules.size_max);
        let mut arrivals: Vec<Duration> = Vec::new();
        for Reverse((at, event)) in self.events.iter() {
            if matches!(event, Event::Arrive { .. }) && *at < horizon {
                arrivals.push(*at);
            }
        }
        arrivals.sort_unstable();
        let waiting = self.waiting.len();
        let free = rules.size_max.saturating_sub(waiting);
        arrivals.iter().take(free).enumerate().any(|(index, &at)| {
            let more = index + 1;
            let longer = times.of(waiting + more) - times.of(waiting) + (at - self.now);
            more as f64 > rate.calls_per_second() * longer.as_secs_f64()
        })
    }

    fn end_of(&mut self, size: usize) -> Duration {
        let time = self.simulation.times.of(size);
        match self.simulation.device {
            Device::Parallel => self.now + time,
            Device::Serial => {
                self.device_free = self.device_free.max(self.now) + time;
                self.device_free
            }
            Device::Launched => {
                self.host_free = self.host_free.max(self.now) + time * 2 / 5;
                self.device_free = self.device_free.max(self.host_free) + time * 3 / 5;
                self.device_free
            }
        }
    }
}
