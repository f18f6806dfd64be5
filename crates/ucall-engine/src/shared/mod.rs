//! Memory that two processes of one host share, behind the descriptors that they send each other.
//!
//! A sender copies bytes into a slot, which is sealed memory that both sides have mapped, and says
//! so in its own protocol. The receiver reads them there and then returns the slot, which the
//! sender writes again. [`Channel`] carries the descriptors of new slots, [`SentSlots`] and
//! [`ReceivedSlots`] are the two ends of one direction, and a [`View`] keeps a slot for as long as
//! it exists. Queues have a protocol of their own over these; that of calls
//! is [`SlotMemory`].
//!
//! Seals keep the memory from shrinking, and memory without all its pages is refused, so reads
//! never fail and allocate nothing. A sender could still write to a slot that is being read:
//! receivers that do not trust it copy the bytes first.

mod channel;
mod copies;
mod copy;
mod memory;
mod region;
mod slots;
mod view;

use std::io;
use std::os::fd::AsFd;

pub use channel::{
    Channel, Preamble, receive_server_preamble, send_client_preamble, send_server_preamble,
};
pub use memory::{Side, SlotMemory};
pub use region::{
    Mapping, MemoryUse, Quota, QuotaShare, allocate, check, create, has_room, seal, write,
};
pub use slots::{HeldSlot, ReceivedSlots, SLOTS_MAX, SentSlots, SlotTarget, map_once};
pub use ucall_buffer::{PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};
pub use view::{Lease, ReturnSlots, View};

/// Checks that this system has memory that can be shared and sealed.
///
/// # Errors
/// It has not, such as in a sandbox.
pub fn shared_memory() -> io::Result<()> {
    let memory = create(1)?;
    write(memory.as_fd(), 0, &[1])?;
    Ok(seal(memory.as_fd(), MemoryUse::Once)?)
}
