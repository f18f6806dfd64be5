//! The shared memory of calls: what a peer gets, and what hostile ones do not.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use ucall_buffer::{Bytes, PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};
use ucall_engine::shared::{Channel, MemoryUse, Side, SlotMemory, allocate, create, seal};

const MIB: u64 = 1 << 20;
const INVALID: SharedMemoryError = SharedMemoryError::Invalid;

/// The tests count the descriptors of their process, so they run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pair(is_trusted: bool) -> (SlotMemory, SlotMemory) {
    let (one, other) = Channel::pair().unwrap();
    let new = |channel, side| SlotMemory::new(channel, 8 * MIB, 8 * MIB, side, is_trusted);
    (new(one, Side::Client), new(other, Side::Server))
}

/// A channel of a hostile peer, and the memory of the side that it attacks.
fn attacked() -> (Channel, SlotMemory) {
    let (one, other) = Channel::pair().unwrap();
    (one, SlotMemory::new(other, 8 * MIB, 8 * MIB, Side::Server, true))
}

fn place(memory: &mut SlotMemory, bytes: &[u8]) -> Option<SlotPlace> {
    memory.place(&[[b"", bytes]]).unwrap().map(|places| places[0].slot)
}

fn at(slot: SlotPlace, start: u64, bytes: u64) -> PartPlace {
    PartPlace { owner: SlotOwner::Sender, slot, start, bytes }
}

/// The first bytes of a slot.
fn take(memory: &mut SlotMemory, slot: SlotPlace, bytes: u64) -> Result<Bytes, SharedMemoryError> {
    memory.take(&[at(slot, 0, bytes)]).map(|mut parts| parts.remove(0))
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
    let one = take(&mut receiver, first, 300_000).unwrap();
    assert_eq!(one, vec![1; 300_000]);
    assert!(is_aligned(&one));
    // The first slot has a view, so the next message has another.
    let second = place(&mut sender, &[2; 300_000]).unwrap();
    assert_eq!(second, SlotPlace { slot: 2, descriptor: 2 });
    let two = take(&mut receiver, second, 300_000).unwrap();
    assert_eq!((&one[..], &two[..]), (&[1; 300_000][..], &[2; 300_000][..]));
    // A part of a view keeps its slot.
    let part = one.slice(7..9);
    drop(one);
    assert_eq!(place(&mut sender, &[3; 300_000]).unwrap().slot, 3);
    assert_eq!(&part[..], [1, 1]);
    std::thread::spawn(move || drop(part)).join().unwrap();
    let again = place(&mut sender, &[4; 300_000]).unwrap();
    assert_eq!(again, SlotPlace { slot: 1, descriptor: 0 });
    assert_eq!(take(&mut receiver, again, 300_000).unwrap(), vec![4; 300_000]);
    // Views outlive both sides.
    drop((sender, receiver));
    assert_eq!(two, vec![2; 300_000]);
}

#[test]
fn other_peers_are_copied_and_get_their_slots_back_at_once() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(false);
    let first = place(&mut sender, &[1; 300_000]).unwrap();
    let one = take(&mut receiver, first, 300_000).unwrap();
    assert!(is_aligned(&one));
    let again = place(&mut sender, &[2; 300_000]).unwrap();
    assert_eq!(again, SlotPlace { slot: 1, descriptor: 0 });
    assert_eq!(one, vec![1; 300_000], "the copy does not change with the slot");
    assert_eq!(take(&mut receiver, again, 300_000).unwrap(), vec![2; 300_000]);
}

#[test]
fn parts_are_put_one_after_another() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let parts: [[&[u8]; 2]; 3] = [[b"a", b"bc"], [b"", b""], [b"", &[7; 100]]];
    let places = sender.place(&parts).unwrap().unwrap();
    let starts: Vec<_> = places.iter().map(|place| (place.start, place.bytes)).collect();
    assert_eq!(starts, [(0, 3), (64, 0), (64, 100)]);
    let taken = receiver.take(&places).unwrap();
    assert_eq!(taken, [&b"abc"[..], b"", &[7; 100]]);
    assert!(taken.iter().all(|part| part.is_empty() || is_aligned(part)));
}

