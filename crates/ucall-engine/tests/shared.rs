//! The shared memory of calls: what a peer gets, and what hostile ones do not.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use ucall_buffer::{SharedMemory, SharedMemoryError, SlotPlace};
use ucall_engine::shared::{Channel, MemoryUse, SlotMemory, allocate, create, seal};

const MIB: u64 = 1 << 20;
const INVALID: SharedMemoryError = SharedMemoryError::Invalid;

/// The tests count the descriptors of their process, so they run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair(is_trusted: bool) -> (SlotMemory, SlotMemory) {
    let (one, other) = Channel::pair().unwrap();
    let new = |channel| SlotMemory::new(channel, 8 * MIB, 8 * MIB, is_trusted);
    (new(one), new(other))
}

/// A channel of a hostile peer, and the memory of the side that it attacks.
fn attacked() -> (Channel, SlotMemory) {
    let (one, other) = Channel::pair().unwrap();
    (one, SlotMemory::new(other, 8 * MIB, 8 * MIB, true))
}

fn place(memory: &mut SlotMemory, bytes: &[u8]) -> Option<SlotPlace> {
    memory.place(bytes.len() as u64, &mut [(0, bytes)].into_iter()).unwrap()
}

/// Memory like that of an honest peer.
fn sealed(bytes: u64) -> OwnedFd {
    let memory = create(bytes).unwrap();
    allocate(memory.as_fd(), bytes).unwrap();
    seal(memory.as_fd(), MemoryUse::Reused).unwrap();
    memory
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(64) == 0
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:ucall").count()
}

#[test]
fn a_trusted_peer_is_read_in_place_and_gets_its_slot_back() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let first = place(&mut sender, &[1; 300_000]).unwrap();
    assert_eq!(first, SlotPlace { slot: 1, descriptor: 1 });
    let one = receiver.take(first, 300_000).unwrap();
    assert_eq!(one, vec![1; 300_000]);
    assert!(is_aligned(&one));
    // The first slot has a view, so the next message has another.
    let second = place(&mut sender, &[2; 300_000]).unwrap();
    assert_eq!(second, SlotPlace { slot: 2, descriptor: 2 });
    let two = receiver.take(second, 300_000).unwrap();
    assert_eq!((&one[..], &two[..]), (&[1; 300_000][..], &[2; 300_000][..]));
    // A part of a view keeps its slot.
    let part = one.slice(7..9);
    drop(one);
    assert_eq!(place(&mut sender, &[3; 300_000]).unwrap().slot, 3);
    assert_eq!(&part[..], [1, 1]);
    std::thread::spawn(move || drop(part)).join().unwrap();
    let again = place(&mut sender, &[4; 300_000]).unwrap();
    assert_eq!(again, SlotPlace { slot: 1, descriptor: 0 });
    assert_eq!(receiver.take(again, 300_000).unwrap(), vec![4; 300_000]);
    // Views outlive both sides.
    drop((sender, receiver));
    assert_eq!(two, vec![2; 300_000]);
}

#[test]
fn other_peers_are_copied_and_get_their_slots_back_at_once() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(false);
    let first = place(&mut sender, &[1; 300_000]).unwrap();
    let one = receiver.take(first, 300_000).unwrap();
    assert!(is_aligned(&one));
    let again = place(&mut sender, &[2; 300_000]).unwrap();
    assert_eq!(again, SlotPlace { slot: 1, descriptor: 0 });
    assert_eq!(one, vec![1; 300_000], "the copy does not change with the slot");
    assert_eq!(receiver.take(again, 300_000).unwrap(), vec![2; 300_000]);
}

#[test]
fn pieces_are_put_where_they_belong() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let pieces: [(u64, &[u8]); 2] = [(64, b"later"), (0, b"first")];
    let place = sender.place(69, &mut pieces.into_iter()).unwrap().unwrap();
    let bytes = receiver.take(place, 69).unwrap();
    assert_eq!((&bytes[..5], &bytes[64..]), (&b"first"[..], &b"later"[..]));
    assert_eq!(
        sender.place(4, &mut [(1 << 40, &b"x"[..])].into_iter()),
        Ok(None),
        "beyond the slot"
    );
}

#[test]
fn slots_have_at_most_their_share() {
    let _alone = alone();
    let (one, other) = Channel::pair().unwrap();
    // A slot has room for a sixteenth more.
    let most = MIB + MIB / 16;
    let mut sender = SlotMemory::new(one, most, most, true);
    let mut receiver = SlotMemory::new(other, most, most - 1, true);
    assert_eq!(sender.place(MIB + 16, &mut [].into_iter()), Ok(None));
    let place = sender.place(MIB, &mut [].into_iter()).unwrap().unwrap();
    assert_eq!(sender.place(1, &mut [].into_iter()), Ok(None), "the slot is in use");
    assert_eq!(receiver.take(place, MIB), Err(INVALID), "the receiver takes a byte less");
}

