//! The output of a link that somebody else carries, until it is fetched.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use ucall_buffer::Payload;

use crate::hub::LinkKey;

/// One link that somebody else carries.
pub struct Foreign {
    pub(super) key: OnceLock<LinkKey>,
    /// Whom the other side's certificate names, if it had to show one.
    pub(super) certified: Option<Vec<u8>>,
    output: Mutex<Output>,
    in_flight_bytes_max: usize,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Output {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    /// The hub has not been asked again since there was no room.
    is_held_up: bool,
    /// Nothing will follow.
    is_over: bool,
}

impl Foreign {
    pub(super) fn new(
        in_flight_bytes_max: usize,
        certified: Option<Vec<u8>>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let (key, output) = (OnceLock::new(), Mutex::default());
        Self { key, certified, output, in_flight_bytes_max, wake: Box::new(wake) }
    }

    /// Whether the hub has given the link up, and everything was fetched.
    pub fn is_over(&self) -> bool {
        let output = self.lock();
        output.is_over && output.waiting.is_empty()
    }

    /// Bytes that wait to be fetched.
    pub fn waiting_bytes(&self) -> usize {
        self.lock().bytes
    }

    /// Whether there is room for more; if not, the hub is asked again once there is.
    pub(super) fn has_room(&self) -> bool {
        let mut output = self.lock();
        output.is_held_up = output.bytes >= self.in_flight_bytes_max;
        !output.is_held_up
    }

    /// Has a payload wait, whose parts stay where they lie until they are fetched.
    pub(super) fn push(&self, payload: &mut Payload) {
        let mut output = self.lock();
        output.bytes += payload.len();
        output.waiting.extend(payload.drain());
        drop(output);
        (self.wake)();
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        (self.wake)();
    }

    /// The next bytes, and whether there is room for more now which there was not before.
    pub(super) fn next(&self, bytes_max: usize) -> Option<(Vec<u8>, bool)> {
        let mut output = self.lock();
        let mut bytes = Vec::new();
        while bytes.len() < bytes_max {
            let Some(first) = output.waiting.front_mut() else { break };
            let count = first.len().min(bytes_max - bytes.len());
            bytes.extend_from_slice(&first.split_to(count));
            if first.is_empty() {
                output.waiting.pop_front();
            }
        }
        if bytes.is_empty() {
            return None;
        }
        output.bytes -= bytes.len();
        let is_low = output.is_held_up && output.bytes <= self.in_flight_bytes_max / 2;
        output.is_held_up &= !is_low;
        Some((bytes, is_low))
    }

    fn lock(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Foreign({:?})", self.key.get())
    }
}
