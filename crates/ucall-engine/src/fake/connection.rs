//! One connection of the fake engine: its pending operations in both directions.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use ucall_buffer::{Payload, Target};

use crate::{Arrival, Completion, Id};

/// How sends go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SendMode {
    /// All bytes at once, without a completion, as on a socket with enough buffer space.
    AtOnce,
    /// At most this many bytes a wait; the completion follows the last of them. `usize::MAX`
    /// behaves like io_uring.
    InSteps(usize),
    /// No bytes, until the mode changes.
    Stalled,
    /// They fail.
    Failing(io::ErrorKind),
}

pub(super) struct Connection {
    pub(super) socket: Option<Id>,
    pub(super) host: IpAddr,
    pub(super) inbox: VecDeque<Inbound>,
    pub(super) sent: Vec<u8>,
    pub(super) sends: usize,
    pub(super) send_mode: SendMode,
    pub(super) sending: Option<(Payload, usize)>,
    pub(super) shut_down: bool,
    pub(super) closed: bool,
    pub(super) target: Option<Target>,
    pub(super) paused: bool,
    /// The end was received; it stays in the inbox for a later target.
    pub(super) ended: bool,
    pub(super) arrival: ReportState,
    /// The number of arrivals to report without any bytes.
    pub(super) spurious_arrivals: usize,
}

pub(super) enum Inbound {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// How far the report of the foremost arrival is. What was reported and not taken by the next wait
/// is reported again.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ReportState {
    #[default]
    None,
    Delayed,
    Made,
}

impl Inbound {
    pub(super) fn len(&self) -> usize {
        if let Inbound::Bytes(bytes) = self { bytes.len() } else { 0 }
    }
}

impl Connection {
    pub(super) fn new(socket: Option<Id>, send_mode: SendMode) -> Self {
        Self {
            socket,
            host: Ipv4Addr::LOCALHOST.into(),
            inbox: VecDeque::new(),
            sent: Vec::new(),
            sends: 0,
            send_mode,
            sending: None,
            shut_down: false,
            closed: false,
            target: None,
            paused: false,
            ended: false,
            arrival: ReportState::None,
            spurious_arrivals: 0,
        }
    }

    /// The payloads and targets that the connection has borrowed.
    pub(super) fn outstanding(&self) -> usize {
        usize::from(self.sending.is_some()) + usize::from(self.target.is_some())
    }

    /// Performs the progress of one wait.
    pub(super) fn advance(&mut self, socket: Id, happened: &mut Vec<Completion>) {
        happened.extend(self.advance_send(socket));
        if self.arrival == ReportState::Delayed {
            return;
        }
        self.arrival = ReportState::None;
        happened.extend(self.fill(socket));
        let silent = self.paused || self.ended || self.inbox.is_empty();
        let is_spurious = self.spurious_arrivals > 0 && !self.paused && !self.ended;
        self.spurious_arrivals -= usize::from(is_spurious);
        if self.target.is_none() && (!silent || is_spurious) {
            self.arrival = ReportState::Delayed;
            happened.push(Completion::Received(Arrival { socket, delivery_index: 0 }));
        }
    }

    fn advance_send(&mut self, socket: Id) -> Option<Completion> {
        let (payload, mut sent) = self.sending.take()?;
        let step = match self.send_mode {
            SendMode::AtOnce => usize::MAX,
            SendMode::InSteps(bytes) => bytes,
            SendMode::Stalled => 0,
            SendMode::Failing(kind) => {
                return Some(Completion::Sent { socket, payload, result: Err(kind.into()) });
            }
        };
        let before = self.sent.len();
        self.sent.extend(payload.slices_from(sent).flatten().take(step));
        sent += self.sent.len() - before;
        if sent < payload.len() {
            self.sending = Some((payload, sent));
            return None;
        }
        Some(Completion::Sent { socket, payload, result: Ok(()) })
    }

    /// Moves one arrival to the target; bytes that do not fit stay.
    fn fill(&mut self, socket: Id) -> Option<Completion> {
        let mut target = self.target.take()?;
        let result = match self.inbox.front_mut() {
            Some(Inbound::Bytes(bytes)) => {
                let count = target.write(bytes);
                bytes.drain(..count);
                if bytes.is_empty() {
                    self.inbox.pop_front();
                }
                if !target.is_full() {
                    self.target = Some(target);
                    return None;
                }
                Ok(())
            }
            Some(Inbound::End) => Err(io::ErrorKind::UnexpectedEof.into()),
            Some(Inbound::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
            None => {
                self.target = Some(target);
                return None;
            }
        };
        Some(Completion::Filled { socket, target, result })
    }
}