#[test]
fn slots_have_at_most_their_share() {
    let _alone = alone();
    let (one, other) = Channel::pair().unwrap();
    // A slot has room for a sixteenth more.
    let most = MIB + MIB / 16;
    let mut sender = SlotMemory::new(one, most, most, Side::Client, true);
    let mut receiver = SlotMemory::new(other, most, most - 1, Side::Server, true);
    assert_eq!(place(&mut sender, &vec![1; MIB as usize + 16]), None);
    assert!(sender.reserve(128, MIB as usize - 127 + 16).is_none());
    let place_of_one = place(&mut sender, &vec![1; MIB as usize]).unwrap();
    assert_eq!(place(&mut sender, &[1]), None, "the slot is in use");
    assert!(sender.reserve(0, 1).is_none(), "the slot is in use");
    assert_eq!(
        take(&mut receiver, place_of_one, MIB),
        Err(INVALID),
        "the receiver takes a byte less"
    );
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
    let file: OwnedFd = File::open("/proc/self/exe").unwrap().into();
    assert!(ftruncate(&empty, 0).is_err(), "it is sealed");
    for memory in [unsealed, without_pages, shrinkable, empty_sealed, file] {
        let (mut peer, mut attacked) = attacked();
        let descriptor = peer.send(memory.as_fd()).unwrap();
        drop(memory);
        assert_eq!(take(&mut attacked, SlotPlace { slot: 1, descriptor }, 1), Err(INVALID));
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
        assert_eq!(take(&mut attacked, place, bytes), Err(INVALID), "{place:?}, {bytes} bytes");
    }
    // The same slot twice, while it has a view: with its memory, and with other.
    let (mut peer, mut attacked) = attacked();
    let descriptor = peer.send(sealed(MIB).as_fd()).unwrap();
    let first = take(&mut attacked, SlotPlace { slot: 1, descriptor }, 5).unwrap();
    assert_eq!(take(&mut attacked, SlotPlace { slot: 1, descriptor: 0 }, 5), Err(INVALID));
    let descriptor = peer.send(sealed(MIB).as_fd()).unwrap();
    assert_eq!(take(&mut attacked, SlotPlace { slot: 1, descriptor }, 5), Err(INVALID));
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
    assert_eq!(attacked.place(&[[b"", b"1"]]), Err(INVALID));
    assert!(open_descriptors() <= before.0 + 64 + 8);
    drop((memory, peer, attacked));
    assert_eq!((open_descriptors(), mappings()), before);
}

#[test]
fn a_forked_child_returns_no_slot_of_its_parent() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let first = place(&mut sender, &[1; 9]).unwrap();
    let view = take(&mut receiver, first, 9).unwrap();
    // SAFETY: the child calls only what works after a fork, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = sender.place(&[[b"", b"1"]]) == Ok(None);
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

/// What the program writes to memory that it has reserved.
fn fill(reserved: &Bytes, byte: u8) {
    // SAFETY: the memory is that of a slot, which is mapped for writing.
    unsafe { reserved.as_ptr().cast_mut().write_bytes(byte, reserved.len()) };
}

const HEADER: [u8; 128] = [9; 128];

fn place_filled(memory: &mut SlotMemory, bytes: &[u8]) -> PartPlace {
    memory.place(&[[&HEADER, bytes]]).unwrap().unwrap()[0]
}

