//! Events of sessions and connections that the program has not polled yet.
//!
//! A program may poll slowly, or never. Up to [`EVENTS_MAX`] events are all kept. Above that,
//! events of connections are dropped, and a session that ends before its start was polled loses all
//! of its events. So the queue is bounded by the number of sessions that exist, and a program that
//! has polled all events knows them all.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::identity::Identity;

/// No event is dropped while at most this many wait.
const EVENTS_MAX: usize = 1024;

/// An event of a session or of its connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The session with this peer has started.
    Started(Identity),
    /// The connection to this peer was lost, for this reason.
    Lost(Identity, String),
    /// Another connection continues the session with this peer.
    Resumed(Identity),
    /// The peer was gone for longer than `expire`. It is unknown if it never connected.
    Expired(Option<Identity>, String),
    /// A connection was refused by this peer, or by this side, for this reason.
    Refused(Option<Identity>, String),
    /// The session with this peer is over.
    Ended(Identity),
}

impl Event {
    fn peer(&self) -> Option<Identity> {
        match self {
            Self::Started(peer) | Self::Lost(peer, _) | Self::Resumed(peer) | Self::Ended(peer) => {
                Some(*peer)
            }
            Self::Expired(peer, _) | Self::Refused(peer, _) => *peer,
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

    /// Adds an event. `false` if it is dropped though a program polls.
    pub(crate) fn push(&self, event: Event) -> bool {
        let mut waiting = self.lock();
        let was_dropped = waiting.len() >= EVENTS_MAX
            && match &event {
                Event::Started(_) => false,
                Event::Ended(peer) => drop_unseen_session(&mut waiting, *peer),
                _ => true,
            };
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

/// Removes all events of a session that has ended, if its start was not polled.
fn drop_unseen_session(waiting: &mut VecDeque<Event>, peer: Identity) -> bool {
    let bounds = [Event::Started(peer), Event::Ended(peer)];
    let last = waiting.iter().rposition(|it| bounds.contains(it));
    let began = last.filter(|&position| waiting.get(position) == bounds.first());
    let Some(began) = began else { return false };
    let mut position = 0;
    waiting.retain(|event| {
        position += 1;
        position <= began || event.peer() != Some(peer)
    });
    true
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
        let session = [Event::Started(identity(1)), Event::Ended(identity(1))];
        let expected: Vec<_> = std::iter::repeat_n(session, EVENTS_MAX / 2).flatten().collect();
        assert!(expected.iter().all(|event| events.push(event.clone())));
        // One above the limit, which has no listener.
        assert!(events.push(Event::Started(identity(2))));
        assert!(events.push(Event::Ended(identity(2))));
        assert_eq!(all(&events), expected);
        let again = [Event::Started(identity(3)), Event::Ended(identity(3))];
        assert!(again.iter().all(|event| events.push(event.clone())));
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
        let dropped = [5000, 7].map(|number| Some(identity(number)));
        assert!(!kept.iter().any(|event| dropped.contains(&event.peer())));
    }

    #[test]
    fn events_of_connections_are_dropped_first() {
        let events = EventQueue::default();
        assert_eq!(events.poll(), None);
        let lost = |number| Event::Lost(identity(number), "cut".to_owned());
        assert!(events.push(Event::Started(identity(1))));
        for _ in 1..EVENTS_MAX {
            assert!(events.push(lost(1)));
        }
        assert!(!events.push(lost(1)));
        assert!(events.push(Event::Started(identity(2))));
        assert!(!events.push(lost(2)));
        // The end of a session whose start waits drops all of its events.
        assert!(!events.push(Event::Ended(identity(1))));
        assert_eq!(all(&events), [Event::Started(identity(2))]);
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
        let of_it = |event: &Event| event.peer() == Some(identity(1));
        let expected: Vec<_> = all(&events).into_iter().filter(of_it).collect();
        assert_eq!(expected, [Event::Ended(identity(1)), Event::Started(identity(1))]);
    }
}
