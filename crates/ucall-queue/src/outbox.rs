//! What was put and is not on the wire yet, one line a session.
//!
//! Short messages are written as whole frames behind one another, ready to be sent as one piece;
//! long ones keep their parts where they lie. The session's thread takes from a line only what it
//! sends at once, so that everything still here can be cancelled or dropped.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::bell::{Bell, Doorbell};
use crate::failure::Failure;
use crate::frame::{self, HEADER_BYTES, Header, Kind};
use crate::identity::Identity;
use crate::message::{COPIED_BYTES_MAX, MESSAGE_WEIGHT, Outgoing};
use crate::options::Full;
use crate::standing::Standing;

/// A batch is closed when it has this many bytes.
const BATCH_BYTES: usize = 64 * 1024;

/// Frames that are sent and kept together.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// What it counts in the peer's window and in our queue.
    pub(crate) weight: usize,
    /// Whole frames; or the head of one, whose body is the parts.
    pub(crate) frames: Vec<u8>,
    pub(crate) parts: Vec<Bytes>,
}

/// How to ask what became of a message.
#[derive(Clone, Debug)]
pub enum Receipt {
    /// It went to one peer, under this number.
    One(Arc<Standing>, u64),
    /// It went to several.
    Many(Arc<[(Arc<Standing>, u64)]>),
    /// It goes nowhere: to which peer, if one was named, and why.
    None(Option<Identity>, Failure),
}

/// Why nothing was put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no room in the queue for this peer.
    Full(Option<Identity>),
    /// The message is longer than this.
    TooLong(usize),
}

/// The lines of all sessions.
#[derive(Debug)]
pub struct Outbox {
    lines: Mutex<Lines>,
    room: Bell,
    doorbell: Arc<Doorbell>,
    queue_bytes_max: usize,
    message_bytes_max: usize,
    full: Full,
}

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<Option<Line>>,
    by_peer: HashMap<Identity, u32>,
    /// Lines with something new.
    changed: Vec<u32>,
    /// Nothing more may be put, and why.
    closed: Option<Failure>,
}

#[derive(Debug)]
struct Line {
    standing: Arc<Standing>,
    /// Dropped messages in front of the chunks.
    gap: Option<(u64, u64)>,
    chunks: VecDeque<Chunk>,
    next: u64,
    /// The weight of what is here, or sent and not acknowledged.
    held: usize,
    is_changed: bool,
    /// Nothing more may be put.
    ended: bool,
}

impl Outbox {
    pub(crate) fn new(
        doorbell: Arc<Doorbell>,
        queue_bytes_max: usize,
        message_bytes_max: usize,
        full: Full,
    ) -> Self {
        let lines = Mutex::default();
        Self { lines, room: Bell::default(), doorbell, queue_bytes_max, message_bytes_max, full }
    }

    /// Puts a message in line for these peers, or for all when none are named. Never waits.
    pub fn put(&self, peers: &[Identity], message: &Outgoing<'_>) -> Result<Receipt, Refusal> {
        let length = message.len();
        if length > self.message_bytes_max {
            return Err(Refusal::TooLong(self.message_bytes_max));
        }
        let mut lines = self.lock();
        let receipt = lines.put(peers, message, self.queue_bytes_max, self.full)?;
        drop(lines);
        self.doorbell.ring();
        Ok(receipt)
    }

    /// Waits until there is room for a message of this weight for these peers, or they are gone.
    pub fn wait_for_room(
        &self,
        peers: &[Identity],
        weight: usize,
        deadline: Option<Instant>,
    ) -> bool {
        let fits = || {
            let lines = self.lock();
            let chosen = lines.choose(peers).ok()?;
            let full = chosen.iter().any(|&index| {
                lines.line(index).is_some_and(|line| line.is_full(weight, self.queue_bytes_max))
            });
            (!full).then_some(())
        };
        // Who is unknown, or gone, is not waited for.
        let fits = || if self.lock().choose(peers).is_err() { Some(()) } else { fits() };
        self.room.wait(deadline, fits).is_some()
    }

