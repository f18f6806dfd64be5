//! `ucall_call_t`: the handle of a call, which detects that the call has ended.
//!
//! A program may keep the handle of a live call after its callback has returned. So a handle is no
//! address. Its lowest 16 bits find the slot of the worker that runs the callback, and the rest is
//! a generation, which differs for each call of that slot. The slot holds the call beside the
//! handle that is valid now, and slots are never freed: a comparison is all that a use costs.
//!
//! The handle of a deferred call is the address of the call, rotated so that it finds some slot,
//! too, but has no [`LIVE`] bit, and so is equal to no handle of a live call.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::mem::{self, MaybeUninit, offset_of};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boundary::{Error, ErrorCode};
use crate::log::Log;

/// The bits of a handle that find its slot, in units of [`UNIT`].
const SLOT_BITS: u32 = 16;
const SLOT_MASK: usize = (1 << SLOT_BITS) - 1;
const UNIT: usize = size_of::<AtomicUsize>();
/// Set in the handle of a live call. Allocations are aligned, so that of a deferred call lacks it.
const LIVE: usize = 1 << SLOT_BITS;
/// From one handle of a slot to the next.
const GENERATION: usize = LIVE << 1;
/// The slots of a process, apart from the first one of the table, which is for NULL.
const SLOTS_MAX: usize = 1_000;
const _: () = assert!((SLOTS_MAX + 1) * size_of::<Slot>() <= (SLOT_MASK + 1) * UNIT);

/// The only slot before there is a table: it rejects NULL, the only handle until then.
static NONE: Slot =
    Slot { call: UnsafeCell::new(MaybeUninit::uninit()), handle: AtomicUsize::new(LIVE) };
/// The slots. The kernel provides the memory of a slot when it is first used.
static TABLE: AtomicPtr<Slot> = AtomicPtr::new((&raw const NONE).cast_mut());
static POOL: Mutex<SlotPool> = Mutex::new(SlotPool { free: Vec::new(), logs: Vec::new() });

/// `ucall_call_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct CallHandle(usize);

/// Room for a call.
type CallMemory = [usize; 15];

#[repr(C, align(128))]
struct Slot {
    call: UnsafeCell<MaybeUninit<CallMemory>>,
    /// Of the live call; between two calls that of the next one.
    handle: AtomicUsize,
}

// SAFETY: a call is used by its worker, and by the thread to which the program has passed it.
unsafe impl Sync for Slot {}

/// The slots without a worker, and the log of each other slot.
struct SlotPool {
    free: Vec<usize>,
    logs: Vec<Option<Arc<Log>>>,
}

impl CallHandle {
    pub(crate) const NULL: Self = Self(0);

    /// The handle of a deferred call at that address.
    pub(crate) fn of_deferred(call: *mut c_void) -> Self {
        Self(call.expose_provenance().rotate_left(SLOT_BITS))
    }

    /// The address of a deferred call; `None` for NULL and for a live call.
    pub(crate) fn deferred(self) -> Option<*mut c_void> {
        let is_deferred = self != Self::NULL && self.0 & LIVE == 0;
        is_deferred.then(|| ptr::with_exposed_provenance_mut(self.0.rotate_right(SLOT_BITS)))
    }

    /// The call of a callback that runs.
    #[inline(always)]
    pub(crate) fn live(self) -> Option<*mut c_void> {
        // Relaxed: the program has passed the handle to this thread, and with it the table.
        let table = TABLE.load(Ordering::Relaxed);
        let call = table.wrapping_byte_add((self.0 & SLOT_MASK) * UNIT);
        let valid = call.wrapping_byte_add(offset_of!(Slot, handle)).cast::<AtomicUsize>();
        // SAFETY: 16 bits reach no further than the table. Before there is one, there is no handle
        // but NULL, which finds `NONE`.
        let is_live = unsafe { &*valid }.load(Ordering::Relaxed) == self.0;
        is_live.then(|| call.cast())
    }

    /// The call of a handle that is not live: a deferred one. Logs the use of one that has ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn deferred_or_ended(self) -> Option<*mut c_void> {
        let deferred = self.deferred();
        if deferred.is_none() && self != Self::NULL {
            self.report_ended();
        }
        deferred
    }

    #[cold]
    fn report_ended(self) {
        let log = pool().logs.get((self.0 & SLOT_MASK) * UNIT / size_of::<Slot>()).cloned();
        if let Some(Some(log)) = log {
            log.warn(
                "a call was used after its callback had returned; ignored. To reply later, defer \
                 the call by ucall_call_defer, and keep the call that it returns",
            );
        }
    }
}

/// A slot for the live calls of one worker, one after another.
pub(crate) struct LiveSlot {
    slot: &'static Slot,
    number: usize,
}

// SAFETY: the worker is the only one to write, and readers compare an atomic handle before they
// touch the call.
unsafe impl Send for LiveSlot {}

