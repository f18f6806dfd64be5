//! Messages in memory that two processes of one host share.
//!
//! A link of this kind is a Unix socket with a [`Channel`] beside it. Long messages are copied into
//! memory whose descriptor goes over the channel, and a frame in the stream tells of them; the
//! receiver maps the memory and hands out views of it. Nothing else about a session changes: what
//! is kept to be sent again is the message itself, and a new link begins without any memory.
//!
//! Memory is used in two ways:
//!
//! | | who may write | costs |
//! |---|---|---|
//! | once | nobody: it is sealed first | new pages on both sides, which are more than two copies |
//! | again, as a slot | the sender, once it has it back | a copy |
//!
//! A slot is viewed if both sides trust each other and the message is so long that a copy costs
//! more than to give the slot back later. Otherwise what is in one is copied out when it is told
//! of, and the slot goes back at once. Without trust that is for messages up to a length at which
//! it pays, and longer ones are viewed in sealed memory.
//!
//! The kernel keeps either from shrinking, and pages that are not there yet are refused, so reading
//! never fails and takes no memory. What must not change while it is looked at is copied out of a
//! slot first ([`View::as_slice`]).

mod channel;
mod layout;
mod receiver;
mod region;
mod sender;
mod view;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Payload;

use crate::buffer_pool::BufferPool;
use crate::frame::{Header, Kind, ProtocolError, Sharing};
use crate::link_key::LinkKey;
use crate::message::Body;
use layout::Record;
use receiver::SharedReceiver;
use sender::SharedSender;

pub use channel::Channel;
pub(crate) use channel::{
    is_client_preamble, is_server_preamble, match_client_preamble, receive_preamble,
    send_client_preamble, send_preamble,
};
pub(crate) use view::ReturnedSlots;
pub use view::View;

/// No other message is begun in one output after so many bytes were copied.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// What slots of one direction hold in all, unless both sides trust each other: two are in use, and
/// two on their way back. A sender keeps to it and a receiver refuses more, because each slot takes
/// address space, and a peer may give the same memory as many times as there are slots.
const COPIED_SLOTS_BYTES_MAX: u64 = 16 << 20;
/// What is shorter is copied out of a slot, whoever wrote it.
const VIEWED_BYTES_MIN: u64 = 256 << 10;

/// Whether a message of so many bytes is viewed in a slot, between two that trust each other. Both
/// go by the length that it would have in a stream.
fn is_viewed(message_bytes: u64) -> bool {
    message_bytes >= VIEWED_BYTES_MIN
}

/// Tells whether this system gives memory that can be shared and sealed, or why not.
pub fn shared_memory() -> io::Result<()> {
    let memory = region::create(1)?;
    region::write(memory.as_fd(), 0, &[1])?;
    Ok(region::seal(memory.as_fd(), region::MemoryUse::Once)?)
}

/// What a link has beside its stream.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    channel: Channel,
    ours: Sharing,
    theirs: Sharing,
    sender: SharedSender,
    receiver: SharedReceiver,
    /// Slots that nobody looks at any more, until the output says so. The peer may not use them
    /// before, so there are never more than slots.
    returned: Vec<usize>,
    /// Bytes that were copied for the output that is being written.
    copied: usize,
}

impl SharedMemory {
    /// `slots_bytes_max` is what is kept to be used again in each direction.
    pub(crate) fn new(
        channel: Channel,
        link: LinkKey,
        trusts: bool,
        slots_bytes_max: usize,
        leases: Arc<ReturnedSlots>,
        pool: Arc<BufferPool>,
    ) -> Self {
        Self {
            channel,
            ours: Sharing { takes: region::has_room(), trusts },
            theirs: Sharing::default(),
            sender: SharedSender::new(slots_bytes_max),
            receiver: SharedReceiver::new(link, leases, pool),
            returned: Vec::new(),
            copied: 0,
        }
    }

    /// What to say of it in the handshake.
    pub(crate) fn sharing(&self) -> Sharing {
        self.ours
    }

    /// What the peer has said of it.
    pub(crate) fn set_peer_sharing(&mut self, theirs: Sharing) {
        self.theirs = theirs;
    }

    /// Another output is begun.
    pub(crate) fn begin_output(&mut self) {
        self.copied = 0;
    }

    /// Whether a message is being copied, which goes on in the next turn.
    pub(crate) fn is_copying(&self) -> bool {
        self.sender.is_copying()
    }

    /// What goes next into the stream, of the chunks that `fetch` gives; `None` when there is
    /// nothing more for this output.
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

    /// The length of a message, and its segments, by the frame that tells of it.
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

    /// The peer is through with a slot.
    pub(crate) fn release(&mut self, slot: u64) -> Result<(), ProtocolError> {
        self.sender.release(slot)
    }

    /// Nobody here looks at a slot any more, which the next output tells the peer.
    pub(crate) fn give_back(&mut self, slot: usize) {
        self.returned.push(slot);
    }

    /// Writes which slots the peer may use again. From here on it may.
    pub(crate) fn write_releases(&mut self, output: &mut Payload) {
        for slot in self.returned.drain(..) {
            self.receiver.free(slot);
            // Their numbers begin at 1.
            output.extend(&Header::control(Kind::Release, slot as u64 + 1, 0).write());
        }
    }

    /// Whether the two trust each other.
    fn is_mutually_trusted(&self) -> bool {
        self.ours.trusts && self.theirs.trusts
    }
}
