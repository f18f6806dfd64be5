//! The drain of a worker: it stops accepting, lets calls finish, and closes connections.
//!
//! A worker that is to stop may delay the drain (`shutdown_delay`): meanwhile it serves as before,
//! and its health checks report the drain, so that load balancers send their calls elsewhere.
//!
//! When it begins, connections over raw TCP and WebSocket get the notification `$/drain`, so that
//! clients send no more on them. The last message of a connection that refuses a call is another
//! one, with the number of requests that were read.
//!
//! | since the drain began | a call that arrives | a connection without a call |
//! |---|---|---|
//! | less than `idle_time` | is served: its caller could not know | stays open |
//! | longer, refusing | is refused, the last of its connection | is closed |
//! | longer, serving (a successor accepts already) | is served, over HTTP as the last | is closed |
//! | `drain_timeout` | | all calls are abandoned and answered with an error |
//! | [`FLUSH_TIME`] later, at most | | is closed when its output is sent |
//!
//! When a server stops, the worker accepts the connections in the backlog once more, and the kernel
//! refuses further ones from that moment on (`Listeners::refuse`). It closes the socket 20 ms
//! later, because the engine may report connections that it has accepted before.
//!
//! While other processes accept connections at the same socket, a worker only leaves it to them,
//! and closes its own descriptor when `idle_time` is over. Until then it may learn that all
//! processes stop.

use std::mem;
use std::time::{Duration, Instant};

use ucall_proto::Drain;

/// A connection that was without a call for as long is idle.
pub(crate) const QUIET_TIME: Duration = Duration::from_millis(100);
/// For how long output may still be sent after the calls were abandoned. Their replies and the last
/// frames follow what is in flight.
pub(crate) const FLUSH_TIME: Duration = Duration::from_secs(2);
/// The time between two inspections of connections.
const INSPECTION_INTERVAL: Duration = Duration::from_millis(20);

/// A drain in progress, or about to begin.
#[derive(Debug)]
pub(crate) struct DrainState {
    mode: Drain,
    /// When the worker stops accepting, and whether it has.
    started_at: Instant,
    has_begun: bool,
    /// For how long calls are served, and idle connections stay open.
    idle_time: Duration,
    deadline: Instant,
    /// Whether the calls have been abandoned.
    has_abandoned: bool,
    next_inspection: Instant,
    /// When the previous turn ended its wait. All bytes that had arrived by then have been read.
    previous_turn: Instant,
}

/// What a drain asks for at the end of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DrainStep {
    Nothing,
    /// Stop accepting: the delay is over.
    Begin,
    /// Accept the connections that wait.
    Accept,
    /// Do so for the last time, and close the listening sockets.
    CloseListeners,
    /// Apply this mode to calls from now on, and close the connections that had been idle for
    /// [`QUIET_TIME`] at this moment.
    CloseIdle(Drain, Instant),
    /// Abandon all calls.
    Abandon,
    /// Close the connections whose output is sent.
    CloseSent,
    /// Close all connections.
    Expire,
}

impl DrainState {
    /// A drain that begins after `delay`; without a delay, the worker has stopped accepting.
    pub(crate) fn new(
        mode: Drain,
        now: Instant,
        delay: Duration,
        idle_time: Duration,
        timeout: Duration,
    ) -> Self {
        let started_at = now + delay;
        Self {
            mode,
            started_at,
            has_begun: delay.is_zero(),
            idle_time,
            deadline: started_at + timeout,
            has_abandoned: false,
            next_inspection: started_at,
            previous_turn: now,
        }
    }

    /// What happens to calls later.
    pub(crate) fn mode(&self) -> Drain {
        self.mode
    }

    /// Changes the mode from serving to refusing, but not back.
    pub(crate) fn restrict(&mut self, mode: Drain) {
        if mode == Drain::Refusing {
            self.mode = mode;
        }
    }

    /// When [`DrainState::poll`] is due.
    pub(crate) fn next_inspection(&self) -> Instant {
        self.next_inspection
    }

    /// The next step, at the end of the turn that began at `now`.
    pub(crate) fn poll(&mut self, now: Instant) -> DrainStep {
        let previous_turn = mem::replace(&mut self.previous_turn, now);
        if now < self.next_inspection {
            return DrainStep::Nothing;
        }
        if !mem::replace(&mut self.has_begun, true) {
            return DrainStep::Begin;
        }
        if now >= self.deadline {
            self.next_inspection = now + INSPECTION_INTERVAL;
            return match mem::replace(&mut self.has_abandoned, true) {
                false => DrainStep::Abandon,
                true if now < self.deadline + FLUSH_TIME => DrainStep::CloseSent,
                true => DrainStep::Expire,
            };
        }
        self.next_inspection = (now + INSPECTION_INTERVAL).min(self.deadline);
        // Idle as of the previous turn, whose reads are complete: a call may have arrived since,
        // and a worker whose thread waits for a processor or the interpreter lock reads it late.
        if now >= self.started_at + self.idle_time {
            DrainStep::CloseIdle(self.mode, previous_turn)
        } else if self.mode == Drain::Refusing && now > self.started_at + INSPECTION_INTERVAL {
            DrainStep::CloseListeners
        } else {
            DrainStep::Accept
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn new(mode: Drain, now: Instant, delay: Duration) -> DrainState {
        DrainState::new(mode, now, delay, 100 * MS, 300 * MS)
    }

    #[test]
    fn a_drain_serves_then_restricts_then_expires() {
        let started_at = Instant::now();
        let mut drain = new(Drain::Serving, started_at, Duration::ZERO);
        drain.restrict(Drain::Refusing);
        drain.restrict(Drain::Serving);
        assert_eq!(drain.poll(started_at), DrainStep::Accept);
        assert_eq!(drain.next_inspection(), started_at + INSPECTION_INTERVAL);
        assert_eq!(drain.poll(started_at + 10 * MS), DrainStep::Nothing);
        // The turn before this one began after 10 ms.
        let step = DrainStep::CloseIdle(Drain::Refusing, started_at + 10 * MS);
        assert_eq!(drain.poll(started_at + 290 * MS), step);
        assert_eq!(drain.next_inspection(), started_at + 300 * MS);
        assert_eq!(drain.poll(started_at + 300 * MS), DrainStep::Abandon);
        assert_eq!(drain.poll(started_at + 301 * MS), DrainStep::Nothing);
        assert_eq!(drain.poll(started_at + 320 * MS), DrainStep::CloseSent);
        assert_eq!(drain.poll(started_at + 2_299 * MS), DrainStep::CloseSent);
        assert_eq!(drain.poll(started_at + 2_320 * MS), DrainStep::Expire);
    }

    #[test]
    fn a_delayed_drain_begins_once() {
        let now = Instant::now();
        let mut drain = new(Drain::Refusing, now, 500 * MS);
        drain.restrict(Drain::Refusing);
        assert_eq!(drain.next_inspection(), now + 500 * MS);
        assert_eq!(drain.poll(now + 499 * MS), DrainStep::Nothing);
        assert_eq!(drain.poll(now + 500 * MS), DrainStep::Begin);
        assert_eq!(drain.poll(now + 501 * MS), DrainStep::Accept);
        assert_eq!(drain.poll(now + 522 * MS), DrainStep::CloseListeners);
        assert_eq!(
            drain.poll(now + 799 * MS),
            DrainStep::CloseIdle(Drain::Refusing, now + 522 * MS)
        );
        assert_eq!(drain.poll(now + 800 * MS), DrainStep::Abandon);
    }
}