    /// Takes a message back; `false` if it is on the wire, or was before.
    pub fn cancel(&self, standing: &Standing, sequence: u64) -> bool {
        let mut lines = self.lock();
        let Some(line) = lines.line_mut(standing.index) else { return false };
        let is_cancelled = std::ptr::eq(&*line.standing, standing) && line.cancel(sequence);
        drop(lines);
        if is_cancelled {
            self.room.ring();
        }
        is_cancelled
    }

    /// The peers that there are.
    pub fn peers(&self) -> Vec<Identity> {
        let lines = self.lock();
        lines.lines.iter().flatten().filter_map(|line| line.standing.peer()).collect()
    }

    pub(crate) fn open(&self, standing: Arc<Standing>) {
        let mut lines = self.lock();
        let index = standing.index;
        let place = index as usize;
        if lines.lines.len() <= place {
            lines.lines.resize_with(place + 1, || None);
        }
        if let Some(peer) = standing.peer() {
            lines.by_peer.insert(peer, index);
        }
        if let Some(line) = lines.lines.get_mut(place) {
            *line = Some(Line::new(standing));
        }
    }

    /// The peer of a line is known now, or another one than before.
    pub(crate) fn rename(&self, index: u32, peer: Identity) {
        let mut lines = self.lock();
        lines.by_peer.retain(|_, held| *held != index);
        lines.by_peer.insert(peer, index);
    }

    /// Ends a line: what is in it is gone.
    pub(crate) fn remove(&self, index: u32) {
        let mut lines = self.lock();
        let line = lines.lines.get_mut(index as usize).and_then(Option::take);
        // Not by a look at all: thousands may end at once.
        if let Some(peer) = line.and_then(|line| line.standing.peer())
            && lines.by_peer.get(&peer) == Some(&index)
        {
            lines.by_peer.remove(&peer);
        }
        drop(lines);
        self.room.ring();
    }

    /// Lets nothing more be put on any line.
    pub(crate) fn close(&self, failure: Failure) {
        self.lock().closed.get_or_insert(failure);
        self.room.ring();
    }

    /// Lets nothing more be put on this line.
    pub(crate) fn end(&self, index: u32) {
        if let Some(line) = self.lock().line_mut(index) {
            line.ended = true;
        }
        self.room.ring();
    }

    /// The next number of a line that has ended, once it is empty.
    pub(crate) fn end_sequence(&self, index: u32) -> Option<u64> {
        let mut lines = self.lock();
        let line = lines.line_mut(index)?;
        let is_empty = line.chunks.is_empty() && line.gap.is_none();
        (line.ended && is_empty).then(|| {
            line.next += 1;
            line.next - 1
        })
    }

    /// Whether something waits in a line.
    pub(crate) fn is_empty(&self, index: u32) -> bool {
        self.lock().line(index).is_none_or(|line| line.chunks.is_empty() && line.gap.is_none())
    }

    /// Moves the lines that have something new to the end of `changed`.
    pub(crate) fn take_changed(&self, changed: &mut Vec<u32>) {
        let mut lines = self.lock();
        let lines = &mut *lines;
        for index in lines.changed.drain(..) {
            if let Some(line) = lines.lines.get_mut(index as usize).and_then(Option::as_mut) {
                line.is_changed = false;
                changed.push(index);
            }
        }
    }

    /// Takes what is sent next from a line.
    pub(crate) fn take(&self, index: u32) -> Option<Chunk> {
        self.lock().line_mut(index)?.take()
    }

    /// Counts what was acknowledged out of the queue.
    pub(crate) fn release(&self, index: u32, weight: usize) {
        if let Some(line) = self.lock().line_mut(index) {
            line.held = line.held.saturating_sub(weight);
        }
        self.room.ring();
    }

    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    fn line(&self, index: u32) -> Option<&Line> {
        self.lines.get(index as usize)?.as_ref()
    }

