//! Starts and ends of sessions that the program has not polled yet.
//!
//! A program may poll slowly, or never. Up to [`EVENTS_MAX`] events are all kept. Above that, a
//! session that ends before its start was polled loses both events. So the queue is bounded by the
//! number of sessions that exist, and a program that has polled all events knows them all.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::identity::Identity;

/// No event is dropped while at most this many wait.
const EVENTS_MAX: usize = 1024;

/// The start or end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The session with this peer has started.
    Started(Identity),
    /// The session with this peer is over.
    Ended(Identity),
}

impl Event {
    fn peer(self) -> Identity {
        match self {
            Self::Started(peer) | Self::Ended(peer) => peer,
        }
    }
}

/// Events in the order in which they happened.
#[derive(Debug, Default)]
pub struct EventQueue {
    waiting: Mutex<VecDeque<Event>>,
    is_nonempty: AtomicBool,
    /// The program has polled at least once.
    has_listener: AtomicBool,
}

impl EventQueue {
    /// Removes the next event, if there is one.
    pub fn poll(&self) -> Option<Event> {
        self.has_listener.store(true, Ordering::Relaxed);
        if !self.is_nonempty.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = self.lock();
        let event = waiting.pop_front();
        self.is_nonempty.store(!waiting.is_empty(), Ordering::Release);
        event
    }

    /// Adds an event. `false` if both events of its session are dropped though a program polls.
    pub(crate) fn push(&self, event: Event) -> bool {
        let mut waiting = self.lock();
        let was_dropped = waiting.len() >= EVENTS_MAX && drop_unseen_start(&mut waiting, event);
        if !was_dropped {
            waiting.push_back(event);
        }
        self.is_nonempty.store(!waiting.is_empty(), Ordering::Release);
        !(was_dropped && self.has_listener.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the start of a session that has ended, if that was not polled.
fn drop_unseen_start(waiting: &mut VecDeque<Event>, event: Event) -> bool {
    let Event::Ended(peer) = event else { return false };
    let last = waiting.iter().rposition(|it| it.peer() == peer);
    let began = last.filter(|&position| waiting.get(position) == Some(&Event::Started(peer)));
    began.and_then(|position| waiting.remove(position)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(number: u32) -> Identity {
        let mut bytes = [7; 16];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        Identity(bytes)
    }

    fn all(events: &EventQueue) -> Vec<Event> {
        std::iter::from_fn(|| events.poll()).collect()
    }

    #[test]
    fn no_event_is_dropped_below_the_limit() {
        let events = EventQueue::default();
        let expected =
            [Event::Started(identity(1)), Event::Ended(identity(1))].repeat(EVENTS_MAX / 2);
        assert!(expected.iter().all(|&event| events.push(event)));
        // One above the limit, which has no listener.
        assert!(events.push(Event::Started(identity(2))));
        assert!(events.push(Event::Ended(identity(2))));
        assert_eq!(all(&events), expected);
        let again = [Event::Started(identity(3)), Event::Ended(identity(3))];
        assert!(again.iter().all(|&event| events.push(event)));
        assert_eq!(all(&events), again);
    }

    #[test]
    fn a_dropped_event_is_reported_to_a_listener() {
        let events = EventQueue::default();
        assert_eq!(events.poll(), None);
        for number in 0..EVENTS_MAX as u32 {
            assert!(events.push(Event::Started(identity(number))));
        }
        assert!(events.push(Event::Started(identity(5000))));
        assert!(!events.push(Event::Ended(identity(5000))));
        // Its start still waits, as do those of the sessions that stay.
        assert!(!events.push(Event::Ended(identity(7))));
        assert!(events.push(Event::Started(identity(6000))));
        let kept = all(&events);
        assert_eq!(kept.len(), EVENTS_MAX);
        assert!(!kept.iter().any(|event| [5000, 7].map(identity).contains(&event.peer())));
    }

    #[test]
    fn a_reported_start_keeps_its_end() {
        let events = EventQueue::default();
        events.push(Event::Started(identity(1)));
        assert_eq!(all(&events), [Event::Started(identity(1))]);
        for number in 0..EVENTS_MAX as u32 {
            events.push(Event::Started(identity(1000 + number)));
        }
        for _ in 0..10 {
            events.push(Event::Ended(identity(1)));
            events.push(Event::Started(identity(1)));
        }
        let of_it = |event: &Event| event.peer() == identity(1);
        let expected: Vec<_> = all(&events).into_iter().filter(of_it).collect();
        assert_eq!(expected, [Event::Ended(identity(1)), Event::Started(identity(1))]);
    }
}
