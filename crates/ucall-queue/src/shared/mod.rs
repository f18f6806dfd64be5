//! Messages in memory that two processes of one host share.
//!
//! A link of this kind is a Unix socket with a [`Channel`] beside it. The sender copies a long
//! message into memory, sends the descriptor over the channel and a frame over the stream. The
//! receiver maps the memory and returns views of it. Sessions do not change: they keep the message
//! itself to send it again, and a new link begins without any memory.
//!
//! Memory is used in two ways:
//!
//! | | written by | costs |
//! |---|---|---|
//! | once | no process, after it is sealed | new pages on both sides, more than two copies |
//! | repeatedly, as a slot | the sender, once the receiver has released it | a copy |
//!
//! A slot is viewed if both sides trust each other and a copy of the message costs more than a late
//! release of the slot. Otherwise the message is copied out when its frame arrives, and the slot is
//! released at once. Without trust, slots are for messages up to the length at which this is
//! faster, and longer ones are viewed in sealed memory.
//!
//! The memory, its slots and the channel are those of [`ucall_engine::shared`]. Bytes that must not
//! change while they are read are copied out of a slot first ([`View::as_slice`]).

mod layout;
mod preamble;
mod receiver;
mod returned;
mod sender;

use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Payload;
use ucall_engine::shared::SharedMemoryError;

use crate::buffer_pool::BufferPool;
use crate::frame::{Header, Kind, ProtocolError, Sharing};
use crate::link_key::LinkKey;
use crate::message::Body;
use layout::Record;
use receiver::SharedReceiver;
use returned::LinkSlots;
use sender::SharedSender;

pub(crate) use preamble::{
    is_preamble, match_client_preamble, receive_preamble, send_client_preamble, send_preamble,
};
pub(crate) use returned::ReturnedSlots;
pub use ucall_engine::shared::{Channel, shared_memory};

/// An output takes no further message after this many bytes were copied.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The bytes of all slots of one direction, unless both sides trust each other: room for two in use
/// and two being released. A receiver refuses more, because each slot takes address space, and a
/// peer may send the same memory for every slot.
const COPIED_SLOTS_BYTES_MAX: u64 = 16 << 20;
/// Shorter messages are copied out of a slot, also of trusted peers.
const VIEWED_BYTES_MIN: u64 = 256 << 10;

/// Whether a message is viewed in a slot, between sides that trust each other. Both sides use its
/// length in a stream.
fn is_viewed(message_bytes: u64) -> bool {
    message_bytes >= VIEWED_BYTES_MIN
}

/// The shared memory of a link.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    channel: Channel,
    ours: Sharing,
    theirs: Sharing,
    sender: SharedSender,
    receiver: SharedReceiver,
    /// Slots without views that the next output releases. The peer may not use them before, so
    /// there are never more than there are slots.
    returned: Vec<usize>,
    /// Bytes that were copied for the output that is being written.
    copied: usize,
}

impl SharedMemory {
    /// Where the system has it. `slots_bytes_max` bounds the bytes of all slots in each direction.
    pub(crate) fn open(
        channel: Channel,
        link: LinkKey,
        trusts: bool,
        slots_bytes_max: usize,
        returned: Arc<ReturnedSlots>,
        pool: Arc<BufferPool>,
    ) -> Option<Self> {
        Some(Self {
            channel,
            ours: Sharing { takes: ucall_engine::shared::has_room(), trusts },
            theirs: Sharing::default(),
            sender: SharedSender::new(slots_bytes_max),
            receiver: SharedReceiver::new(LinkSlots { link, returned }, pool),
            returned: Vec::new(),
            copied: 0,
        })
    }

    /// This side's part of the handshake.
    pub(crate) fn sharing(&self) -> Sharing {
        self.ours
    }

    /// The peer's part of the handshake.
    pub(crate) fn set_peer_sharing(&mut self, theirs: Sharing) {
        self.theirs = theirs;
    }

    /// Begins another output.
    pub(crate) fn begin_output(&mut self) {
        self.copied = 0;
    }

    /// Whether a message is being copied, which continues in the next turn.
    pub(crate) fn is_copying(&self) -> bool {
        self.sender.is_copying()
    }

    /// The next parts for the stream, from the batches that `fetch` returns; `None` if this output
    /// takes no more.
    pub(crate) fn next_batch(
        &mut self,
        fetch: impl FnOnce() -> Option<Vec<Bytes>>,
    ) -> Option<Vec<Bytes>> {
        if self.copied >= OUTPUT_BYTES_MAX {
            return None;
        }
        if !self.sender.is_pending() {
            let batch = fetch()?;
            if !self.theirs.takes {
                return Some(batch);
            }
            if let Err(batch) = self.sender.begin(batch, self.is_mutually_trusted()) {
                return Some(batch);
            }
        }
        self.sender.advance(&mut self.channel, &mut self.copied)
    }

    /// The length of a message and its segments, by the body of its frame.
    pub(crate) fn take(
        &mut self,
        record: &[u8],
        message_bytes_max: usize,
    ) -> Result<(u64, Body), ProtocolError> {
        if !self.ours.takes {
            return Err(ProtocolError::Unexpected);
        }
        let record = Record::read(record).ok_or(ProtocolError::Malformed)?;
        let length = record.layout.message_bytes();
        if length > message_bytes_max as u64 {
            return Err(ProtocolError::TooLong);
        }
        let is_viewed = self.is_mutually_trusted() && is_viewed(length);
        let slots_bytes_max =
            if self.is_mutually_trusted() { u64::MAX } else { COPIED_SLOTS_BYTES_MAX };
        let body = self.receiver.take(&mut self.channel, &record, is_viewed, slots_bytes_max)?;
        let slot = usize::try_from(record.slot).ok().and_then(|slot| slot.checked_sub(1));
        self.returned.extend(slot.filter(|_| !is_viewed));
        Ok((length, body))
    }

    /// The peer has released a slot.
    pub(crate) fn release(&mut self, slot: u64) -> Result<(), ProtocolError> {
        Ok(self.sender.release(slot)?)
    }

    /// Releases a slot without views in the next output.
    pub(crate) fn release_later(&mut self, slot: usize) {
        self.returned.push(slot);
    }

    /// Writes the releases of slots. From here on the peer may reuse them.
    pub(crate) fn write_releases(&mut self, output: &mut Payload) {
        for slot in self.returned.drain(..) {
            self.receiver.free(slot);
            // The numbers of slots begin at 1.
            output.extend(&Header::control(Kind::Release, slot as u64 + 1, 0).write());
        }
    }

    /// Whether the two trust each other.
    fn is_mutually_trusted(&self) -> bool {
        self.ours.trusts && self.theirs.trusts
    }
}

impl From<SharedMemoryError> for ProtocolError {
    fn from(error: SharedMemoryError) -> Self {
        match error {
            SharedMemoryError::OutOfMemory => Self::OutOfMemory,
            _ => Self::InvalidSharedMemory,
        }
    }
}
