//! Streams: calls that are replied to in parts.
//!
//! The items of a stream wait in the worker's queue of outcomes. The worker releases their room in
//! the turn after it has taken them, so a fast thread cannot keep it in one turn.

use std::ffi::c_void;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ucall_server::Overflow;

/// `ucall_room_callback_t`. "unwind" as for [`Function`](crate::callback::Function).
pub type RoomFunction = unsafe extern "C-unwind" fn(*mut c_void);

/// `ucall_item_t`: what happened to an item.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ItemState {
    Accepted = 0,
    NoRoom = 1,
    Ended = 2,
}

/// The callback that reports room for items.
#[derive(Clone, Copy)]
pub(crate) struct RoomCallback {
    pub(crate) function: Option<RoomFunction>,
    pub(crate) tag: *mut c_void,
}

// SAFETY: the header asks the program that the callback may run, with its tag, on the thread that
// serves and on the one that frees the server.
unsafe impl Send for RoomCallback {}
// SAFETY: as above.
unsafe impl Sync for RoomCallback {}

impl RoomCallback {
    fn run(self) {
        if let Some(function) = self.function {
            // SAFETY: the program promised that the function may be called with its tag.
            unsafe { function(self.tag) }
        }
    }
}

/// The room for the items of one call, shared by its worker and the program.
pub(crate) struct Stream {
    pub(crate) overflow: Overflow,
    bytes_max: usize,
    callback: RoomCallback,
    room: Mutex<Room>,
}

#[derive(Default)]
struct Room {
    /// Items that the worker has not taken.
    queued_bytes: usize,
    /// The client reads slowly.
    is_paused: bool,
    has_ended: bool,
    /// An item was refused, and the callback is due when there is room.
    is_awaited: bool,
}

impl Stream {
    pub(crate) fn new(overflow: Overflow, bytes_max: usize, callback: RoomCallback) -> Self {
        Self { overflow, bytes_max, callback, room: Mutex::default() }
    }

    /// Reserves room for an item. One longer than the limit goes alone.
    pub(crate) fn reserve(&self, len: usize) -> ItemState {
        let mut room = self.lock();
        if room.has_ended {
            return ItemState::Ended;
        }
        let is_full = room.queued_bytes > 0 && room.queued_bytes + len > self.bytes_max;
        if is_full || room.is_paused {
            room.is_awaited = true;
            return ItemState::NoRoom;
        }
        room.queued_bytes += len;
        ItemState::Accepted
    }

    /// Releases the room of items that the worker has taken.
    pub(crate) fn release(&self, len: usize) {
        self.change(|room| room.queued_bytes -= len);
    }

    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.change(|room| room.is_paused = is_paused);
    }

    pub(crate) fn end(&self) {
        self.change(|room| room.has_ended = true);
    }

    /// Changes the room, and runs the callback if it is due. The callback may send items, so the
    /// lock is released before.
    fn change(&self, change: impl FnOnce(&mut Room)) {
        let mut room = self.lock();
        change(&mut room);
        let has_room = !room.is_paused && room.queued_bytes <= self.bytes_max / 2;
        let is_due = (room.has_ended || has_room) && mem::take(&mut room.is_awaited);
        drop(room);
        if is_due {
            self.callback.run();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