impl LiveSlot {
    /// A slot that no other worker has. Its log gets the uses of calls that have ended.
    pub(crate) fn acquire(log: Arc<Log>) -> Result<Self, Error> {
        let mut pool = pool();
        let mut table = TABLE.load(Ordering::Relaxed);
        if ptr::eq(table, &raw const NONE) {
            table = new_table().map_err(|error| Error::new(ErrorCode::System, error))?;
            TABLE.store(table, Ordering::Relaxed);
        }
        let number = pool.take().ok_or_else(|| {
            let text = format!("{SLOTS_MAX} threads of this process serve already");
            Error::new(ErrorCode::Limit, text)
        })?;
        pool.set_log(number, Some(log));
        // SAFETY: the table has that slot, is zeroed and never freed.
        let slot = unsafe { &*table.add(number) };
        if slot.handle.load(Ordering::Relaxed) == 0 {
            let first = number * size_of::<Slot>() / UNIT + LIVE;
            slot.handle.store(first, Ordering::Relaxed);
        }
        Ok(Self { slot, number })
    }

    /// Puts a call into the slot while `run` runs its callback, and returns it. `unwound` gets the
    /// call if an exception leaves the callback.
    ///
    /// # Safety
    /// The slot has no call: `run` does not enter it again.
    #[inline(always)]
    pub(crate) unsafe fn run<'s, C>(
        slot: *const Self,
        call: C,
        run: impl FnOnce(CallHandle),
        unwound: impl FnOnce(&C),
    ) -> &'s C {
        const { assert!(size_of::<C>() <= size_of::<CallMemory>()) }
        // SAFETY: slots are never freed.
        let slot = unsafe { (*slot).slot };
        let place = slot.call.get().cast::<C>();
        // SAFETY: our caller says that there is no call. The handle reaches it until the callback
        // has returned, so not longer than its borrows.
        unsafe { place.write(call) };
        let handle = slot.handle.load(Ordering::Relaxed);
        // SAFETY: it was written just now.
        let on_unwind = OnUnwind(Some(|| unwound(unsafe { &*place })));
        run(CallHandle(handle));
        mem::forget(on_unwind);
        slot.handle.store(handle.wrapping_add(GENERATION), Ordering::Relaxed);
        // SAFETY: it was written above, and no handle reaches it any more.
        unsafe { &*place }
    }
}

/// Runs a function when it is dropped.
struct OnUnwind<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for OnUnwind<F> {
    #[cold]
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

impl Drop for LiveSlot {
    fn drop(&mut self) {
        let mut pool = pool();
        pool.set_log(self.number, None);
        pool.free.push(self.number);
    }
}

fn pool() -> MutexGuard<'static, SlotPool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SlotPool {
    fn take(&mut self) -> Option<usize> {
        if self.logs.is_empty() {
            // Of the first slot.
            self.logs.push(None);
        }
        self.free.pop().or_else(|| {
            let next = self.logs.len();
            (next <= SLOTS_MAX).then(|| {
                self.logs.push(None);
                next
            })
        })
    }

    fn set_log(&mut self, number: usize, log: Option<Arc<Log>>) {
        if let Some(of_slot) = self.logs.get_mut(number) {
            *of_slot = log;
        }
    }
}

/// A table whose first slot rejects NULL. Mapped, so that it takes no memory until it is used.
fn new_table() -> io::Result<*mut Slot> {
    let bytes = (SLOT_MASK + 1) * UNIT + size_of::<Slot>();
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: new memory at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let table = memory.cast::<Slot>();
    // SAFETY: the first slot is in the memory, which is zeroed and aligned to a page.
    unsafe { (*table).handle.store(LIVE, Ordering::Relaxed) };
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Format, Output};

    fn slot() -> Result<LiveSlot, Error> {
        LiveSlot::acquire(Arc::new(Log::new(Output::Warnings, Format::Human)))
    }

    fn valid(slot: &LiveSlot) -> CallHandle {
        CallHandle(slot.slot.handle.load(Ordering::Relaxed))
    }

    #[test]
    fn a_handle_is_valid_in_one_slot_and_for_one_call() {
        assert_eq!(CallHandle::NULL.live(), None);
        let slots = [slot().unwrap(), slot().unwrap()];
        let handles = [0, 1].map(|index| valid(&slots[index]));
        for (slot, handle) in slots.iter().zip(handles) {
            let call = Some(slot.slot.call.get().cast());
            assert_eq!((handle.live(), handle.deferred()), (call, None));
            let next = CallHandle(handle.0.wrapping_add(GENERATION));
            slot.slot.handle.store(next.0, Ordering::Relaxed);
            assert_eq!((handle.live(), next.live()), (None, call));
        }
        drop(slots);
        let again = slot().unwrap();
        assert!(!handles.contains(&valid(&again)), "a slot that is used again");
        assert_eq!(CallHandle::NULL.live(), None);
    }

    #[test]
    fn a_process_has_slots_for_so_many_threads() {
        let mut pool = SlotPool { free: Vec::new(), logs: Vec::new() };
        let numbers: Vec<_> = (0..SLOTS_MAX).map(|_| pool.take().unwrap()).collect();
        assert!(numbers.iter().copied().eq(1..=SLOTS_MAX));
        assert_eq!(pool.take(), None);
        pool.free.push(7);
        assert_eq!((pool.take(), pool.take()), (Some(7), None));
    }
}
