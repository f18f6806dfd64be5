//! What happened to sessions, until somebody is told.
//!
//! Who is told may be slow, or not there at all, while sessions come and go. All that happens is
//! kept for as long as little waits. Beyond that a session that ends before anybody was told that
//! it began is left out, both its beginning and its end; so what is kept is bounded by the sessions
//! that there are, and whoever is told in the end knows all that there are.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::identity::Identity;

/// While no more than so many wait, nothing is left out.
const EVENTS_MAX: usize = 1024;

/// What happened to a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// It began.
    Started(Identity),
    /// It is over for good.
    Ended(Identity),
}

impl Event {
    fn peer(self) -> Identity {
        match self {
            Self::Started(peer) | Self::Ended(peer) => peer,
        }
    }
}

/// Events in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<Event>>,
    is_nonempty: AtomicBool,
    /// Somebody has asked for the next one.
    has_listener: AtomicBool,
}

impl EventQueue {
    /// The next one, if there is one.
    pub(crate) fn next(&self) -> Option<Event> {
        self.has_listener.store(true, Ordering::Relaxed);
        if !self.is_nonempty.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = self.lock();
        let event = waiting.pop_front();
        self.is_nonempty.store(!waiting.is_empty(), Ordering::Release);
        event
    }

    /// Keeps an event. `false` if its session is left out, and somebody would have been told.
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

/// Takes out the beginning of a session that has ended, if nobody was told of it.
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
        std::iter::from_fn(|| events.next()).collect()
    }

    #[test]
    fn no_event_is_dropped_below_the_limit() {
        let events = EventQueue::default();
        let expected =
            [Event::Started(identity(1)), Event::Ended(identity(1))].repeat(EVENTS_MAX / 2);
        assert!(expected.iter().all(|&event| events.push(event)));
        // One too many, of which nobody is told.
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
        assert_eq!(events.next(), None);
        for number in 0..EVENTS_MAX as u32 {
            assert!(events.push(Event::Started(identity(number))));
        }
        assert!(events.push(Event::Started(identity(5000))));
        assert!(!events.push(Event::Ended(identity(5000))));
        // Its beginning waits as well, as does that of those that stay.
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