#[test]
fn memory_that_a_program_fills_is_not_copied() {
    let _alone = alone();
    for is_trusted in [true, false] {
        let (mut sender, mut receiver) = pair(is_trusted);
        let reserved = sender.reserve(128, 300_000).unwrap();
        assert!(is_aligned(&reserved));
        fill(&reserved, 1);
        let place_of_first = place_filled(&mut sender, &reserved);
        assert_eq!(place_of_first.slot, SlotPlace { slot: 1, descriptor: 1 });
        assert_eq!((place_of_first.start, place_of_first.bytes), (0, 300_128));
        let taken = receiver.take(&[place_of_first]).unwrap().remove(0);
        assert_eq!((&taken[..128], &taken[128..]), (&HEADER[..], &[1; 300_000][..]));
        fill(&reserved, 2);
        let seen = if is_trusted { 2 } else { 1 };
        assert_eq!(taken[128..], [seen; 300_000], "a peer that is not trusted is copied");
        // While the peer has it, the memory is copied to another slot.
        let next = place_filled(&mut sender, &reserved);
        assert_eq!(next.slot.slot, if is_trusted { 2 } else { 1 });
        let next = receiver.take(&[next]).unwrap().remove(0);
        drop((taken, next));
        assert_eq!(place_filled(&mut sender, &reserved).slot.slot, 1);
        // A part of it has no room for a header.
        assert_ne!(place_filled(&mut sender, &reserved[64..]).slot.slot, 1);
        // The slot is free when the program and the peer have given it up.
        drop(reserved);
        assert_ne!(place(&mut sender, &[3; 9]).unwrap().slot, 1);
    }
}

#[test]
fn a_slot_is_reserved_until_it_is_dropped_by_program_and_peer() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(true);
    let reserved = sender.reserve(128, 300_000).unwrap();
    assert_eq!(place(&mut sender, &[1; 9]).unwrap().slot, 2);
    drop(reserved);
    let again = sender.reserve(128, 300_000).unwrap();
    let lent = place_filled(&mut sender, &again);
    assert_eq!(lent.slot.slot, 1, "reserved memory is used again");
    let taken = receiver.take(&[lent]).unwrap();
    drop(again);
    assert_ne!(place(&mut sender, &[1; 9]).unwrap().slot, 1, "the peer has it");
    drop(taken);
    assert_eq!(place(&mut sender, &[1; 9]).unwrap().slot, 1);
}

#[test]
fn the_memory_of_a_program_that_trusts_no_peer_is_sealed_against_its_writes() {
    let _alone = alone();
    let (one, other) = Channel::pair().unwrap();
    let mut sender = SlotMemory::new(one, 8 * MIB, 8 * MIB, Side::Client, false);
    let mut receiver = SlotMemory::new(other, 8 * MIB, 8 * MIB, Side::Server, true);
    // A slot that a message had may be written by the peer.
    let message = place(&mut sender, &[1; 300_000]).unwrap();
    drop(take(&mut receiver, message, 300_000).unwrap());
    let reserved = sender.reserve(128, 100_000).unwrap();
    fill(&reserved, 1);
    let lent = place_filled(&mut sender, &reserved);
    assert_eq!(lent.slot.slot, 2);
    let taken = receiver.take(&[lent]).unwrap().remove(0);
    fill(&taken, 7);
    assert_eq!(reserved, vec![1; 100_000], "the receiver has a copy");
}

/// The part of a param that a server answers with, from behind its header.
fn answer(server: &mut SlotMemory, param: &Bytes) -> PartPlace {
    server.place(&[[&HEADER, &param.slice(128..)]]).unwrap().unwrap()[0]
}