    fn line_mut(&mut self, index: u32) -> Option<&mut Line> {
        self.lines.get_mut(index as usize)?.as_mut()
    }

    /// The lines that lead to these peers, or all.
    fn choose(&self, peers: &[Identity]) -> Result<Vec<u32>, Receipt> {
        if let Some(failure) = &self.closed {
            return Err(Receipt::None(None, failure.clone()));
        }
        let mut chosen = Vec::with_capacity(peers.len().max(1));
        if peers.is_empty() {
            let open = self.lines.iter().flatten().filter(|line| !line.ended);
            chosen.extend(open.map(|line| line.standing.index));
            if chosen.is_empty() {
                let ended = self.lines.iter().flatten().find_map(|line| line.standing.peer());
                let failure = ended.map_or(Failure::Unknown, |_| Failure::PeerClosed);
                return Err(Receipt::None(ended, failure));
            }
        }
        for peer in peers {
            let known = self.by_peer.get(peer).ok_or(Failure::Unknown);
            let open = known.and_then(|&index| match self.line(index) {
                Some(line) if !line.ended => Ok(index),
                _ => Err(Failure::PeerClosed),
            });
            match open {
                Ok(index) => chosen.push(index),
                Err(failure) => return Err(Receipt::None(Some(*peer), failure)),
            }
        }
        Ok(chosen)
    }

    fn put(
        &mut self,
        peers: &[Identity],
        message: &Outgoing<'_>,
        queue_bytes_max: usize,
        full: Full,
    ) -> Result<Receipt, Refusal> {
        // The only line there is, as a client has it, needs no list.
        if let ([], [Some(line)], None) = (peers, &mut self.lines[..], &self.closed)
            && !line.ended
            && !line.is_full(message.weight(), queue_bytes_max)
        {
            let receipt = Receipt::One(line.standing.clone(), line.push(message));
            if !line.is_changed {
                line.is_changed = true;
                self.changed.push(0);
            }
            return Ok(receipt);
        }
        let chosen = match self.choose(peers) {
            Ok(chosen) => chosen,
            Err(receipt) => return Ok(receipt),
        };
        let weight = message.weight();
        for &index in &chosen {
            let Some(line) = self.line_mut(index) else { continue };
            if full == Full::DropOldest {
                line.make_room(weight, queue_bytes_max);
            }
            if line.is_full(weight, queue_bytes_max) {
                let peer = line.standing.peer();
                return match full {
                    Full::Error | Full::Block => Err(Refusal::Full(peer)),
                    Full::DropOldest | Full::DropNewest => {
                        Ok(Receipt::None(peer, Failure::Dropped))
                    }
                };
            }
        }
        let mut receipts = Vec::with_capacity(chosen.len());
        for index in chosen {
            let Some(line) = self.line_mut(index) else { continue };
            receipts.push((line.standing.clone(), line.push(message)));
            if !std::mem::replace(&mut line.is_changed, true) {
                self.changed.push(index);
            }
        }
        Ok(match receipts.pop() {
            Some((standing, sequence)) if receipts.is_empty() => Receipt::One(standing, sequence),
            last => {
                receipts.extend(last);
                Receipt::Many(receipts.into())
            }
        })
    }
}

impl Line {
    fn new(standing: Arc<Standing>) -> Self {
        Self {
            standing,
            gap: None,
            chunks: VecDeque::new(),
            next: 1,
            held: 0,
            is_changed: false,
            ended: false,
        }
    }

    /// Whether there is no room for so much more. A queue with nothing in it takes anything.
    fn is_full(&self, weight: usize, queue_bytes_max: usize) -> bool {
        self.held > 0 && self.held + weight > queue_bytes_max
    }

