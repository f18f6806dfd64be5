//! A link that the program carries: its output until the program fetches it, and the number of
//! received bytes that the communicator's thread has not handled yet.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use ucall_buffer::Payload;

use crate::session_manager::LinkKey;

/// One link that the program carries.
pub struct ExternalLink {
    pub(super) key: OnceLock<LinkKey>,
    /// The name in the peer's certificate, if one was required.
    pub(super) certificate_name: Option<Vec<u8>>,
    output: Mutex<Output>,
    input: Mutex<Input>,
    in_flight_bytes_max: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Output {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// There was no room for output, and the manager was not polled since.
    is_paused: bool,
    /// No output follows.
    is_closed: bool,
}

#[derive(Default)]
struct Input {
    bytes: usize,
    /// The program waits for room for input.
    is_paused: bool,
}

impl ExternalLink {
    pub(super) fn new(
        in_flight_bytes_max: usize,
        certificate_name: Option<Vec<u8>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (key, output, input) = (OnceLock::new(), Mutex::default(), Mutex::default());
        Self { key, certificate_name, output, input, in_flight_bytes_max, wake: Box::new(wake) }
    }

    /// Whether the manager has closed the link and all output was fetched.
    pub fn is_closed(&self) -> bool {
        let output = self.lock();
        output.is_closed && output.waiting.is_empty()
    }

    /// Bytes of output that are not fetched.
    pub fn waiting_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Whether the program has to wait before it hands more input in. If so, it is woken once half
    /// of the input is handled.
    pub fn is_full(&self) -> bool {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.is_paused = input.bytes >= self.in_flight_bytes_max;
        input.is_paused
    }

    /// Counts input that was handed in.
    pub(super) fn add_input(&self, bytes: usize) {
        self.input.lock().unwrap_or_else(PoisonError::into_inner).bytes += bytes;
    }

    /// Counts input that was handled.
    pub(super) fn consume_input(&self, bytes: usize) {
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        input.bytes -= bytes;
        let wakes = input.is_paused && input.bytes <= self.in_flight_bytes_max / 2;
        input.is_paused &= !wakes;
        drop(input);
        if wakes {
            (self.wake)();
        }
    }

    /// Whether there is room for output. If not, the link is marked ready once there is.
    pub(super) fn has_room(&self) -> bool {
        let mut output = self.lock();
        output.is_paused = output.bytes >= self.in_flight_bytes_max;
        !output.is_paused
    }

    /// Enqueues a payload, whose parts are not copied before they are fetched.
    pub(super) fn push(&self, payload: &mut Payload) {
        let mut output = self.lock();
        let was_empty = output.waiting.is_empty();
        output.bytes += payload.len();
        output.waiting.extend(payload.drain());
        drop(output);
        // The program fetches until nothing is left, so one wake is enough.
        if was_empty {
            (self.wake)();
        }
    }

    pub(super) fn end(&self) {
        self.lock().is_closed = true;
        (self.wake)();
    }

    /// Appends the next bytes; returns whether there is room for output again.
    pub(super) fn next(&self, bytes_max: usize, bytes: &mut Vec<u8>) -> bool {
        let mut output = self.lock();
        let mut left = bytes_max;
        while left > 0 {
            let Some(first) = output.waiting.front_mut() else { break };
            let count = first.len().min(left);
            bytes.extend_from_slice(&first.split_to(count));
            left -= count;
            if first.is_empty() {
                output.waiting.pop_front();
            }
        }
        output.bytes -= bytes_max - left;
        let is_low = output.is_paused && output.bytes <= self.in_flight_bytes_max / 2;
        output.is_paused &= !is_low;
        is_low
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for ExternalLink {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ExternalLink({:?})", self.key.get())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A link for ten bytes each way, and a counter of its wakes.
    fn link() -> (ExternalLink, Arc<AtomicUsize>) {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = wakes.clone();
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (ExternalLink::new(10, None, count), wakes)
    }

    fn payload(bytes: &'static [u8]) -> Payload {
        let mut payload = Payload::new();
        payload.push(Bytes::from_static(bytes));
        payload
    }

    #[test]
    fn input_past_the_limit_pauses_and_wakes_once() {
        let (link, wakes) = link();
        link.add_input(9);
        assert!(!link.is_full());
        link.add_input(1);
        assert!(link.is_full());
        link.consume_input(4);
        assert_eq!(wakes.load(Ordering::Relaxed), 0);
        link.consume_input(1);
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        link.consume_input(5);
        assert!(!link.is_full());
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_transport_is_woken_once_for_all_output() {
        let (link, wakes) = link();
        for _ in 0..3 {
            link.push(&mut payload(b"abc"));
        }
        assert_eq!(wakes.load(Ordering::Relaxed), 1);
        link.next(usize::MAX, &mut Vec::new());
        link.push(&mut payload(b"d"));
        assert_eq!(wakes.load(Ordering::Relaxed), 2);
        link.end();
        assert_eq!(wakes.load(Ordering::Relaxed), 3);
    }
}