#[test]
fn a_server_answers_with_the_memory_of_a_param() {
    let _alone = alone();
    let (mut client, mut server) = pair(true);
    let place = client.place(&[[&HEADER, &[1; 300_000]]]).unwrap().unwrap();
    let param = server.take(&place).unwrap().remove(0);
    let answered = answer(&mut server, &param);
    let known = SlotPlace { slot: 1, descriptor: 0 };
    assert_eq!(answered, PartPlace { owner: SlotOwner::Receiver, slot: known, ..place[0] });
    fill(&param.slice(128..), 2);
    drop(param);
    // The slot was returned, and its answer is in flight.
    assert_ne!(client.place(&[[b"", b"1"]]).unwrap().unwrap()[0].slot.slot, 1);
    let result = client.take(&[answered]).unwrap().remove(0);
    assert_eq!(result[128..], [2; 300_000]);
    assert_ne!(client.place(&[[b"", b"1"]]).unwrap().unwrap()[0].slot.slot, 1);
    // A client copies the results that it sends.
    let again = client.place(&[[&HEADER, &result.slice(128..)]]).unwrap().unwrap();
    assert_ne!(again[0].slot.slot, 1);
    drop(result);
    assert_eq!(client.place(&[[b"", b"1"]]).unwrap().unwrap()[0].slot.slot, 1);
}

#[test]
fn an_answer_in_the_memory_of_a_program_is_a_copy() {
    let _alone = alone();
    let (mut client, mut server) = pair(true);
    let reserved = client.reserve(128, 300_000).unwrap();
    fill(&reserved, 1);
    let lent = place_filled(&mut client, &reserved);
    let param = server.take(&[lent]).unwrap().remove(0);
    let answered = answer(&mut server, &param);
    let result = client.take(&[answered]).unwrap().remove(0);
    fill(&reserved, 2);
    assert_eq!(result[128..], [1; 300_000]);
}

#[test]
fn answers_that_were_not_given_are_refused() {
    let _alone = alone();
    let (mut client, mut server) = pair(true);
    let place = client.place(&[[&HEADER, &[1; 300_000]]]).unwrap().unwrap();
    let param = server.take(&place).unwrap();
    let answered = answer(&mut server, &param[0]);
    drop(param);
    let unknown = PartPlace { slot: SlotPlace { slot: 2, descriptor: 0 }, ..answered };
    let beyond = PartPlace { start: 1 << 40, ..answered };
    for wrong in [unknown, beyond] {
        assert_eq!(client.take(&[wrong]), Err(INVALID), "{wrong:?}");
    }
    let (mut client, mut server) = pair(true);
    let place = client.place(&[[&HEADER, &[1; 300_000]]]).unwrap().unwrap();
    let param = server.take(&place).unwrap();
    let answered = answer(&mut server, &param[0]);
    drop(param);
    assert!(client.place(&[[b"", b"1"]]).unwrap().is_some());
    assert!(client.take(&[answered]).is_ok());
    assert_eq!(client.take(&[answered]), Err(INVALID), "it was returned after one answer");
}

#[test]
fn parts_that_overlap_or_are_not_aligned_are_refused() {
    let _alone = alone();
    let slot = SlotPlace { slot: 1, descriptor: 1 };
    for (one, other) in
        [((0, 65), (64, 1)), ((0, 1), (0, 1)), ((64, 9), (0, 65)), ((0, 1), (32, 1))]
    {
        let (mut peer, mut attacked) = attacked();
        peer.send(sealed(MIB).as_fd()).unwrap();
        let places = [at(slot, one.0, one.1), at(slot, other.0, other.1)];
        assert_eq!(attacked.take(&places), Err(INVALID), "{places:?}");
    }
    let (mut peer, mut attacked) = attacked();
    peer.send(sealed(MIB).as_fd()).unwrap();
    let places = [at(slot, 1 << 19, 64), at(slot, 0, 64)];
    assert!(attacked.take(&places).is_ok(), "apart, in any order");
}

#[test]
fn the_memory_of_copies_is_used_again() {
    let _alone = alone();
    let (mut sender, mut receiver) = pair(false);
    let mut addresses = Vec::new();
    for byte in 0..100 {
        let placed = place(&mut sender, &[byte; 300_000]).unwrap();
        let copy = take(&mut receiver, placed, 300_000).unwrap();
        assert_eq!(copy, vec![byte; 300_000]);
        addresses.push(copy.as_ptr());
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1);
}