    fn push(&mut self, message: &Outgoing<'_>) -> u64 {
        let sequence = self.next;
        let weight = message.weight();
        self.next += 1;
        self.held += weight;
        if message.parts.is_empty() && message.copied.len() <= COPIED_BYTES_MAX {
            self.append(message, sequence, weight);
        } else {
            let mut frames = Vec::new();
            message.write_head(sequence, &mut frames);
            let parts = if message.parts.is_empty() {
                vec![Bytes::copy_from_slice(message.copied)]
            } else {
                message.parts.clone()
            };
            self.chunks.push_back(Chunk { first: sequence, last: sequence, weight, frames, parts });
        }
        sequence
    }

    /// Writes a short message behind others.
    #[inline]
    fn append(&mut self, message: &Outgoing<'_>, sequence: u64, weight: usize) {
        let takes_more =
            |chunk: &&mut Chunk| chunk.parts.is_empty() && chunk.frames.len() < BATCH_BYTES;
        if let Some(chunk) = self.chunks.back_mut().filter(takes_more) {
            chunk.last = sequence;
            chunk.weight += weight;
            message.write_head(sequence, &mut chunk.frames);
            chunk.frames.extend_from_slice(message.copied);
            return;
        }
        let mut frames = Vec::with_capacity(HEADER_BYTES + message.copied.len());
        message.write_head(sequence, &mut frames);
        frames.extend_from_slice(message.copied);
        let parts = Vec::new();
        self.chunks.push_back(Chunk { first: sequence, last: sequence, weight, frames, parts });
    }

    fn cancel(&mut self, sequence: u64) -> bool {
        let next = self.chunks.partition_point(|chunk| chunk.last < sequence);
        let Some(chunk) = self.chunks.get_mut(next) else { return false };
        if chunk.first > sequence {
            return false;
        }
        if chunk.parts.is_empty() {
            // What is left of it counts as an empty message does.
            let Some(freed) = frame::make_void(&mut chunk.frames, sequence) else { return false };
            chunk.weight -= freed;
            self.held -= freed;
            return true;
        }
        let freed = chunk.weight - MESSAGE_WEIGHT;
        *chunk = Chunk::gap(sequence, sequence);
        chunk.weight = MESSAGE_WEIGHT;
        self.held -= freed;
        true
    }

    /// Drops what was put first until there is room, or nothing is left to drop.
    fn make_room(&mut self, weight: usize, queue_bytes_max: usize) {
        while self.is_full(weight, queue_bytes_max) {
            let Some(chunk) = self.chunks.front_mut() else { return };
            let dropped = if chunk.first == chunk.last {
                let chunk = self.chunks.pop_front();
                chunk.map(|chunk| (chunk.first, chunk.weight))
            } else {
                frame::first_frame(&chunk.frames).map(|(header, length)| {
                    chunk.frames.drain(..length.min(chunk.frames.len()));
                    let weight = length - HEADER_BYTES + MESSAGE_WEIGHT;
                    chunk.first += 1;
                    chunk.weight -= weight;
                    (header.sequence, weight)
                })
            };
            let Some((sequence, freed)) = dropped else { return };
            self.held -= freed;
            self.standing.drop_message(sequence);
            let first = self.gap.map_or(sequence, |(first, _)| first);
            self.gap = Some((first, sequence));
        }
    }

    fn take(&mut self) -> Option<Chunk> {
        match self.gap.take() {
            Some((first, last)) => Some(Chunk::gap(first, last)),
            None => self.chunks.pop_front(),
        }
    }
}

impl Chunk {
    /// In the place of messages that are not sent.
    pub(crate) fn gap(first: u64, last: u64) -> Self {
        let mut frames = Header::control(Kind::Gap, last, 8).write().to_vec();
        frames.extend(first.to_le_bytes());
        Self { first, last, weight: 0, frames, parts: Vec::new() }
    }

    /// In the place of the message after the last.
    pub(crate) fn end(sequence: u64) -> Self {
        let frames = Header::control(Kind::End, sequence, 0).write().to_vec();
        Self { first: sequence, last: sequence, weight: 0, frames, parts: Vec::new() }
    }
}