#[test]
fn memory_that_cannot_be_relied_on_is_refused() {
    let _alone = alone();
    let before = (open_descriptors(), mappings());
    let unsealed = create(MIB).unwrap();
    allocate(unsealed.as_fd(), MIB).unwrap();
    let without_pages = create(MIB).unwrap();
    seal(without_pages.as_fd(), MemoryUse::Reused).unwrap();
    let shrinkable = memfd_create(c"x", MemfdFlags::ALLOW_SEALING).unwrap();
    allocate(shrinkable.as_fd(), MIB).unwrap();
    fcntl_add_seals(&shrinkable, SealFlags::GROW | SealFlags::SEAL).unwrap();
    let empty = sealed(MIB);
    let empty_sealed = create(0).unwrap();
    seal(empty_sealed.as_fd(), MemoryUse::Reused).unwrap();
    let read_only = create(MIB).unwrap();
    allocate(read_only.as_fd(), MIB).unwrap();
    fcntl_add_seals(&read_only, SealFlags::FUTURE_WRITE).unwrap();
    seal(read_only.as_fd(), MemoryUse::Reused).unwrap();
    let file: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    assert!(ftruncate(&empty, 0).is_err(), "it is sealed");
    for memory in [unsealed, without_pages, shrinkable, empty_sealed, read_only, file] {
        let (mut peer, mut attacked) = attacked();
        let descriptor = peer.send(memory.as_fd()).unwrap();
        drop(memory);
        assert_eq!(attacked.take(SlotPlace { slot: 1, descriptor }, 1), Err(INVALID));
    }
    drop(empty);
    assert_eq!((open_descriptors(), mappings()), before);
}

#[test]
fn places_that_are_wrong_are_refused() {
    let _alone = alone();
    let before = (open_descriptors(), mappings());
    let wrong = [
        (SlotPlace { slot: 1, descriptor: 1 }, MIB + 1),
        (SlotPlace { slot: 1, descriptor: 1 }, u64::MAX),
        (SlotPlace { slot: 0, descriptor: 1 }, 1),
        (SlotPlace { slot: 2, descriptor: 1 }, 1),
        (SlotPlace { slot: 65, descriptor: 1 }, 1),
        (SlotPlace { slot: u64::MAX, descriptor: 1 }, 1),
        (SlotPlace { slot: 1, descriptor: 0 }, 1),
        (SlotPlace { slot: 1, descriptor: 2 }, 1),
        (SlotPlace { slot: 1, descriptor: u64::MAX }, 1),
    ];
    for (place, bytes) in wrong {
        let (mut peer, mut attacked) = attacked();
        peer.send(sealed(MIB).as_fd()).unwrap();
        assert_eq!(attacked.take(place, bytes), Err(INVALID), "{place:?}, {bytes} bytes");
    }
    // The same slot twice, while it has a view: with its memory, and with other.
    let (mut peer, mut attacked) = attacked();
    let descriptor = peer.send(sealed(MIB).as_fd()).unwrap();
    let first = attacked.take(SlotPlace { slot: 1, descriptor }, 5).unwrap();
    assert_eq!(attacked.take(SlotPlace { slot: 1, descriptor: 0 }, 5), Err(INVALID));
    let descriptor = peer.send(sealed(MIB).as_fd()).unwrap();
    assert_eq!(attacked.take(SlotPlace { slot: 1, descriptor }, 5), Err(INVALID));
    drop((first, peer, attacked));
    assert_eq!((open_descriptors(), mappings()), before);
}

#[test]
fn descriptors_by_the_thousand_are_refused() {
    let _alone = alone();
    let before = (open_descriptors(), mappings());
    let (mut peer, mut attacked) = attacked();
    let memory = sealed(MIB);
    let sent = (0..5000).take_while(|_| peer.send(memory.as_fd()).is_ok()).count();
    assert!(sent > 64, "the channel has room for {sent}");
    assert_eq!(attacked.place(1, &mut [].into_iter()), Err(INVALID));
    assert!(open_descriptors() <= before.0 + 64 + 8);
    drop((memory, peer, attacked));
    assert_eq!((open_descriptors(), mappings()), before);
}

#[test]
fn a_forked_child_returns_no_slot_of_its_parent() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let first = place(&mut sender, &[1; 9]).unwrap();
    let view = receiver.take(first, 9).unwrap();
    // SAFETY: the child calls only what works after a fork, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = sender.place(9, &mut [].into_iter()) == Ok(None);
        drop(view);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's, and `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(place(&mut sender, &[2; 9]).unwrap().slot, 2, "the first one has a view");
    assert_eq!(&view[..], [1; 9]);
}
